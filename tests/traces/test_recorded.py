"""Recordings of `specscope.record` in the views: what they lack is unknown, the rest works."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import OTHERS, Occupancy
from specscope.engine.trace.jsonl import to_json
from specscope.traces.checks import check
from specscope.traces.comparable import comparisons
from specscope.traces.diff import diff
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.report import render_report
from specscope.traces.imported import origin
from specscope.traces.imports.reading import read_traces
from specscope.traces.metrics import measure
from specscope.traces.view.document import view_model
from specscope.traces.whatif.replay import Change, what_if

MS = 1_000_000
DEVICES = {"d": "drafter", "t": "target"}


@pytest.fixture
def record(tmp_path):
    """Record rounds on a made-up clock: how many of three drafts each accepted, None for no draft.

    Options leave facts out; the trace is read from the file. `load` is the share of all cores that
    other programs used, which the recorder does not know of a made-up clock.
    """

    def run(
        *rounds,
        ids=(1, 2),
        texts=True,
        probabilities=True,
        context=True,
        spans=True,
        drafting=True,
        load=0.0,
        **given,
    ):
        path = tmp_path / "run.jsonl"
        devices = DEVICES if any(r is not None for r in rounds) else {"t": "target"}
        with specscope.record(path, devices=devices, method="mine", **given) as rec:
            rec.prompt("Hi", ids=ids)
            rec.start(0)
            now, length, token = 0, len(ids), 10
            for accepted in rounds:
                drafted = [] if accepted is None else [token, token + 1, token + 2]
                rows = {"context": length if context else -1}
                if drafted and spans and drafting:
                    rec.add("draft", now, now + MS, "d", rows=1, **rows)
                now += MS
                if spans:
                    rec.add("verify", now, now + 4 * MS, "t", rows=len(drafted) + 1, **rows)
                now += 4 * MS
                emitted = [*drafted[: accepted or 0], token + 5]
                chances = {"p": [0.5] * len(drafted), "q": [0.25] * len(drafted)} if probabilities else {}
                words = {"texts": [f"w{i} " for i in emitted]} if texts else {}
                rec.round(drafted, accepted or 0, emitted, time=now, **chances, **words)
                length, token = length + len(emitted), token + 10
        if load is not None:
            with path.open("a") as file:
                file.write(f"{to_json(Occupancy(OTHERS, now, load, 0))}\n")
        (trace,) = read_traces(path).traces
        return trace

    return run


def test_a_complete_recording_lacks_nothing(record):
    trace = record(2, 3, sampling={"temperature": 0}, rule="match")
    assert origin(trace.header).unknown == ()
    (run,) = view_model([trace])["runs"]
    assert run["note"] == ""
    assert (run["imported"], run["greedy"], run["timed"]) == (False, True, True)
    assert [cache["model"] for cache in run["caches"]] == ["target", "drafter"]
    assert run["figures"]["acceptance_rate"] == "83 %"
    assert [t["text"] for t in run["tokens"]][:2] == ["w10 ", "w11 "]


@pytest.mark.parametrize(
    ("left_out", "unknown"),
    [
        ({"ids": ()}, "prompt"),
        ({"texts": False}, "texts of the tokens"),
        ({"probabilities": False}, "probabilities"),
        ({"context": False}, "rows cached before each forward"),
        ({"drafting": False}, "forwards of the drafter"),
        ({"load": None}, "load by other programs"),
    ],
)
def test_what_is_left_out_is_unknown(record, left_out, unknown):
    trace = record(2, 3, **left_out)
    assert origin(trace.header).unknown == (unknown,)
    (run,) = view_model([trace])["runs"]
    assert run["note"] == f"Not recorded: {unknown}."
    assert run["figures"]["acceptance_rate"] == "83 %"
    assert (run["caches"] == []) == (unknown == "rows cached before each forward")
    assert (run["figures"]["c"] == "unknown") == (unknown == "forwards of the drafter")
    assert "w15" in render_report([trace]) or not left_out.get("texts", True)
    assert to_perfetto(trace)["traceEvents"]


def test_nothing_is_missing_from_a_recording_that_has_just_begun(record):
    trace = record(2)
    trace.footer = None
    for rows in (trace.commits, trace.decisions, trace.rounds):
        rows.clear()
    measure(trace)
    assert origin(trace.header).unknown == ()


def test_without_spans_there_are_no_times(record):
    trace = record(2, 3, spans=False)
    (run,) = view_model([trace])["runs"]
    assert not run["timed"]
    assert run["figures"]["tokens_per_second"] == "unknown"
    assert run["figures"]["acceptance_rate"] == "83 %"
    with pytest.raises(UsageError, match="has no times"):
        diff(trace, trace)


def test_drafts_of_unknown_spans_are_not_called_wasted(record, tmp_path):
    """Such as those of a process that joined, if their ids were not sent."""
    path = tmp_path / "joined.jsonl"
    with specscope.record(path, devices=DEVICES) as rec:
        rec.start(0)
        rec.add("draft", 0, MS, "d")
        rec.add("verify", MS, 2 * MS, "t")
        rec.round([1], 1, [1, 2], time=2 * MS, draft=-1)
    (trace,) = read_traces(path).traces
    assert "span of each draft" in origin(trace.header).unknown
    (run,) = view_model([trace])["runs"]
    assert run["figures"]["wasted_device_seconds"] == "unknown"
    assert list(chain.from_iterable(t["spans"]["fate"] for t in run["tracks"])) == ["unknown", "kept"]


def test_a_batch_has_no_padding_that_nobody_recorded(tmp_path):
    path = tmp_path / "batch.jsonl"
    with specscope.record(path, devices=DEVICES) as rec:
        rec.prompt(ids=[1])
        rec.prompt(ids=[2])
        rec.start(0)
        rec.add("verify", 0, MS, "t", rows=4, context=2, sequence=-1)
        for sequence in range(2):
            rec.round([3], 1, [3, 4], sequence=sequence, time=MS)
    (trace,) = read_traces(path).traces
    (run,) = view_model([trace])["runs"]
    assert run["batch"] == 2
    assert run["packings"] == []
    assert run["figures"]["attention_cells"] == "unknown"
    assert run["figures"]["padding_ratio"] == "0 %"


def test_a_recorded_plain_loop_is_the_baseline_of_recorded_loops(record):
    plain, fast = record(None, None, None), record(2, 3)
    assert [c.baseline for c in comparisons([[fast], [plain]])] == [1, 1]
    other = record(2, 3, ids=(7,))
    assert comparisons([[other], [plain]])[0].reason == "different prompt"
    by_text = [record(None, ids=()), record(None, ids=())]
    assert [c.baseline for c in comparisons([[run] for run in by_text])] == [0, 0]
    for run in by_text:
        run.header = replace(run.header, prompts=("",))
    assert [c.baseline for c in comparisons([[run] for run in by_text])] == [0, 1]
    assert view_model([plain])["runs"][0]["note"] == (
        "no drafts in this run: every round was a plain target forward"
    )


def race_of(*traces):
    return view_model(list(traces))["race"], view_model(list(traces))["runs"][0]["verdict"]


def test_a_recorded_race_under_load_has_no_winner(record):
    """Under the load of other programs, and where it was not recorded, which the views then say."""
    line, said = race_of(record(2, 3, 3), record(None, None, None))
    assert line.startswith("Fastest: mine")
    assert "load by other programs" not in said["summary"]
    cores = record(2).header.environment["cores"]
    for loads in ((0.6 / cores, 0.0), (0.0, 0.6 / cores)):
        line, said = race_of(record(2, 3, 3, load=loads[0]), record(None, None, None, load=loads[1]))
        assert line.startswith("No winner: other programs used this machine")
        assert said["summary"].endswith("× under the load of other programs.")
        assert (said["reason"], said["advice"]) == ("", "")
    for loads in ((None, 0.0), (0.0, None)):
        traces = record(2, 3, 3, load=loads[0]), record(None, None, None, load=loads[1])
        line, said = race_of(*traces)
        assert line == "No winner: the load by other programs was not recorded."
        assert said["summary"].endswith(" The load by other programs was not recorded.")
        assert render_report(traces).count("not recorded</td>") == 1


def test_a_recorded_loop_is_not_compared_with_a_run_of_another_clock(record):
    fast = record(2, 3)
    with specscope.open(runtime="virtual", profile="pearl-3xA100") as cluster:
        own = cluster.run("autoregressive", [1, 2], limits=specscope.Limits(4))
    assert comparisons([[fast], [own]])[0].baseline is None


def test_two_recordings_differ_by_token_and_by_time(record):
    found = diff(record(2, 3), record(None, None))
    assert found.first_difference.index == 0
    assert "engine" not in found.not_comparable
    (waterfall,) = found.waterfalls
    assert sum(step.change for step in waterfall.steps) == found.difference == -2 * MS + 2 * MS


def test_a_what_if_needs_drafts_and_output_only(record):
    bare = record(2, 3, 0, 3, ids=(), texts=False, probabilities=False, context=False)
    result = what_if(bare, Change(method="speculative", profile="pearl-3xA100"))
    assert result.replay.token_ids() == bare.token_ids()
    assert result.decided >= 8


def test_a_what_if_names_what_it_lacks(record):
    bare = record(2, 3, ids=(), probabilities=False)
    for change, message in (
        (Change(method="llma", profile="A100-40G"), "copies from the text, and the token ids of run"),
        (Change(method="tree", profile="pearl-3xA100"), "has no ranks of tokens that were not drafted"),
        (Change(method="pearl"), "name a cluster for the what-if with --profile"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            what_if(bare, change)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="tested no draft of a drafter"):
        what_if(record(None, None), Change(method="pearl", profile="pearl-3xA100"))


@pytest.mark.parametrize("entry", [5, [], {"unknown": 3}])
def test_an_entry_of_another_form_is_refused(record, entry):
    trace = record(2)
    trace.header.environment["recorded"] = entry
    with pytest.raises(ValueError, match=r"^environment\.recorded"):
        check(trace)


def test_an_unknown_fact_is_no_fault(record):
    trace = record(2)
    trace.header.environment["recorded"] |= {"unknown": ["texts of the tokens", "luck"]}
    check(trace)
    found = origin(trace.header)
    assert found
    assert set(found.unknown) == {"texts of the tokens"}
    assert view_model([trace])["runs"]
