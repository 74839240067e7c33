"""Files of `specscope.record` on the command line: import, runs, report, export, and a cut file."""

from __future__ import annotations

import json

import pytest

import specscope
from tests.app.commands import call


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


def test_a_recording_is_imported_listed_reported_and_exported(capsys, db, recorded, tmp_path):
    code, out, _ = call(capsys, "import", str(recorded), *db)
    run = out.split()[1].rstrip(":")
    assert (code, out) == (0, f"run {run}: my own loop, 4 tokens, done\n")
    listed = call(capsys, "runs", *db)[1].splitlines()[1]
    assert listed.startswith(run)
    assert " my own loop " in listed
    assert listed.endswith("org/big · measured · own code")
    report = tmp_path / "mine.html"
    assert call(capsys, "report", run, "-o", str(report), *db)[0] == 0
    assert " two four two four" in report.read_text(encoding="utf-8")
    again = tmp_path / "again.jsonl"
    assert call(capsys, "export", run, "--format", "jsonl", "-o", str(again), *db)[0] == 0
    assert "rows cached before each forward" in again.read_text(encoding="utf-8")
    code, _, err = call(capsys, "import", str(recorded), *db)
    assert (code, err.count("\n")) == (1, 1)
    assert "a run with this id is already stored" in err


def test_a_recording_without_its_end_is_imported_as_incomplete(capsys, db, recorded):
    recorded.write_bytes(recorded.read_bytes().rpartition(b'{"event":"footer"')[0])
    code, out, _ = call(capsys, "import", str(recorded), *db)
    assert (code, out.split(", ")[1:]) == (0, ["4 tokens", "incomplete\n"])
    (row,) = json.loads(call(capsys, "runs", *db, "--json")[1])["runs"]
    assert (row["title"], row["status"]) == ("my own loop", "incomplete")


def test_two_recordings_are_compared(capsys, db, recorded):
    run = call(capsys, "import", str(recorded), *db)[1].split()[1].rstrip(":")
    code, out, _ = call(capsys, "diff", run, run, *db)
    assert code == 0
    assert out.startswith(f"{run}: my own loop · org/big · measured · own code · 4 tokens in ")
    code, _, err = call(capsys, "whatif", run, *db)
    assert (code, "name a cluster for the what-if with --profile" in err) == (2, True)
