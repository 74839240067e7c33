"""Recordings of `specscope.record` in the views: what they lack is unknown, the rest works."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import chain

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import OTHERS, Occupancy
from specscope.engine.trace.jsonl import to_json
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.report import render_report
from specscope.traces.facts.checks import check
from specscope.traces.facts.comparable import comparisons
from specscope.traces.facts.imported import origin
from specscope.traces.facts.metrics import measure
from specscope.traces.judge.diff import diff
from specscope.traces.view.document import view_model
from specscope.traces.whatif.replay import Change, what_if
from tests.traces.samples import MS, read_file, shown, with_header

DEVICES = {"d": "drafter", "t": "target"}


@pytest.fixture
def record(tmp_path):
    """Record rounds on a made-up clock: how many of three drafts each accepted, None for no draft.

    Options leave facts out; the trace is read from the file. `load` is the share of all cores that
    other programs used, which the recorder does not know of a made-up clock.
    """

    def run(*rounds, ids=(1, 2), load=0.0, out=(), **given):
        path = tmp_path / "run.jsonl"
        devices = DEVICES if any(r is not None for r in rounds) else {"t": "target"}
        with specscope.record(path, devices=devices, method="mine", **given) as rec:
            rec.prompt("Hi", ids=ids)
            rec.start(0)
            now, length, token = 0, len(ids), 10
            for accepted in rounds:
                drafted = [] if accepted is None else [token, token + 1, token + 2]
                rows = {"context": -1 if "context" in out else length}
                if drafted and not {"spans", "drafting"} & {*out}:
                    rec.add("draft", now, now + MS, "d", rows=1, **rows)
                now += MS
                if "spans" not in out:
                    rec.add("verify", now, now + 4 * MS, "t", rows=len(drafted) + 1, **rows)
                now += 4 * MS
                emitted = [*drafted[: accepted or 0], token + 5]
                known = {
                    "p": [0.5] * len(drafted),
                    "q": [0.25] * len(drafted),
                    "texts": [f"w{i} " for i in emitted],
                }
                known = {name: values for name, values in known.items() if name not in out}
                rec.round(drafted, accepted or 0, emitted, time=now, **known)
                length, token = length + len(emitted), token + 10
        if load is not None:
            with path.open("a") as file:
                file.write(f"{to_json(Occupancy(OTHERS, now, load, 0))}\n")
        return read_file(path)

    return run


def test_a_complete_recording_lacks_nothing(record):
    trace = record(2, 3, sampling={"temperature": 0}, rule="match")
    assert origin(trace.header).unknown == ()
    run = shown(trace)
    assert (run["note"], run["imported"], run["greedy"], run["timed"]) == ("", False, True, True)
    assert [cache["model"] for cache in run["caches"]] == ["target", "drafter"]
    assert run["figures"]["acceptance_rate"] == "83 %"
    assert [t["text"] for t in run["tokens"]][:2] == ["w10 ", "w11 "]
    for rows in (trace.commits, trace.decisions, trace.rounds):
        rows.clear()
    trace.footer = None
    measure(trace)
    assert origin(trace.header).unknown == (), "a recording that has just begun"


@pytest.mark.parametrize(
    ("left_out", "unknown"),
    [
        ({"ids": ()}, "prompt"),
        ({"out": ["texts"]}, "texts of the tokens"),
        ({"out": ["p", "q"]}, "probabilities"),
        ({"out": ["context"]}, "rows cached before each forward"),
        ({"out": ["drafting"]}, "forwards of the drafter"),
        ({"load": None}, "load by other programs"),
    ],
)
def test_what_is_left_out_is_unknown(record, left_out, unknown):
    trace = record(2, 3, **left_out)
    assert origin(trace.header).unknown == (unknown,)
    run = shown(trace)
    assert run["note"] == f"Not recorded: {unknown}."
    assert run["figures"]["acceptance_rate"] == "83 %"
    assert (run["caches"] == []) == (unknown == "rows cached before each forward")
    assert (run["figures"]["c"] == "unknown") == (unknown == "forwards of the drafter")
    assert ("w15" in render_report([trace])) == (unknown != "texts of the tokens")
    assert to_perfetto(trace)["traceEvents"]


def test_several_drafters_are_told_apart_by_their_devices(tmp_path):
    devices = {"copies": "drafter", "small": "drafter", "t": "target"}
    with specscope.record(tmp_path / "run.jsonl", devices=devices) as rec:
        rec.start(0)
        rec.add("draft", 0, MS, "copies", rows=0)
        rec.round([1, 2], 2, [1, 2, 3], time=2 * MS)
        rec.add("prefill", MS, 2 * MS, "small", rows=3)
        rec.add("draft", 2 * MS, 8 * MS, "small", rows=1)
        rec.round([4, 5, 6], 1, [4, 9], time=9 * MS)
    trace = read_file(tmp_path / "run.jsonl")
    assert shown(trace)["verdict"]["drafter"] == (
        "Accepted by drafter: copies 2 of 2 tested tokens (100 %), 0.5 ms of drafting each; "
        "small 1 of 2 tested tokens (50 %), 2 ms of drafting each."
    )
    for d in trace.decisions:
        object.__setattr__(d, "draft_span", 0)
    assert shown(trace)["verdict"]["drafter"] == "", "one drafter has no need of it"


def test_without_spans_there_are_no_times(record):
    trace = record(2, 3, out=["spans"])
    run = shown(trace)
    assert not run["timed"]
    figures = run["figures"]
    assert (figures["tokens_per_second"], figures["acceptance_rate"]) == ("unknown", "83 %")
    with pytest.raises(UsageError, match="has no times"):
        diff(trace, trace)


def test_drafts_of_unknown_spans_are_not_called_wasted(tmp_path):
    """Such as those of a process that joined, if their ids were not sent."""
    path = tmp_path / "joined.jsonl"
    with specscope.record(path, devices=DEVICES) as rec:
        rec.start(0)
        rec.add("draft", 0, MS, "d")
        rec.add("verify", MS, 2 * MS, "t")
        rec.round([1], 1, [1, 2], time=2 * MS, draft=-1)
    trace = read_file(path)
    assert "span of each draft" in origin(trace.header).unknown
    run = shown(trace)
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
    run = shown(read_file(path))
    figures = [run["figures"][name] for name in ("attention_cells", "padding_ratio")]
    assert (run["batch"], run["packings"], figures) == (2, [], ["unknown", "0 %"])


def baselines(*runs):
    return [c.baseline for c in comparisons([[run] for run in runs])]


def test_a_recorded_plain_loop_is_the_baseline_of_recorded_loops_only(record):
    plain, fast = record(None, None, None), record(2, 3)
    assert baselines(fast, plain) == [1, 1]
    assert comparisons([[record(2, 3, ids=(7,))], [plain]])[0].reason == "different prompt"
    by_text = [record(None, ids=()), record(None, ids=())]
    assert baselines(*by_text) == [0, 0]
    assert baselines(*(with_header(run, prompts=("",)) for run in by_text)) == [0, 1]
    assert shown(plain)["note"] == "no drafts in this run: every round was a plain target forward"
    with specscope.open(runtime="virtual", profile="pearl-3xA100") as cluster:
        other = cluster.run("autoregressive", [1, 2], limits=specscope.Limits(4))
    assert baselines(fast, other)[0] is None, "a run of another clock"


UNKNOWN = "No winner: the load by other programs was not recorded."
BUSY = "No winner: other programs used this machine"
RACES = [
    ((0.0, 0.0), "Fastest: mine", ""),
    *((loads, BUSY, "× under the load of other programs.") for loads in ((0.6, 0.0), (0.0, 0.6))),
    *(
        (loads, UNKNOWN, " The load by other programs was not recorded.")
        for loads in ((None, 0.0), (0.0, None))
    ),
]


@pytest.mark.parametrize(("loads", "line", "end"), RACES)
def test_a_recorded_race_under_load_has_no_winner(record, loads, line, end):
    """Under the load of other programs, and where it was not recorded, which the views then say."""
    cores = record(2).header.environment["cores"]
    loads = [load if load is None else load / cores for load in loads]
    traces = record(2, 3, 3, load=loads[0]), record(None, None, None, load=loads[1])
    document = view_model(list(traces))
    said = document["runs"][0]["verdict"]
    assert document["race"].startswith(line)
    assert said["summary"].endswith(end)
    assert ("load" in said["summary"]) == bool(end)
    if line == BUSY:
        assert (said["reason"], said["advice"]) == ("", "")
    assert render_report(traces).count("not recorded</td>") == (line == UNKNOWN)


def test_two_recordings_differ_by_token_and_by_time(record):
    found = diff(record(2, 3), record(None, None))
    assert found.first_difference.index == 0
    assert "engine" not in found.not_comparable
    (waterfall,) = found.waterfalls
    assert sum(step.change for step in waterfall.steps) == found.difference == -2 * MS + 2 * MS


def test_a_what_if_needs_drafts_and_output_only_and_names_what_it_lacks(record):
    bare = record(2, 3, 0, 3, ids=(), out=["texts", "p", "q", "context"])
    result = what_if(bare, Change(method="speculative", profile="pearl-3xA100"))
    assert result.replay.token_ids() == bare.token_ids()
    assert result.decided >= 8
    for change, message in (
        (Change(method="llma", profile="A100-40G"), "copies from the text, and the token ids of run"),
        (Change(method="tree", profile="pearl-3xA100"), "has no ranks of tokens that were not drafted"),
        (Change(method="pearl"), "name a cluster for the what-if with --profile"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            what_if(bare, change)
        assert "\n" not in str(error.value)


def test_an_unknown_fact_is_no_fault(record):
    trace = record(2)
    trace.header.environment["recorded"] |= {"unknown": ["texts of the tokens", "luck"]}
    check(trace)
    assert set(origin(trace.header).unknown) == {"texts of the tokens"}
    assert shown(trace)


# Random loops.

TOKENS, OWN = 5, 9


def draw_round(draw: random.Random) -> dict:
    """Return a chain or a tree of up to five tokens, and a path of it that is accepted."""
    size, tree = draw.randrange(6), draw.random() < 0.4
    drafted = [draw.randrange(TOKENS) for _ in range(size)]
    parents = [draw.randrange(-1, i) if tree and i else i - 1 for i in range(size)]
    path, node = [], -1
    while draw.random() < 0.6 and (children := [i for i in range(size) if parents[i] == node]):
        node = draw.choice(children)
        path.append(node)
    chances = [draw.random() for _ in drafted] if draw.random() < 0.5 else None
    emitted = [*(drafted[i] for i in path), OWN]
    return {"drafted": drafted, "parents": parents, "accepted": path, "emitted": emitted, "q": chances}


def draw_recording(draw: random.Random, path) -> None:
    rule, sequences, running = draw.choice(["", "ratio", "typical"]), draw.choice([1, 1, 2, 3]), set()
    with specscope.record(path, devices=["drafter", "target"], rule=rule) as rec:
        for sequence in range(sequences):
            rec.prompt(ids=[1, 2, 3][: draw.choice([0, 3])])
            running.add(sequence)
        if draw.random() < 0.5:
            with rec.span("prefill", "target", context=0, sequence=-1):
                rec.round(emitted=[7])
        for _ in range(draw.randrange(8)):
            for _ in range(draw.randrange(3)):
                with rec.span("draft", sequence=draw.choice([-1, 0])):
                    pass
            if draw.random() < 0.8:
                with rec.span(draw.choice(["verify", "pre-verify"]), rows=2, sequence=-1):
                    pass
            for sequence in sorted(running):
                given = draw_round(draw)
                if draw.random() < 0.1:
                    running.remove(sequence)
                    given |= {"emitted": given["emitted"][: draw.randrange(1, 7)], "reason": "eos"}
                rec.round(**given, sequence=sequence, draft=draw.choice([None, None, -1]))
            if draw.random() < 0.2:
                rec.discard([1, 2], ahead=draw.randrange(3))


@pytest.mark.parametrize("seed", range(20))
def test_all_views_and_files_take_a_random_recording(seed, tmp_path, store):
    draw, path = random.Random(seed), tmp_path / "random.jsonl"
    draw_recording(draw, path)
    trace = read_file(path)
    assert len(shown(trace)["tokens"]) == len(trace.commits)
    assert render_report([trace])
    if trace.spans:
        assert to_perfetto(trace)["traceEvents"]
    store.insert(trace)
    assert store.load(trace.header.run_id).token_ids() == trace.token_ids()
    with suppress(UsageError):  # a batch, or nothing was tested
        replayed = what_if(trace, Change(method="speculative", profile="pearl-3xA100")).replay
        assert replayed.token_ids() == trace.token_ids()
