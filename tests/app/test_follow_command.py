"""`specscope follow`, and the commands on recordings of own loops."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import specscope
from specscope.app.cli import common
from specscope.engine.trace.jsonl import to_json
from specscope.traces.metrics import measure
from specscope.traces.store import Store
from tests.app.commands import answer, call, printed, refused
from tests.traces.samples import sample_events, sample_trace

ROOT = Path(__file__).resolve().parents[2]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
LINES = [to_json(event) + "\n" for event in sample_events("pearl")]


def rows(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_line_per_round_as_the_file_grows_and_the_run_is_stored(capsys, db, tmp_path, monkeypatch) -> None:
    file, waiting, note = tmp_path / "run.jsonl", threading.Event(), common.note
    monkeypatch.setattr(common, "note", lambda text: (note(text), waiting.set()))

    def slowly() -> None:
        assert waiting.wait(60)
        with file.open("w", encoding="utf-8") as opened:
            for line in LINES:
                opened.write(line[:9])
                opened.flush()
                opened.write(line[9:])
                time.sleep(0.001)

    writer = threading.Thread(target=slowly)
    writer.start()
    code, out, err = call(capsys, "follow", str(file), "--json", *db)
    writer.join()
    assert code == 0
    assert err.splitlines()[0] == "specscope: waiting: run.jsonl does not exist yet"
    header, *rounds, footer = rows(out)
    trace = sample_trace("pearl")
    known = measure(trace)
    assert header == {
        "file": "run.jsonl", "event": "header", "run_id": "sample-pearl", "method": "pearl", "title": "PEARL"
    }  # fmt: skip
    assert [row["step"] for row in rounds] == [row.step for row in trace.rounds]
    assert [row["rounds"] for row in rounds] == list(range(1, len(rounds) + 1))
    assert [row["tokens"] for row in rounds] == sorted(row["tokens"] for row in rounds)
    assert (footer["status"], footer["message"]) == ("done", "Run sample-pearl is stored.")
    assert footer["tokens"] == known.tokens
    assert footer["acceptance_rate"] == pytest.approx(known.acceptance_rate)
    assert footer["tokens_per_second"] == pytest.approx(known.tokens_per_second)
    with Store(db[1]) as store:
        assert store.load("sample-pearl") == trace


def test_several_files_are_followed_to_their_footers_and_a_wrong_line_has_its_number(
    capsys, db, tmp_path
) -> None:
    for name in ("a", "b"):
        text = "".join(LINES).replace("sample-pearl", f"run-{name}")
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    code, out, err = call(capsys, "follow", *(str(tmp_path / f"{n}.jsonl") for n in "ab"), "--json", *db)
    assert (code, err) == (0, "")
    ends = [row for row in rows(out) if row["event"] == "footer"]
    assert [(row["file"], row["run_id"]) for row in ends] == [("a.jsonl", "run-a"), ("b.jsonl", "run-b")]
    (tmp_path / "run.jsonl").write_text("".join(LINES[:5]) + "nonsense\n", encoding="utf-8")
    code, out, err = call(capsys, "follow", str(tmp_path / "run.jsonl"), "--json", *db)
    assert (code, len(rows(out))) == (2, 1)
    assert err == "specscope: run.jsonl: line 6: Expecting value at character 1\n"


def test_without_json_the_page_opens_on_the_files(capsys, monkeypatch, tmp_path) -> None:
    served = []
    monkeypatch.setattr("specscope.app.server.serve", lambda **arguments: served.append(arguments) or 0)
    files = [str(tmp_path / "a,b.jsonl"), str(tmp_path / "c.jsonl")]
    code, _, err = call(capsys, "follow", *files, "--port", "0")
    (given,) = served
    assert (code, err, given["port"], given["query"]) == (0, "", 0, "/?follow=a%252Cb.jsonl,c.jsonl")
    assert [*given["recordings"].files] == ["a,b.jsonl", "c.jsonl"]
    assert "host" not in given, "only this machine reaches the page"
    call(capsys, "follow", "--folder", str(tmp_path))
    assert served[1]["query"] == "/?tab=history"
    assert served[1]["recordings"].folder == tmp_path


def test_ctrl_c_ends_cleanly_and_says_how_to_store_what_is_there(tmp_path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text("".join(LINES[:60]), encoding="utf-8")
    command = [sys.executable, "-m", "specscope.app.main", "follow", str(file), "--json", "--db"]
    process = subprocess.Popen([*command, str(tmp_path / "t.db")], cwd=ROOT, **PIPES)
    assert process.stdout is not None
    rounds = sum('{"event":"round"' in line for line in LINES[:60])
    events = [json.loads(process.stdout.readline())["event"] for _ in range(1 + rounds)]
    assert events == ["header", *["round"] * rounds]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    note = f"run.jsonl has no footer yet, so it is not stored; `specscope import {file}` stores what is there"
    assert err == f"specscope: {note}\nspecscope: stopped\n"


# Recordings of own loops in commands.


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "mine.jsonl"
    with specscope.record(path, "my own loop", devices=["drafter", "target"], target="org/big") as rec:
        rec.prompt("Count", ids=[1])
        for _ in range(2):
            with rec.span("draft", rows=1):
                pass
            with rec.span("verify", rows=3):
                pass
            rec.round([2, 3], 1, [2, 4], texts=[" two", " four"])
    return path


def test_a_recording_is_imported_listed_reported_exported_and_compared(capsys, db, recorded, tmp_path):
    out = printed(capsys, "import", str(recorded), *db)
    run = out.split()[1].rstrip(":")
    assert out == f"run {run}: my own loop, 4 tokens, done\n"
    listed = printed(capsys, "runs", *db).splitlines()[1]
    assert re.fullmatch(rf"{run} .* my own loop .*org/big · measured · own code", listed)
    report, again = tmp_path / "mine.html", tmp_path / "again.jsonl"
    printed(capsys, "report", run, "-o", str(report), *db)
    assert " two four two four" in report.read_text(encoding="utf-8")
    printed(capsys, "export", run, "--format", "jsonl", "-o", str(again), *db)
    assert "rows cached before each forward" in again.read_text(encoding="utf-8")
    assert "a run with this id is already stored" in refused(capsys, "import", str(recorded), *db, code=1)
    out = printed(capsys, "diff", run, run, *db)
    assert out.startswith(f"{run}: my own loop · org/big · measured · own code · 4 tokens in ")
    assert "name a cluster for the what-if with --profile" in refused(capsys, "whatif", run, *db)


def test_a_recording_without_its_end_is_imported_as_incomplete(capsys, db, recorded):
    recorded.write_bytes(recorded.read_bytes().rpartition(b'{"event":"footer"')[0])
    out = printed(capsys, "import", str(recorded), *db)
    assert out.split(", ")[1:] == ["4 tokens", "incomplete\n"]
    (row,) = answer(capsys, "runs", *db, "--json")["runs"]
    assert (row["title"], row["status"]) == ("my own loop", "incomplete")
