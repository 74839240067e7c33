"""Sections of the document about devices: pools of servers, layers, KV caches, requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specscope
from specscope.engine.run.targets import TargetModel
from specscope.engine.trace.events import Commit, Decision, Device, Footer, Part, Round, Routed, Span
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.traces.facts.checks import check
from specscope.traces.facts.comparable import batch_size, comparisons
from specscope.traces.facts.fates import preempted, sp_degree, wasted
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.requests import figures, load_of, requests, stops_paying
from specscope.traces.facts.waiting import working_devices
from specscope.traces.view.caches import caches
from specscope.traces.view.experts import MOST, experts
from specscope.traces.view.layers import layers
from specscope.traces.view.servers import server_pool
from specscope.traces.view.tracks import queue, span_fates
from tests.engine.worker.harness import Flat, scripted_cluster
from tests.traces.samples import MS, routed, sample_trace, shown, with_header
from tests.traces.scripted import PROMPT, drafting, dsi, easyspec, say

# The pool of target servers: the positions that each forward scored, and its outcome.


def rows(pool):
    """Return each forward as a tuple without times."""
    names = ("server", "first", "own", "last", "outcome", "emitted")
    return list(zip(*(pool["forwards"][name] for name in names), strict=True))


def outcomes(trace):
    return [row[4] for row in rows(server_pool(trace))]


def by_hand(status="done"):
    """Return a run on two servers: one rejects token 1, then the other one is preempted."""
    base = sample_trace("speculative")
    servers = (Device(f"gpu{i}", "target", f"GPU {i} · target", "virtual") for i in (1, 2))
    devices = (base.header.devices[0], *servers)
    trace = Trace(replace(base.header, devices=devices, prompt_ids=((7, 8, 9),)))
    for event in (
        Span(0, "gpu1", "prefill", 0, MS, "target", 0, 0, 2, 0, "done"),
        Span(1, "gpu0", "draft", MS, 2 * MS, "drafter", 1, 0, 1, 2, "done"),
        Span(2, "gpu1", "verify", 2 * MS, 5 * MS, "target", 1, 0, 2, 2, "done"),
        Span(3, "gpu0", "draft", 2 * MS, 3 * MS, "drafter", 1, 0, 1, 3, "done"),
        Span(4, "gpu2", "verify", 3 * MS, 6 * MS, "target", 1, 0, 5, 0, "cancelled"),
        Span(5, "gpu0", "draft", 3 * MS, 6 * MS, "drafter", 1, 0, 1, 4, "cancelled"),
        Decision(1, 0, 0, -1, 3, 4, 0.9, 0.5, 0.1, "ratio", "accepted", 1, 2),
        Decision(1, 0, 1, 0, 4, 5, 0.1, 0.5, 0.9, "ratio", "rejected", 3, 2),
        Commit(1, 0, 3, 4, "accepted", " a", 5 * MS),
        Commit(1, 0, 4, 6, "corrected", " b", 5 * MS),
        Round(1, 0, "verify", 2, 1, 2, 5 * MS, 2),
        Span(6, "gpu2", "verify", 6 * MS, 9 * MS, "target", 2, 0, 5, 0, "done"),
        Commit(2, 0, 5, 6, "plain", " c", 9 * MS),
        Round(2, 0, "plain", 0, 0, 1, 9 * MS, 6),
        Footer(status, ("length",), (" a b c",), 9 * MS),
    ):
        trace.add(event)
    return trace


def test_positions_outcomes_and_figures_of_a_pool_by_hand():
    pool, metrics = server_pool(by_hand()), measure(by_hand())
    assert [(s["device"], s["label"]) for s in pool["servers"]] == [
        ("gpu1", "GPU 1 · target"),
        ("gpu2", "GPU 2 · target"),
    ]
    assert [pool["forwards"][name] for name in ("id", "start", "end")] == [[2, 4, 6], [1, 2, 5], [4, 5, 8]]
    assert rows(pool) == [
        (0, 0, 0, 1, "rejected", 2),
        # Its rows 0 to 2 fill its cache up to the prompt's end: they score nothing.
        (1, 0, 2, 2, "preempted", 0),
        (1, 2, 2, 2, "decided", 1),
    ]
    assert pool["drafts"] == [(1.0, 0, "accepted"), (2.0, 1, "rejected")]
    assert sp_degree(by_hand()) == metrics.sp_degree == 2
    assert metrics.preempted_device_seconds == 0.006, "a verification and a draft of 3 ms each"
    assert metrics.wasted_device_seconds == 0.007, "and the draft of token 1, which was wrong"


def test_work_stopped_with_the_run_is_not_preempted():
    trace = by_hand("cancelled")
    trace.add(Span(7, "gpu1", "verify", 6 * MS, 9 * MS, "target", 3, 0, 2, 4, "cancelled"))
    trace.add(Span(8, "gpu0", "draft", 6 * MS, 9 * MS, "drafter", 3, 0, 1, 5, "cancelled"))
    assert {s.id for s in preempted(trace)} == {4, 5}
    assert outcomes(trace) == ["rejected", "preempted", "decided", "stopped"]
    assert measure(trace).preempted_device_seconds == 0.006


def test_a_forward_of_a_run_in_progress_is_open_until_judged():
    trace = by_hand()
    trace.footer, trace.rounds = None, trace.rounds[:1]
    trace.commits = [c for c in trace.commits if c.step == 1]
    assert outcomes(trace) == ["rejected", "preempted", "open"]


def test_a_pool_has_several_servers_or_one_that_is_preempted_and_one_sequence():
    one = dsi([], 4, sp=1, lookahead=4, drafter=300)
    assert (len(server_pool(one)["servers"]), sp_degree(one)) == (1, 1)
    assert measure(one).preempted_device_seconds > 0
    turns = replace(by_hand(), spans=[s for s in by_hand().spans if s.outcome == "done"])
    assert (len(server_pool(turns)["servers"]), sp_degree(turns)) == (2, 1), "one after the other"
    batch = with_header(by_hand(), prompts=("a", "b"), prompt_ids=((7, 8, 9), (7,)))
    assert server_pool(batch) is None
    trace = sample_trace("speculative")
    last = max(trace.spans, key=lambda s: s.end)
    stopped = replace(last, id=10_000, step=last.step + 1, outcome="cancelled")
    footer = replace(trace.footer, status="cancelled")
    assert server_pool(replace(trace, spans=[*trace.spans, stopped], footer=footer)) is None
    twins = [replace(s, id=1000 + s.id, device="gpu2", rank=1) for s in trace.spans if s.kind == "verify"]
    devices = (*trace.header.devices, Device("gpu2", "target", "GPU 2 · target", "virtual"))
    split = with_header(replace(trace, spans=[*trace.spans, *twins]), devices=devices)
    assert server_pool(split) is None, "a forward on several devices at once is one server"


@settings(deadline=None, max_examples=15)
@given(st.lists(st.booleans(), max_size=12), st.integers(1, 5), st.integers(1, 4))
def test_positions_are_those_the_method_asked_for(right, sp, more):
    asked, score = [], TargetModel.score

    def recorded(self, prefix, drafts):
        asked.append((len(prefix) - len(PROMPT), len(drafts)))
        return score(self, prefix, drafts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetModel, "score", recorded)
        trace = dsi(right, 10, sp=sp, lookahead=-(-4 // sp) + more - 1)
    pool = server_pool(trace)
    if pool is None:
        assert sp == 1
        assert not any(s.outcome == "cancelled" for s in trace.spans)
        return
    # A forward cancelled before it began has no span; the others keep their order.
    scored = [(first, last) for _, first, _, last, _, _ in rows(pool)]
    rest = iter([(prefix, prefix + drafted) for prefix, drafted in asked])
    assert all(pair in rest for pair in scored), (scored, asked)
    assert len(scored) >= len({r.span for r in trace.rounds})
    assert shown(trace)["pool"] == pool


def test_two_lines_of_equal_length_are_two_forwards():
    first, second = drafting([True, False, True, True]), drafting([True, True, True, True])
    with scripted_cluster(say, first, Flat(800, 200, preempts=True), [second]) as cluster:
        config = {"lookahead": 1, "sp": 8, "drafters": 2}
        trace = cluster.run("dsi", PROMPT, config=config, limits=cluster.limits(5))
    forwards = server_pool(trace)["forwards"]
    at = [i for i, start in enumerate(forwards["start"]) if start == pytest.approx(0.4)]
    assert len(at) == 2, "the lines part at token 1, which both have after 0.4 ms"
    assert [forwards["outcome"][i] for i in at].count("preempted") == 1
    assert len(forwards["id"]) == sum(s.kind in ("verify", "pre-verify") for s in trace.spans)


# Layer groups and calibration.


def test_one_device_has_no_exchanges_and_no_groups():
    with specscope.open(runtime="local-thread", device="cpu") as cluster:
        trace = cluster.run("easyspec", "Hi", config={"devices": 1}, limits=Limits(8))
    view = layers(trace)
    assert (len(view["devices"]), view["groups"]) == (1, [])
    assert set(view["rounds"][0]["parts"]["kind"]) == {"attention"}
    assert layers(easyspec(size=1)) is None, "no fuzzy forwards"


def test_a_forward_of_several_devices_is_one_forward_with_one_fate():
    trace = easyspec(24, drafter=lambda path: say(path) if len(path) % 4 else 5, gamma=4)
    fates, spans = span_fates(trace), {s.id: s for s in trace.spans}
    assert {fates[s.id] for s in trace.spans if s.kind == "draft"} == {"kept", "rejected", "discarded"}
    assert all(fates[s.id] == fates[s.id - s.rank] for s in trace.spans)
    lost = {s.id for s in wasted(trace)}
    assert lost
    assert all((s in lost) == (s - spans[s].rank in lost) for s in spans)
    assert sp_degree(trace) == 1, "a target split over two devices is one server"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_growing_trace_has_the_drafts_so_far(steps):
    trace = easyspec(gamma=3)
    trace.spans = [s for s in trace.spans if s.step <= steps]
    trace.footer = None
    assert [r["step"] for r in layers(trace)["rounds"]] == list(range(1, steps + 1))


# The rows of KV caches, from the rows that forwards fed and found.


def traced(*spans, fuzzy=()):
    """Return a run of (kind, step, rows found, rows fed[, model[, outcome]])."""
    made = []
    for number, (kind, step, context, fed, *more) in enumerate(spans):
        model, outcome = (*more, *("drafter", "done")[len(more) :])
        times = (10 * number, 10 * number + 9)
        device = "gpu0" if model == "drafter" else "gpu1"
        made.append(Span(number, device, kind, *times, model, step, 0, fed, context, outcome))
    parts = [Part(number, "attention", 0, 1, 2) for number in fuzzy]
    return replace(sample_trace("speculative"), spans=made, parts=parts)


def cached(trace, number=0):
    """Return the rows of each state after each step."""
    view = caches(trace)[number]
    steps = enumerate(view["step"])
    return {step: {name: n[i] for name, n in view["rows"].items() if n[i]} for i, step in steps}


BEGUN = [("prefill", 0, 0, 6), ("calibrate", 1, 6, 1), ("draft", 1, 7, 1), ("draft", 1, 8, 1)]
CACHES = {
    "rows that the next step finds are kept, the others rolled back": (
        traced(
            ("prefill", 0, 0, 10),
            *(("draft", 1, n, 1) for n in (10, 11, 12)),
            ("draft", 2, 11, 2),
            ("draft", 2, 13, 1),
        ),
        {0: {"new": 10}, 1: {"valid": 10, "new": 1, "lost": 2}, 2: {"valid": 11, "unknown": 3}},
    ),
    "rows cached before a step and dropped after it are rolled back": (
        traced(
            ("prefill", 0, 0, 4),
            *(("draft", *w) for w in ((1, 4, 4), (2, 8, 1), (3, 5, 1), (3, 3, 1), (4, 4, 1))),
        ),
        {2: {"valid": 5, "lost": 4}, 3: {"valid": 3, "new": 1, "lost": 3}, 4: {"valid": 4, "unknown": 1}},
    ),
    "fuzzy rows are replaced by calibrated ones": (
        traced(*BEGUN, ("calibrate", 2, 7, 3), ("draft", 2, 10, 1), ("calibrate", 3, 10, 1), fuzzy=(2, 3, 5)),
        {
            1: {"valid": 6, "calibrated": 1, "lost-fuzzy": 2},
            2: {"valid": 7, "calibrated": 3, "lost-fuzzy": 1},
        },
    ),
    "fuzzy rows stay": (
        traced(*BEGUN, ("draft", 2, 9, 1), ("draft", 3, 10, 1), fuzzy=(2, 3, 5, 4)),
        {1: {"valid": 6, "calibrated": 1, "fuzzy": 2}, 2: {"valid": 7, "fuzzy": 3}},
    ),
    "rows of unknown origin are not invented": (
        traced(("prefill", 0, 0, 5), ("draft", 1, 5, 1), ("draft", 2, 9, 1)),
        {1: {"valid": 5, "new": 1}, 2: {"valid": 6, "unknown": 4}},
    ),
    "rows of a cancelled forward are unknown": (
        traced(("prefill", 0, 0, 5), ("draft", 1, 5, 2, "drafter", "cancelled"), ("draft", 2, 6, 1)),
        {1: {"valid": 5, "lost": 1, "unknown": 1}},
    ),
    "numbers below zero in a file count as none": (
        traced(("prefill", 0, 0, 5), ("draft", 1, -3, -2), ("draft", 2, 4, 1)),
        {0: {"lost": 5}, 1: {}, 2: {"unknown": 5}},
    ),
}


@pytest.mark.parametrize(("trace", "expected"), CACHES.values(), ids=CACHES)
def test_the_rows_of_a_cache(trace, expected):
    found = cached(trace)
    assert {step: found[step] for step in expected} == expected


def test_rows_that_another_device_sent_are_known_and_sent_ones_change_nothing():
    trace = traced(
        ("prefill", 0, 0, 6, "target"),
        ("communicate", 0, 0, 6, "target"),
        *(("communicate", 0, 0, 4), ("communicate", 0, 4, 2), ("draft", 1, 6, 1)),
        *(("verify", 1, 6, 2, "target"), ("communicate", 1, 6, 2, "target"), ("draft", 2, 7, 1)),
    )
    assert cached(trace, 0) == {0: {"new": 6}, 1: {"valid": 6, "unknown": 2}}
    assert cached(trace, 1) == {0: {"new": 6}, 1: {"valid": 6, "new": 1}, 2: {"valid": 7, "unknown": 1}}


def batch_of(*spans, rounds):
    ids = ((1, 2, 3), (1, 2, 3, 4, 5))
    trace = with_header(traced(*spans), prompts=("a", "b"), prompt_ids=ids)
    shared = [replace(span, sequence=-1) for span in trace.spans]
    return replace(trace, spans=shared, rounds=[Round(*row) for row in rounds])


def test_a_model_whose_forwards_find_no_rows_has_no_cache():
    heads = traced(
        *(("draft", i, 0, 1) for i in (1, 2, 3)),
        ("prefill", 0, 0, 5, "target"),
        ("verify", 1, 5, 3, "target"),
    )
    assert [view["model"] for view in caches(heads)] == ["target"], "the drafter's forwards find no rows"


def test_the_sequences_of_a_padded_batch_have_padding():
    rounds = [(1, 0, "verify", 3, 3, 4, 20, 0), (1, 1, "verify", 1, 0, 1, 20, 0)]
    rounds += [(2, i, "plain", 0, 0, 1, 30, 1) for i in (0, 1)]
    batch = batch_of(("verify", 1, 8, 8, "target"), ("verify", 2, 14, 2, "target"), rounds=rounds)
    assert cached(batch, 0) == {
        1: {"valid": 2, "new": 4, "padded": 2},
        2: {"valid": 6, "unknown": 1, "padded": 1},
    }
    assert cached(batch, 1) == {
        1: {"valid": 4, "new": 1, "lost": 1, "padded": 2},
        2: {"valid": 5, "unknown": 1, "padded": 2},
    }


# Requests under load, on a run written by hand.

LOAD = {"arrivals": [0, 5 * MS, 90 * MS], "batch": 2, "chunk": 8}


def served() -> Trace:
    """Return a run with two served requests and one that still waits when the run is stopped.

    Request 0 commits 1, 3 and 1 tokens at 20, 40 and 60 ms; request 1 one token at 60 ms.
    """
    facts = {"prompts": ("a", "b", "c"), "prompt_ids": ((1, 2), (3,), (4,)), "environment": {"load": LOAD}}
    made = Trace(replace(sample_trace("speculative").header, **facts))
    made.add(Span(0, "gpu0", "prefill", 2 * MS, 4 * MS, "target", 1, 0, 1, 0, "done"))
    for span, (start, end) in enumerate([(4, 20), (20, 40), (40, 60)], 1):
        made.add(Span(span, "gpu0", "verify", start * MS, end * MS, "target", span, -1, 2, 0, "done"))
    position = 2
    for step, (time, tokens) in enumerate([(20, 1), (40, 3), (60, 1)], 1):
        for _ in range(tokens):
            made.add(Commit(step, 0, position, 5, "plain", "x", time * MS))
            position += 1
        made.add(Round(step, 0, "verify", 3, tokens - 1, tokens, time * MS, step))
    made.add(Commit(3, 1, 1, 5, "plain", "y", 60 * MS))
    made.add(Round(3, 1, "plain", 0, 0, 1, 60 * MS, 3))
    made.add(Footer("cancelled", ("eos", "length", ""), ("xxxxx", "y", ""), 60 * MS))
    return made


def test_requests_arrive_begin_commit_and_end():
    first, second, waiting = requests(served())
    assert (first.arrival, first.begin, first.ttft) == (0, 2 * MS, 20 * MS)
    assert (second.arrival, second.begin, second.ttft) == (5 * MS, 40 * MS, 55 * MS)
    assert (first.gaps, first.tpot) == ([20 * MS, 20 * MS], 10 * MS), "tokens of a round are one gap"
    assert (second.gaps, second.tpot) == ([], None)
    assert (waiting.begin, waiting.ttft, waiting.finished) == (None, None, False)


def test_figures_of_requests():
    expected = {"requests": 3, "finished": 2, "tokens": 6, "seconds": 0.06, "ttft_ms": 37.5}
    expected |= {"tokens_per_second": 100, "busy_tokens_per_second": 100, "ttft_p95_ms": 20 + 0.95 * 35}
    expected |= {"tpot_ms": 10, "tpot_p95_ms": 10, "itl_ms": 20, "itl_p95_ms": 20}
    expected |= {"good": 1, "good_share": 1 / 3, "goodput": 1 / 0.06}
    found = figures(served(), 30, 10)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert (figures(served(), 30, 9.9)["good"], figures(served(), 60, 10)["good"]) == (0, 2)
    nothing = figures(Trace(served().header), 1, 1)
    unknown = ("tokens_per_second", "ttft_p95_ms", "itl_ms", "goodput")
    assert [nothing[name] for name in unknown] == [None] * 4, "before the first token"


def test_idle_time_is_not_busy():
    run = with_header(served(), environment={"load": {**LOAD, "arrivals": [0, 95 * MS, 200 * MS]}})
    run.commits = [c if c.sequence == 0 else replace(c, time=100 * MS) for c in run.commits]
    found = figures(run, 1, 1)
    assert found["tokens_per_second"] == pytest.approx(6 / 0.1)
    assert found["busy_tokens_per_second"] == pytest.approx(6 / 0.065)  # 0 to 60 and 95 to 100 ms


def test_a_method_stops_paying_at_the_first_batch_size_at_which_it_is_slower():
    def speeds(**of):
        return {int(k[1:]): {"busy_tokens_per_second": v} for k, v in of.items()}

    plain = speeds(b1=10.0, b2=20.0, b4=30.0)
    assert stops_paying(speeds(b1=20.0, b2=19.0, b4=40.0), plain) == 2
    assert stops_paying(speeds(b1=10.0, b2=20.0), plain) is None


def test_the_load_is_a_condition_of_a_comparison():
    run = served()
    assert (batch_size(run), load_of(sample_trace("autoregressive").header)) == (2, None)
    later = with_header(run, environment={"load": {**LOAD, "arrivals": [0, 0, 0]}})
    later = Trace(
        later.header, spans=run.spans, rounds=[replace(r, drafted=0) for r in run.rounds], commits=run.commits
    )
    first, second = comparisons([[run], [later]])
    assert (first.reason, second.baseline) == ("different arrivals", 1)


SHORT, WORD, NUMBER = ({"arrivals": arrivals, "batch": 2} for arrivals in ([0], [0, 1, "x"], 7))


@pytest.mark.parametrize("facts", [3, {}, SHORT, WORD, NUMBER], ids=str)
def test_facts_of_another_form_are_no_load(facts):
    header = with_header(served(), environment={"load": facts}).header
    assert load_of(header) is None
    assert requests(Trace(header)) == []


def test_the_queue_is_a_track_of_the_timeline():
    *devices, waiting = shown(served())["tracks"]
    assert [track["role"] for track in devices] == [d.role for d in working_devices(served())]
    assert waiting["role"] == "requests"
    spans = waiting["spans"]
    assert list(zip(spans["start"], spans["end"], spans["rows"], strict=True)) == [(0, 2, 1), (5, 40, 1)]
    assert queue(sample_trace("speculative")) == []


def test_experts_by_the_rows_of_a_forward():
    trace = routed(sample_trace("speculative"), held=16)
    (row,) = experts(trace)
    forwards = [s for s in trace.spans if s.model == "target" and s.kind == "verify"]
    assert (row["rows"], row["forwards"]) == (5, len(forwards))
    assert (row["experts"], row["held"], row["each"]) == (8, 16, 8 / 5)
    assert row["ms"] == pytest.approx(sum(s.end - s.start for s in forwards) / len(forwards) / 1e6)
    trace.spans = [replace(s, rows=i + 1) for i, s in enumerate(s for s in forwards for _ in range(300))]
    trace.spans = [replace(s, id=i) for i, s in enumerate(trace.spans)]
    trace.routed = [Routed(s.id, 1, 2) for s in trace.spans]
    assert [row["rows"] for row in experts(trace)] == list(range(1, MOST + 1))
    trace.routed[0] = Routed(0, 3, 2)
    with pytest.raises(ValueError, match="span 0 read 3 of 2 experts"):
        check(trace)
