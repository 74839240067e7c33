"""The pool of target servers: the positions that each forward scored, and its outcome."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.run.models import Model
from specscope.engine.trace.events import Commit, Decision, Device, Footer, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.metrics import measure
from specscope.traces.view.document import view_model
from specscope.traces.view.servers import server_pool
from specscope.traces.waiting import preempted, sp_degree
from tests.engine.worker.harness import Flat, scripted_cluster
from tests.traces.samples import MS, sample_trace

PROMPT = [1, 2, 3]


def say(path):
    return (int(path[-1]) * 7 + len(path)) % 500 + 10


def drafting(right):
    """Return a drafter that is right where `right` is true, and drafts 5 elsewhere."""

    def draft(path):
        index = len(path) - len(PROMPT)
        return say(path) if index < len(right) and right[index] else 5

    return draft


def dsi(right, new, sp=3, lookahead=2, drafter=200):
    """Run DSI in virtual time: 0.8 ms a target forward, 0.2 ms a drafter forward."""
    with scripted_cluster(say, drafting(right), Flat(800, drafter, preempts=True)) as cluster:
        config = {"lookahead": lookahead, "sp": sp}
        return cluster.run("dsi", PROMPT, config=config, limits=cluster.limits(new))


def rows(pool):
    """Return each forward as a tuple without times."""
    f = pool["forwards"]
    names = ("server", "first", "own", "last", "outcome", "emitted")
    return list(zip(*(f[name] for name in names), strict=True))


def by_hand(status="done"):
    """Return a run on two servers: one rejects token 1, then the other one is preempted."""
    base = sample_trace("speculative")
    devices = (base.header.devices[0], Device("gpu1", "target", "GPU 1 · target", "virtual"))
    devices = (*devices, Device("gpu2", "target", "GPU 2 · target", "virtual"))
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


def test_positions_and_outcomes_by_hand():
    pool = server_pool(by_hand())
    assert pool["servers"] == [
        {"device": "gpu1", "label": "GPU 1 · target"},
        {"device": "gpu2", "label": "GPU 2 · target"},
    ]
    assert pool["forwards"]["id"] == [2, 4, 6]
    assert pool["forwards"]["start"] == [1, 2, 5]
    assert pool["forwards"]["end"] == [4, 5, 8]
    assert rows(pool) == [
        (0, 0, 0, 1, "rejected", 2),
        # Its rows 0 to 2 fill its cache up to the prompt's end: they score nothing.
        (1, 0, 2, 2, "preempted", 0),
        (1, 2, 2, 2, "decided", 1),
    ]
    assert pool["drafts"] == [(1.0, 0, "accepted"), (2.0, 1, "rejected")]


def test_figures_by_hand():
    trace = by_hand()
    assert sp_degree(trace) == 2
    metrics = measure(trace)
    assert metrics.sp_degree == 2
    assert metrics.preempted_device_seconds == 0.006, "a verification and a draft of 3 ms each"
    assert metrics.wasted_device_seconds == 0.007, "and the draft of token 1, which was wrong"


def test_servers_that_work_one_after_the_other_have_degree_1():
    trace = by_hand()
    trace.spans = [s for s in trace.spans if s.outcome == "done"]
    assert sp_degree(trace) == 1
    assert server_pool(trace) is not None, "two servers are a pool"


def test_work_stopped_with_the_run_is_not_preempted():
    trace = by_hand("cancelled")
    trace.add(Span(7, "gpu1", "verify", 6 * MS, 9 * MS, "target", 3, 0, 2, 4, "cancelled"))
    trace.add(Span(8, "gpu0", "draft", 6 * MS, 9 * MS, "drafter", 3, 0, 1, 5, "cancelled"))
    assert {s.id for s in preempted(trace)} == {4, 5}
    assert [row[4] for row in rows(server_pool(trace))] == ["rejected", "preempted", "decided", "stopped"]
    assert measure(trace).preempted_device_seconds == 0.006


def test_a_stopped_run_with_one_server_has_no_pool():
    trace = sample_trace("speculative")
    last = max(trace.spans, key=lambda s: s.end)
    trace.add(replace(last, id=10_000, step=last.step + 1, outcome="cancelled"))
    trace.footer = replace(trace.footer, status="cancelled")
    assert server_pool(trace) is None
    assert measure(trace).wasted_device_seconds > measure(trace).preempted_device_seconds == 0


def test_one_server_with_preemption_is_shown():
    trace = dsi([], 4, sp=1, lookahead=4, drafter=300)
    assert len(server_pool(trace)["servers"]) == 1
    assert sp_degree(trace) == 1
    assert measure(trace).preempted_device_seconds > 0


def test_a_run_on_several_sequences_has_no_pool():
    trace = by_hand()
    trace.header = replace(trace.header, prompts=("a", "b"), prompt_ids=((7, 8, 9), (7,)))
    assert server_pool(trace) is None


def test_a_forward_on_several_devices_at_once_is_one_server():
    trace = sample_trace("speculative")
    twins = [replace(s, id=1000 + s.id, device="gpu2", rank=1) for s in trace.spans if s.kind == "verify"]
    devices = (*trace.header.devices, Device("gpu2", "target", "GPU 2 · target", "virtual"))
    trace.header, trace.spans = replace(trace.header, devices=devices), [*trace.spans, *twins]
    assert server_pool(trace) is None


def test_a_forward_of_a_run_in_progress_is_open_until_judged():
    trace = by_hand()
    trace.footer, trace.rounds = None, trace.rounds[:1]
    trace.commits = [c for c in trace.commits if c.step == 1]
    assert [row[4] for row in rows(server_pool(trace))] == ["rejected", "preempted", "open"]


@settings(deadline=None, max_examples=15)
@given(st.lists(st.booleans(), max_size=12), st.integers(1, 5), st.integers(1, 4))
def test_positions_are_those_the_method_asked_for(right, sp, more):
    asked, score = [], Model.score

    def recorded(self, prefix, drafts):
        asked.append((len(prefix) - len(PROMPT), len(drafts)))
        return score(self, prefix, drafts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "score", recorded)
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


def test_two_lines_of_equal_length_are_two_forwards():
    first, second = drafting([True, False, True, True]), drafting([True, True, True, True])
    flat = Flat(800, 200, preempts=True)
    with scripted_cluster(say, first, flat, [second]) as cluster:
        config = {"lookahead": 1, "sp": 8, "drafters": 2}
        trace = cluster.run("dsi", PROMPT, config=config, limits=cluster.limits(5))
    forwards = server_pool(trace)["forwards"]
    at = [i for i, start in enumerate(forwards["start"]) if start == pytest.approx(0.4)]
    assert len(at) == 2, "the lines part at token 1, which both have after 0.4 ms"
    assert [forwards["outcome"][i] for i in at].count("preempted") == 1
    assert len(forwards["id"]) == sum(s.kind in ("verify", "pre-verify") for s in trace.spans)


def test_the_document_holds_the_pool():
    trace = dsi([True, True, False, True], 8)
    (run,) = view_model([trace])["runs"]
    assert run["pool"] == server_pool(trace)
    assert max(run["pool"]["forwards"]["end"]) <= run["to"]
