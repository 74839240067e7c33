"""The pool of target servers: what each forward scored, and what became of it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces.pool import pool, preempted, sp_degree

from engine.run.models import Model
from engine.trace.events import Commit, Decision, Device, Footer, Round, Span
from engine.trace.trace import Trace
from tests.engine.workers.harness import Flat, scripted_cluster
from tests.traces.samples import KINDS, MS, sample_trace
from tests.traces.states import state_at
from traces.metrics import measure
from traces.view.document import view_model

PROMPT = [1, 2, 3]


def say(path):
    return (int(path[-1]) * 7 + len(path)) % 500 + 10


def draft(right):
    def say_or_err(path):
        at = len(path) - len(PROMPT)
        return say(path) if at < len(right) and right[at] else 5

    return say_or_err


def dsi(right, new, sp=3, lookahead=2, drafter=200):
    """A real run in virtual time: a target of 0.8 ms, a drafter of 0.2 ms, free preemption."""
    with scripted_cluster(say, draft(right), Flat(800, drafter, preempts=True)) as there:
        config = {"lookahead": lookahead, "sp": sp}
        return there.run("dsi", PROMPT, config=config, limits=there.limits(new))


def rows(found):
    """The forwards as one tuple each, without times."""
    f = found["forwards"]
    names = ("server", "first", "own", "last", "outcome", "emitted")
    return list(zip(*(f[name] for name in names), strict=True))


def by_hand(status="done"):
    """Two servers: the first finds token 1 wrong; the second, which scored up to token 2, is called off 1 ms later."""
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
    found = pool(by_hand())
    assert found["servers"] == [
        {"device": "gpu1", "label": "GPU 1 · target"},
        {"device": "gpu2", "label": "GPU 2 · target"},
    ]
    assert found["forwards"]["id"] == [2, 4, 6]
    assert found["forwards"]["start"] == [1, 2, 5]
    assert found["forwards"]["end"] == [4, 5, 8]
    assert rows(found) == [
        (0, 0, 0, 1, "rejected", 2),
        (
            1,
            0,
            2,
            2,
            "preempted",
            0,
        ),  # its rows 0 to 2 bring its cache up to the prompt's end: they score nothing
        (1, 2, 2, 2, "decided", 1),
    ]
    assert found["drafts"] == [[1.0, 0, "accepted"], [2.0, 1, "rejected"]]


def test_figures_by_hand():
    trace = by_hand()
    assert sp_degree(trace) == 2
    found = measure(trace)
    assert found.sp_degree == 2
    assert found.preempted_device_seconds == 0.006, "a verification and a draft of 3 ms each"
    assert found.wasted_device_seconds == 0.007, "and the draft of token 1, which was wrong"


def test_servers_that_follow_each_other_do_not_work_at_once():
    trace = by_hand()
    trace.spans = [s for s in trace.spans if s.outcome == "done"]
    assert sp_degree(trace) == 1
    assert pool(trace) is not None, "two servers are a pool all the same"


def test_work_that_was_stopped_with_the_run_was_not_preempted():
    trace = by_hand("cancelled")
    trace.add(Span(7, "gpu1", "verify", 6 * MS, 9 * MS, "target", 3, 0, 2, 4, "cancelled"))
    trace.add(Span(8, "gpu0", "draft", 6 * MS, 9 * MS, "drafter", 3, 0, 1, 5, "cancelled"))
    assert {s.id for s in preempted(trace)} == {4, 5}
    assert [row[4] for row in rows(pool(trace))] == ["rejected", "preempted", "decided", "stopped"]
    assert measure(trace).preempted_device_seconds == 0.006


def test_a_stopped_run_with_one_server_has_no_pool():
    trace = sample_trace("speculative")
    last = max(trace.spans, key=lambda s: s.end)
    trace.add(replace(last, id=10_000, step=last.step + 1, outcome="cancelled"))
    trace.footer = replace(trace.footer, status="cancelled")
    assert pool(trace) is None
    assert measure(trace).wasted_device_seconds > measure(trace).preempted_device_seconds == 0


@pytest.mark.parametrize("kind", KINDS)
def test_one_server_without_preemption_is_no_pool(kind):
    assert pool(sample_trace(kind)) is None
    assert sp_degree(sample_trace(kind)) == 1


def test_one_server_with_preemption_is_shown():
    trace = dsi([], 4, sp=1, lookahead=4, drafter=300)
    assert len(pool(trace)["servers"]) == 1
    assert sp_degree(trace) == 1
    assert measure(trace).preempted_device_seconds > 0


def test_several_sequences_share_no_axis():
    trace = by_hand()
    trace.header = replace(trace.header, prompts=("a", "b"), prompt_ids=((7, 8, 9), (7,)))
    assert pool(trace) is None


def test_a_forward_on_several_devices_at_once_is_one_server():
    trace = sample_trace("speculative")
    twins = [replace(s, id=1000 + s.id, device="gpu2", rank=1) for s in trace.spans if s.kind == "verify"]
    devices = (*trace.header.devices, Device("gpu2", "target", "GPU 2 · target", "virtual"))
    trace.header, trace.spans = replace(trace.header, devices=devices), [*trace.spans, *twins]
    assert pool(trace) is None


def test_while_a_run_goes_on_a_forward_is_open_until_it_is_judged():
    trace = by_hand()
    trace.footer, trace.rounds = None, trace.rounds[:1]
    trace.commits = [c for c in trace.commits if c.step == 1]
    assert [row[4] for row in rows(pool(trace))] == ["rejected", "preempted", "open"]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.booleans(), max_size=12), st.integers(1, 5), st.integers(1, 4))
def test_positions_are_those_that_the_method_asked_for(right, sp, more):
    asked, score = [], Model.score

    def recorded(self, prefix, drafts):
        asked.append((len(prefix) - len(PROMPT), len(drafts)))
        return score(self, prefix, drafts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Model, "score", recorded)
        trace = dsi(right, 10, sp=sp, lookahead=-(-4 // sp) + more - 1)
    found = pool(trace)
    if found is None:
        assert sp == 1
        assert not any(s.outcome == "cancelled" for s in trace.spans)
        return
    # a forward that was called off before it began leaves no span; the others keep their order
    scored = [(first, last) for _, first, _, last, _, _ in rows(found)]
    rest = iter([(prefix, prefix + drafted) for prefix, drafted in asked])
    assert all(pair in rest for pair in scored), (scored, asked)
    assert len(scored) >= len({r.span for r in trace.rounds})


@settings(deadline=None, max_examples=25)
@given(st.lists(st.booleans(), max_size=12), st.integers(2, 5))
def test_every_token_comes_from_a_forward_that_scored_its_place(right, sp):
    trace = dsi(right, 10, sp=sp)
    f = pool(trace)["forwards"]
    at = {span: i for i, span in enumerate(f["id"])}
    spans = {r.step: at[r.span] for r in trace.rounds}
    for commit in trace.commits:
        i, place = spans[commit.step], commit.position - len(PROMPT)
        assert f["first"][i] <= place <= f["last"][i]
        assert f["outcome"][i] in ("decided", "rejected")
    assert sum(f["emitted"]) == len(trace.commits)
    assert all(
        a <= o <= b and s < e
        for a, o, b, s, e in zip(*(f[n] for n in ("first", "own", "last", "start", "end")), strict=True)
    )
    assert sp_degree(trace) <= sp


def test_servers_that_score_as_many_rows_for_two_lines_are_two_forwards():
    first, second = draft([True, False, True, True]), draft([True, True, True, True])
    flat = Flat(800, 200, preempts=True)
    with scripted_cluster(say, first, flat, [second]) as there:
        config = {"lookahead": 1, "sp": 8, "drafters": 2}
        trace = there.run("dsi", PROMPT, config=config, limits=there.limits(5))
    forwards = pool(trace)["forwards"]
    at = [i for i, start in enumerate(forwards["start"]) if start == pytest.approx(0.4)]
    assert len(at) == 2, "the lines part at token 1, which both have after 0.4 ms"
    assert [forwards["outcome"][i] for i in at].count("preempted") == 1
    assert len(forwards["id"]) == sum(s.kind in ("verify", "pre-verify") for s in trace.spans)


def test_the_model_holds_the_pool_and_the_replay_is_not_changed_by_it():
    trace = dsi([True, True, False, True], 8)
    (run,) = view_model([trace])["runs"]
    assert run["pool"] == pool(trace)
    ends = [
        e for e, o in zip(run["pool"]["forwards"]["end"], run["pool"]["forwards"]["outcome"], strict=True)
    ]
    assert max(ends) <= run["to"]
    assert state_at(trace, run["to"])["tokens"] == 8
