"""Prompts that are too long, too many or in invalid files are refused early; full output files."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specscope.app.cli.inputs import read_prompts
from specscope.app.tabs.requests import FormError, make_requests
from specscope.engine import bounds
from specscope.engine.bounds import MOST_CHARACTERS, PER_TOKEN
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.prompts import encode, ids_of
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.types import Limits
from specscope.traces.database.store import Store
from tests.security.commands import command, use_models
from tests.security.odd import refused
from tests.traces.samples import sample_trace

HUGE = 4_000_000
PAIR = Pair.find()
TEXTS = ("Once upon a time. ", "[", " ", "\U0001f600", "\x07")


class Untouched:
    """A tokenizer that fails at any use."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the tokenizer was used")

    __call__ = None


GUARDED = replace(PAIR, tokenizer=Untouched())


def encoded(*prompts: Any) -> object:
    return encode(GUARDED, prompts, PAIR.vocab_size, 16)


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


TOO_LONG = f"the prompt has {HUGE} characters; it may have {PER_TOKEN * PAIR.context} with a context of {PAIR.context} tokens: shorten it"
STOPS = r"stop strings? .*(it may have|takes at most)"
TOO_MUCH = {
    **{
        f"a prompt of {text!r}": (lambda text=text: encoded((text * HUGE)[:HUGE]), TOO_LONG) for text in TEXTS
    },
    "one text": (lambda: ids_of(GUARDED, "x" * HUGE), TOO_LONG),
    "a huge context": (
        lambda: ids_of(replace(GUARDED, context=10**9), "x" * HUGE),
        f"it may have {MOST_CHARACTERS} with a context of",
    ),
    "characters of a chat": (
        lambda: encoded(said("s" * 20_000, "u" * 20_000)),
        "the prompt has 40000 characters",
    ),
    "messages": (
        lambda: encoded(said(*["Hi"] * 10_000)),
        f"the chat has 10000 messages; it may have {bounds.MOST_MESSAGES}: begin a new one",
    ),
    "tokens": (lambda: encoded([5] * 100_000), "the prompt has 100000 tokens; the context of bundled is "),
    "prompts": (
        lambda: encoded(*["Hi"] * 10_000),
        f"10000 prompts were given; a run takes at most {bounds.MOST_PROMPTS}",
    ),
    "characters of prompts": (
        lambda: encoded(*["x" * 30_000] * 200),
        "the prompts have 6000000 characters; a run takes at most 4000000 in all",
    ),
    "a stop string": (lambda: Limits(stop=("x" * HUGE,)), STOPS),
    "a little too long a stop string": (lambda: Limits(stop=("x" * (bounds.LONGEST_STOP + 1),)), STOPS),
    "stop strings": (lambda: Limits(stop=("x",) * (bounds.MOST_STOPS + 1)), STOPS),
    "a reference": (lambda: METHODS["llma"].configure({"reference": "x" * HUGE}), "reference"),
}
"""A call with too much, and its refusal."""


@pytest.mark.parametrize("name", TOO_MUCH)
def test_too_much_is_refused_in_one_line_before_it_is_tokenized(name: str) -> None:
    call, message = TOO_MUCH[name]
    assert re.search(message, refused(call, UsageError))


def test_the_limits_admit_every_prompt_that_fits_the_context_and_the_longest_stop_strings() -> None:
    longest = max(len(PAIR.tokenizer.decode([token])) for token in range(PAIR.vocab_size))
    assert longest == PER_TOKEN
    text = " " * PER_TOKEN * (PAIR.context - 100) + "x"
    assert len(ids_of(PAIR, text)) < PAIR.context
    Limits(stop=("x" * bounds.LONGEST_STOP,) * bounds.MOST_STOPS)


FORMS = {
    "long": ("prompt", '{"chosen": [{"method": "pearl"}]}', "x" * HUGE, f"has {HUGE} characters; it may have {MOST_CHARACTERS}"),
    **{
        name: ("ems-prompts", json.dumps({"chosen": [{"method": "ems", "prompts": typed}]}), "Hi", "further prompts have .* there may be 999 with 1000000")
        for name, typed in (("long further", "x" * HUGE), ("many further", "x\n\n" * 10_000))
    },
    "nested without end": (None, "[" * 1_000_000, "Hi", "cannot be read"),
}  # fmt: skip
"""The refused field, the choice of methods, the prompt, and the refusal."""


@pytest.mark.parametrize("name", FORMS)
def test_the_page_refuses_too_much(name: str) -> None:
    field, methods, prompt, message = FORMS[name]
    with pytest.raises(FormError, match=message) as error:
        make_requests({"methods": methods}, [{"role": "user", "content": prompt}], "g")
    assert field in (None, error.value.where)


def test_the_command_line_refuses_a_file_of_4_mb_before_models_load(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("[" * HUGE)
    words = ["run", "--method", "autoregressive", "--db", str(tmp_path / "x.db")]
    done = command(*words, "--prompt-file", str(tmp_path / "prompt.txt"))
    assert done.failed(2, f"the prompt has {HUGE} characters; it may have {MOST_CHARACTERS}: shorten it")


@pytest.fixture(autouse=True)
def _no_models(monkeypatch):
    use_models(monkeypatch, lambda *_, **__: pytest.fail("models were opened"))


@pytest.mark.parametrize("words", [("import",), ("run", "--method", "pearl", "--prompt-file")])
@pytest.mark.parametrize("name", ["/dev/zero", "/proc/self/mem", "pipe", "folder", "missing", "x" * 5000])
def test_only_a_regular_file_is_read(tmp_path, words, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    done = command(*words, str(tmp_path / name), "--db", str(tmp_path / "traces.db"))
    assert done.failed(2, "cannot read") or done.failed(2, "not a regular file")
    assert not (tmp_path / "traces.db").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "line 1 is not JSON (the JSON nests too deeply)"),
        (b'{"text": ' + b"9" * 5000 + b"}", "line 1 is not JSON (a number in the JSON has more than 4,300 digits)"),
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
)  # fmt: skip
def test_the_error_names_the_bad_line(tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    db = ("--db", str(tmp_path / "traces.db"))
    assert command("run", "--method", "pearl", "--prompt-file", str(path), *db).failed(2, message)


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


@pytest.mark.parametrize("word", ["report", "export"])
def test_a_full_disk_leaves_the_old_file_and_no_part_of_the_new_one(tmp_path, db, monkeypatch, word):
    def fsync(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "out.html"
    path.write_text("before", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", fsync)
    done = command(word, "sample-speculative", "-o", str(path), *db)
    assert done.failed(1, f"No space left on device: {path}")
    assert path.read_text(encoding="utf-8") == "before"
    assert not list(tmp_path.glob(".*"))


def test_a_full_device_gives_one_line(db):
    done = command("report", "sample-speculative", "-o", "/dev/full", *db)
    assert done.failed(1, "No space left on device")


OUTPUTS = {
    ".": "is a folder; name a file",
    "": "is a folder",
    "no/where.html": "does not exist; make it first",
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("word", ["report", "export"])
def test_an_impossible_output_is_refused_before_the_work(tmp_path, monkeypatch, word, output):
    monkeypatch.chdir(tmp_path)
    assert command(word, "none", "-o", output, "--db", "none.db").failed(2, OUTPUTS[output])
