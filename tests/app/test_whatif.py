"""`specscope whatif`: the table, the JSON object, stored replays, and errors in one line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from specscope.app.main import main
from specscope.traces.database.store import Store
from specscope.traces.imports.reading import read_traces
from tests.app.commands import IMPORTED, answer, printed, refused
from tests.traces.samples import sample_trace
from tests.traces.test_whatif_times import loop, plain

PROFILE = ["--profile", "pearl-4xA100"]


@pytest.fixture
def stored(db: list[str]) -> list[str]:
    """Return the option for a database with one run, `sample-speculative`."""
    with Store(Path(db[1])) as store:
        store.insert(sample_trace("speculative", tokens=24, acceptance=0.6))
    return db


def test_values_are_single_what_ifs_and_replays_are_stored_on_request(capsys, stored, tmp_path):
    words = ["whatif", "sample-speculative", *PROFILE, *stored]
    lines = printed(capsys, *words, "--over", "gamma=1:3").splitlines()[1:]
    values = answer(capsys, *words, "--over", "gamma=1:3", "--json")["values"]
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    assert [v["gamma"] for v in values] == [1, 2, 3]
    single = answer(capsys, *words, "--set", "gamma=2", "--json")
    assert values[1]["speedup"] == single["speedup"]
    assert f"{single['speedup']:.2f}×" in lines[1]
    with Store(Path(stored[1])) as store:
        assert store.runs()[1] == 1
    result = answer(capsys, *words, "--set", "gamma=6", "--store", "--json")
    assert (result["stored"], result["what_if"]["config"]["gamma"]) == (True, 6)
    runs = [result["what_if"]["run_id"], result["plain"]["run_id"]]
    with Store(Path(stored[1])) as store:
        assert store.group(runs[0]) == runs
        assert store.load(runs[0]).header.environment["whatif"]["run"] == "sample-speculative"
    page = tmp_path / "report.html"
    printed(capsys, "report", *runs, "-o", str(page), *stored)
    assert "what-if of sample-speculative" in page.read_text(encoding="utf-8")


CLUSTERS = [
    ("aiperf", "--profile pearl-4xA100 --method pearl", "pearl", {}),
    ("vllm", "--profile 8xA100 --method dsi --devices 4", "dsi", {}),
    ("aiperf", "--profile pearl-3xA100 --set gamma=1", "speculative", {"gamma": 1}),
    ("vllm", "--profile 8xA100 --profile-pair vicuna-7b-alpaca --set gamma=6", "speculative", {"gamma": 6}),
]


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> tuple[list[str], dict[str, list[str]]]:
    """Return the option for a database with runs of other engines, and their ids by file."""
    db = ["--db", str(tmp_path_factory.mktemp("imported") / "traces.db")]
    runs = dict[str, list[str]]()
    for name in ("aiperf", "vllm"):
        file = IMPORTED / f"{name}.jsonl"
        assert main(["import", str(file), *db]) == 0
        runs[name] = [trace.header.run_id for trace in read_traces(file).traces]
    return db, runs


def outcomes(trace) -> dict[int, bool]:
    """Return whether the first tested draft of each token of the output was accepted."""
    start, length = trace.commits[0].position, len(trace.commits)
    tested = [d for d in trace.decisions if d.node >= 0 and d.outcome in ("accepted", "rejected")]
    inside = [d for d in tested if d.position < start + length]
    return {d.position - start: d.outcome == "accepted" for d in reversed(inside)}


@pytest.mark.parametrize(("file", "place", "method", "config"), CLUSTERS)
def test_another_engines_run_has_the_same_acceptance_on_another_cluster(
    capsys, imported, file, place, method, config
):
    """The recorded steps decide the drafts that they tested; the output counts the others."""
    db, runs = imported
    run, words = runs[file][0], place.split()
    result = answer(capsys, "whatif", run, *words, "--store", "--json", *db)
    assert result["what_if"]["method"] == method
    assert config.items() <= result["what_if"]["config"].items()
    assert words[1] in result["what_if"]["clock"]
    assert result["speedup"] > 0
    assert result["decided_by_recording"] > 0
    with Store(Path(db[1])) as store:
        recorded, replay = (store.load(name) for name in (run, result["what_if"]["run_id"]))
    known, mine = outcomes(recorded), outcomes(replay)
    both = known.keys() & mine.keys()
    assert both
    assert [mine[at] for at in both] == [known[at] for at in both]
    assert len(replay.commits) == len(recorded.commits)
    assert result["drawn"] >= len(mine.keys() - known.keys())


NOTES = [
    (
        "5 decided by the recording, [1-9]",
        "The prompt is unknown: its length is taken as one token.",
        "The token ids are unknown: nothing can be copied from the text.",
        "Recorded times have another clock: compare the last two columns.",
    ),
    (
        "0 decided by the recording, [1-9]",
        "The file counts verifications without their order: the order is drawn.",
        "The draft length is unknown: 3 is assumed, the most accepted tokens.",
    ),
]
"""Of AIPerf's records: the second has totals only, of an engine whose drafts may be trees."""


