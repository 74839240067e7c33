"""Invalid prompt files, and output files on a full disk."""

from __future__ import annotations

import errno
import json
import os

import pytest

from specscope.app.cli.inputs import read_prompts
from specscope.traces.store import Store
from tests.security.commands import command, use_models
from tests.traces.samples import sample_trace


@pytest.fixture(autouse=True)
def _no_models(monkeypatch):
    """Fail if a command opens models: it must refuse a bad file first."""

    def refuse(*_, **__):
        raise AssertionError("models were opened")

    use_models(monkeypatch, refuse)


def run(path, db):
    return command("run", "--method", "pearl", "--prompt-file", str(path), "--db", str(db / "traces.db"))


@pytest.mark.parametrize("name", ["/dev/zero", "/proc/self/mem", "pipe", "folder", "missing", "x" * 5000])
def test_prompts_are_read_only_from_a_regular_file(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    done = run(tmp_path / name, tmp_path)
    assert done.failed(2, "cannot read") or done.failed(2, "not a regular file")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "line 1 is not JSON (the JSON nests too deeply)"),
        (
            b'{"text": ' + b"9" * 5000 + b"}",
            "line 1 is not JSON (a number in the JSON has more than 4,300 digits)",
        ),
        (b'{"text": "a"}\n{"text": ""}', "line 2 has an empty prompt"),
        (b'{"text": "a"}\n{"text": 5}', "line 2 has none of turns, prompt, question, text"),
        (b'{"text": "a"}\n[]', "line 2 has none of"),
        (b'{"text": "\\ud800"}', "is not valid Unicode"),
        (b'{"text": "a\\u0000"}', "is not text"),
        (b'{"text": "a", "category": [1]}', "line 1 has category [1]; it must be a text"),
        (b'{"text": "a"} {"text": "b"}', "line 1 is not JSON (Extra data"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"", "contains no prompt"),
        (b"\n \n", "contains no prompt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_error_names_the_bad_line(tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    assert run(path, tmp_path).failed(2, message)


def test_lines_end_only_with_a_line_feed(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"text": "a\u2028b\u2029c\x85d\x0be"}, {"text": "f"}]
    for end in ("\n", "\r\n"):
        path.write_bytes(end.join(json.dumps(row, ensure_ascii=False) for row in rows).encode())
        assert [row.text for row in read_prompts(path)] == [row["text"] for row in rows]
        assert [row.line for row in read_prompts(path)] == [1, 2]


@pytest.fixture
def db(tmp_path):
    with Store(tmp_path / "traces.db") as store:
        store.insert(sample_trace())
    return ("--db", str(tmp_path / "traces.db"))


@pytest.fixture
def full(monkeypatch):
    """Return a function that makes every later write fail, as on a full disk."""

    def fsync(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda: monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("words", [["report", "sample-speculative"], ["export", "sample-speculative"]])
def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new_one(tmp_path, db, full, words):
    path = tmp_path / "out.html"
    path.write_text("before", encoding="utf-8")
    full()
    done = command(*words, "-o", str(path), *db)
    assert done.failed(1, f"No space left on device: {path}")
    assert path.read_text(encoding="utf-8") == "before"
    assert not list(tmp_path.glob(".*"))


def test_a_full_device_gives_one_line(db):
    assert command("report", "sample-speculative", "-o", "/dev/full", *db).failed(
        1, "No space left on device"
    )


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (".", "is a folder; name a file"),
        ("", "is a folder"),
        ("no/where.html", "does not exist; make it first"),
    ],
)
@pytest.mark.parametrize("word", ["report", "export"])
def test_an_impossible_output_is_refused_before_the_work(tmp_path, monkeypatch, word, output, message):
    monkeypatch.chdir(tmp_path)
    assert command(word, "none", "-o", output, "--db", "none.db").failed(2, message)
