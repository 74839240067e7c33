"""`specscope whatif`: the table, the JSON object, stored replays, and errors in one line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from specscope.app.main import main
from specscope.traces.imports.reading import read_traces
from specscope.traces.store import Store
from tests.app.commands import answer, call
from tests.traces.samples import sample_trace
from tests.traces.test_whatif_times import loop, plain

PROFILE = ["--profile", "pearl-4xA100"]


@pytest.fixture
def stored(db: list[str]) -> list[str]:
    """Return the option for a database with one run, `sample-speculative`."""
    with Store(Path(db[1])) as store:
        store.insert(sample_trace("speculative", tokens=24, acceptance=0.6))
    return db


def test_the_table_values_of_a_setting_and_stored_replays(capsys, stored, tmp_path):
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
    words = ["whatif", "sample-speculative", *PROFILE, *stored]
    code, out, _ = call(capsys, *words, "--over", "gamma=1:3")
    assert code == 0
    head, *lines = out.splitlines()
    assert head.split()[:3] == ["gamma", "tokens/s", "speed-up"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    values = answer(capsys, *words, "--over", "gamma=1:3", "--json")["values"]
    assert [v["gamma"] for v in values] == [1, 2, 3]
    single = answer(capsys, *words, "--set", "gamma=2", "--json")
    assert values[1]["speedup"] == single["speedup"]
    assert f"{single['speedup']:.2f}×" in lines[1]
    words = ["whatif", "sample-speculative", *PROFILE, "--set", "gamma=6", "--store", "--json", *stored]
    result = answer(capsys, *words)
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


FILES = Path(__file__).parents[1] / "traces" / "imported"
CLUSTERS = [
    (["--profile", "pearl-4xA100", "--method", "pearl"], "pearl", {}),
    (["--profile", "8xA100", "--method", "dsi", "--devices", "4"], "dsi", {}),
    (["--profile", "pearl-3xA100", "--set", "gamma=1"], "speculative", {"gamma": 1}),
    (
        ["--profile", "8xA100", "--profile-pair", "vicuna-7b-alpaca", "--set", "gamma=6"],
        "speculative",
        {"gamma": 6},
    ),
]


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> tuple[list[str], dict[str, list[str]]]:
    """Return the option for a database with runs of other engines, and their ids by file."""
    db = ["--db", str(tmp_path_factory.mktemp("imported") / "traces.db")]
    runs = dict[str, list[str]]()
    for name in ("aiperf", "vllm"):
        file = FILES / f"{name}.jsonl"
        assert main(["import", str(file), *db]) == 0
        runs[name] = [trace.header.run_id for trace in read_traces(file).traces]
    return db, runs


def outcomes(trace) -> dict[int, bool]:
    """Return whether the first tested draft of each token of the output was accepted."""
    start, length = trace.commits[0].position, len(trace.commits)
    tested = [
        d
        for d in trace.decisions
        if d.node >= 0 and d.outcome in ("accepted", "rejected") and d.position < start + length
    ]
    return {d.position - start: d.outcome == "accepted" for d in reversed(tested)}


@pytest.mark.parametrize("file", ["aiperf", "vllm"])
@pytest.mark.parametrize(("words", "method", "config"), CLUSTERS)
def test_another_engines_run_has_the_same_acceptance_on_another_cluster(
    capsys, imported, file, words, method, config
):
    """The recorded steps decide the drafts that they tested; the output counts the others."""
    db, runs = imported
    run = runs[file][0]
    result = answer(capsys, "whatif", run, *words, "--store", "--json", *db)
    assert result["what_if"]["method"] == method
    assert config.items() <= result["what_if"]["config"].items()
    assert words[1] in result["what_if"]["clock"]
    assert result["speedup"] > 0
    assert result["decided_by_recording"] > 0
    with Store(Path(db[1])) as store:
        recorded, replay = (store.load(name) for name in (run, result["what_if"]["run_id"]))
    known, mine = outcomes(recorded), outcomes(replay)
    assert {at: mine[at] for at in known if at in mine} == {at: known[at] for at in known if at in mine}
    assert len(replay.commits) == len(recorded.commits)
    assert known.keys() & mine.keys()
    undetermined = mine.keys() - known.keys()
    assert result["drawn"] >= len(undetermined)


def test_drafts_that_another_engines_run_did_not_test_are_named(capsys, imported):
    """AIPerf's second record has totals only, of an engine whose drafts may be trees."""
    db, runs = imported
    steps, totals = runs["aiperf"]
    code, out, _ = call(capsys, "whatif", steps, *PROFILE, "--method", "pearl", *db)
    assert code == 0
    assert re.search(r"Tested drafts: 5 decided by the recording, [1-9]\d* drawn from", out)
    assert "The prompt is unknown: its length is taken as one token." in out
    assert "The token ids are unknown: nothing can be copied from the text." in out
    assert "Recorded times have another clock: compare the last two columns." in out
    code, out, _ = call(capsys, "whatif", totals, *PROFILE, "--method", "pearl", *db)
    assert code == 0
    assert re.search(r"Tested drafts: 0 decided by the recording, [1-9]\d* drawn from", out)
    assert "The file counts verifications without their order: the order is drawn." in out
    assert "The draft length is unknown: 3 is assumed, the most accepted tokens." in out
    code, _, err = call(capsys, "whatif", steps, "--method", "pearl", *db)
    assert (code, err.count("\n")) == (2, 1)
    assert "--profile" in err


def test_a_recorded_loop_answers_from_its_own_times(capsys, db, tmp_path):
    """Each value has the figures of a single what-if. A plain run times a further row."""
    runs = [loop(tmp_path / "mine.jsonl"), plain(tmp_path / "plain.jsonl")]
    with Store(Path(db[1])) as store:
        store.insert(*runs)
    mine, other = (trace.header.run_id for trace in runs)
    values = answer(capsys, "whatif", mine, "--plain", other, "--over", "gamma=1:7", "--json", *db)["values"]
    assert [v["speedup"] for v in values][1] > 1 > [v["speedup"] for v in values][6]
    code, out, _ = call(capsys, "whatif", mine, "--set", "gamma=2", *db)
    assert code == 0
    assert "From this run's own times: 9.0 ms per target forward" in out
    for words, message in (
        (["--plain", mine], "is no plain decoding to compare with run"),
        (["--plain", "nope"], "no run 'nope'"),
        (["--plain", other, *PROFILE], "leave it out with a profile"),
    ):
        code, _, err = call(capsys, "whatif", mine, *words, *db)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err
    with Store(Path(db[1])) as store:
        store.insert(
            *(replace(t, header=replace(t.header, run_id=f"{t.header.run_id}2", group="g")) for t in runs)
        )
    found = answer(capsys, "whatif", f"{mine}2", "--set", "gamma=2", "--json", *db)
    assert found["speedup"] == values[1]["speedup"]