@pytest.mark.parametrize("number", [0, 1])
def test_drafts_that_another_engines_run_did_not_test_are_named(capsys, imported, number):
    db, runs = imported
    out = printed(capsys, "whatif", runs["aiperf"][number], *PROFILE, "--method", "pearl", *db)
    assert [note for note in NOTES[number] if not re.search(note, out)] == []
    assert "--profile" in refused(capsys, "whatif", runs["aiperf"][number], "--method", "pearl", *db)


def test_a_recorded_loop_answers_from_its_own_times(capsys, db, tmp_path):
    """Each value has the figures of a single what-if. A plain run times a further row."""
    runs = [loop(tmp_path / "mine.jsonl"), plain(tmp_path / "plain.jsonl")]
    with Store(Path(db[1])) as store:
        store.insert(*runs)
    mine, other = (trace.header.run_id for trace in runs)
    replays = ["--method", "speculative", "--over", "gamma=1:7"]
    values = answer(capsys, "whatif", mine, "--plain", other, *replays, "--json", *db)["values"]
    assert [v["speedup"] for v in values][1] > 1 > [v["speedup"] for v in values][6]
    out = printed(capsys, "whatif", mine, "--set", "gamma=2", *db)
    assert "From this run's own times: 9.0 ms per target forward" in out
    for words, message in (
        (["--plain", mine], "is no plain decoding to compare with run"),
        (["--plain", "nope"], "no run 'nope'"),
        (["--plain", other, *PROFILE], "leave it out with a profile"),
    ):
        assert message in refused(capsys, "whatif", mine, *words, *db)
    with Store(Path(db[1])) as store:
        store.insert(
            *(replace(t, header=replace(t.header, run_id=f"{t.header.run_id}2", group="g")) for t in runs)
        )
    found = answer(capsys, "whatif", f"{mine}2", "--set", "gamma=2", "--json", *db)
    assert found["speedup"] == values[1]["speedup"]


def test_the_own_draft_length_is_estimated_without_a_profile(capsys, db, tmp_path):
    """Case 22: one command tells which length is best, plain decoding included."""
    recorded, baseline = tmp_path / "run.jsonl", tmp_path / "plain.jsonl"
    ids = [loop(recorded).header.run_id, plain(baseline).header.run_id]
    for file in (recorded, baseline):
        assert main(["import", str(file), *db]) == 0
    capsys.readouterr()
    words = ["whatif", ids[0], "--plain", ids[1], *db, "--over"]
    found = answer(capsys, *words, "gamma=0:4", "--json")
    assert [row["length"] for row in found["lengths"]] == [0, 1, 2, 3, 4]
    assert (found["best"], found["lengths"][0]["speedup"]) == (2, 1.0)
    lines = printed(capsys, *words, "gamma=0:4").splitlines()
    assert lines[3].split()[:3] == ["2", "2.10", f"{found['lengths'][2]['speedup']:.2f}×"]
    assert found["sentence"] in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("gamma=16:0", "does not rise"),
        ("gamma=0:100000", "gamma is 100000; it must be at least 0 and at most 32"),
        ("gamma=", "has no values"),
        ("temperature=0:1", "no sweep over 'temperature'; it has gamma"),
        ("gamma=0:3 --c nan", "--c is nan"),
        ("gamma=0:3 --row -1", "--row is -1"),
        ("gamma=0:3 --widths 1=nan", "ms of --widths is nan"),
        ("gamma=0:3 --widths x", "is not ROWS=MS"),
        ("gamma=0:3 --widths 1=1,1=2", "1 rows twice"),
        ("gamma=0:3 --store", "--store keeps one replay"),
        ("gamma=0:3 --over gamma=1:2", "--over was given 2 times; a what-if takes one"),
        ("gamma=0:3 --c 0.1 --profile H100", "--c serves --over gamma=0:16 alone"),
    ],
)
def test_wrong_lengths_and_times_end_in_one_line(capsys, stored, words, message):
    assert message in refused(capsys, "whatif", "sample-speculative", *stored, "--over", *words.split())
