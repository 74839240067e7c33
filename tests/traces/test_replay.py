import pytest

from tests.traces.samples import KINDS, sample_trace
from tests.traces.states import state_at
from traces import waiting
from traces.view.clock import decoding_clock
from traces.view.document import view_model


def edges(trace):
    clock = decoding_clock(trace)
    return sorted({clock(t) for s in trace.spans for t in (s.start, s.end)})


@pytest.mark.parametrize("kind", KINDS)
def test_before_and_after_everything(kind):
    trace = sample_trace(kind)
    run = view_model([trace])["runs"][0]
    before, after = state_at(trace, run["from"] - 1), state_at(trace, run["to"])
    assert (before["texts"], before["tokens"], before["lost"], before["step"]) == ([""], 0, 0, 0)
    assert (before["running"], before["ended"]) == ([], 0)
    assert after["texts"] == [trace.text]
    assert after["tokens"] == len(trace.commits)
    assert after["lost"] == len(run["ghosts"])
    assert after["step"] == trace.rounds[-1].step
    assert after["running"] == []
    assert set(after["doing"].values()) == {""}


def test_a_span_runs_from_its_start_up_to_its_end():
    trace = sample_trace("speculative")
    clock = decoding_clock(trace)
    span = next(s for s in trace.spans if s.kind == "verify")
    start, end = clock(span.start), clock(span.end)
    assert span.id not in state_at(trace, start - 0.001)["running"]
    assert span.id in state_at(trace, start)["running"]
    assert span.id in state_at(trace, end - 0.001)["running"]
    assert span.id not in state_at(trace, end)["running"]
    assert state_at(trace, start)["doing"] == {"gpu0": "waits: verify", "gpu1": "verify"}


def test_a_token_is_there_from_its_commit_on():
    trace = sample_trace("speculative")
    now = decoding_clock(trace)(trace.commits[0].time)
    first = [c for c in trace.commits if c.time == trace.commits[0].time]
    assert state_at(trace, now - 0.001)["tokens"] == 0
    assert state_at(trace, now)["texts"] == ["".join(c.text for c in first)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_device_works_or_waits_while_decoding(kind):
    trace = sample_trace(kind)
    start, end = (decoding_clock(trace)(t) for t in waiting.decode_window(trace))
    last = -1
    for t in edges(trace):
        state = state_at(trace, t)
        assert state["ended"] >= last
        last = state["ended"]
        if start <= t < end:
            assert all(state["doing"].values()), t
