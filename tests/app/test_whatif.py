"""`specscope whatif`: the table, the JSON object, stored replays, and errors in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.app.commands import call
from tests.traces.samples import sample_trace
from traces.store import Store

PROFILE = ["--profile", "pearl-4xA100"]


@pytest.fixture
def stored(db: list[str]) -> list[str]:
    """Return the option for a database with one run, `sample-speculative`."""
    with Store(Path(db[1])) as store:
        store.insert(sample_trace("speculative", tokens=24, acceptance=0.6))
    return db


def test_the_table_has_recorded_replayed_and_plain_figures(capsys, stored):
    code, out, _ = call(capsys, "whatif", "sample-speculative", *PROFILE, "--method", "pearl", *stored)
    assert code == 0
    first, columns, *lines = out.splitlines()
    assert first.startswith("PEARL · ")
    assert "what-if of sample-speculative · virtual · pearl-4xA100" in first
    assert columns.split() == ["recorded", "what-if", "plain", "decoding"]
    assert any(line.startswith("tokens/s ") for line in lines)
    assert any(line.startswith("Tested drafts: ") for line in lines)
    with Store(Path(stored[1])) as store:
        assert store.runs()[1] == 1


def test_stored_replays_open_in_viewer_and_report(capsys, stored, tmp_path):
    words = ["whatif", "sample-speculative", *PROFILE, "--set", "gamma=6", "--store", "--json", *stored]
    code, out, _ = call(capsys, *words)
    assert code == 0
    result = json.loads(out)
    assert result["stored"] is True
    assert result["what_if"]["config"]["gamma"] == 6
    runs = [result["what_if"]["run_id"], result["plain"]["run_id"]]
    with Store(Path(stored[1])) as store:
        assert store.group(runs[0]) == runs
        assert store.load(runs[0]).header.environment["whatif"]["run"] == "sample-speculative"
    page = tmp_path / "report.html"
    code, _, _ = call(capsys, "report", *runs, "-o", str(page), *stored)
    assert code == 0
    assert "what-if of sample-speculative" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", *PROFILE], "there is no run 'nowhere'"),
        (["sample-speculative"], "there is no profile 'sample-2xGPU'"),
        (["sample-speculative", *PROFILE, "--method", "none"], "there is no method 'none'"),
        (["sample-speculative", *PROFILE, "--set", "gamma=99"], "gamma is 99"),
        (["sample-speculative", *PROFILE, "--set", "gamma"], "is not FIELD=VALUE"),
        (["sample-speculative", *PROFILE, "--devices", "0"], "--devices is 0; it must be at least 1"),
        (["sample-speculative", *PROFILE, "--profile-pair", "x"], "has no pair 'x'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(capsys, stored, words, message):
    code, _, err = call(capsys, "whatif", *words, *stored)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
