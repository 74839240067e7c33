"""Figures of requests under load, on a run written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specscope.engine.trace.events import Commit, Footer, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.comparable import batch_size, comparisons
from specscope.traces.requests import figures, load_of, requests, stops_paying
from specscope.traces.view.document import view_model
from specscope.traces.view.tracks import queue
from specscope.traces.waiting import working_devices
from tests.traces.samples import MS, sample_trace

LOAD = {"arrivals": [0, 5 * MS, 90 * MS], "batch": 2, "chunk": 8}


def trace() -> Trace:
    """Return a run with two served requests and one that still waits when the run is stopped.

    Request 0 commits 1, 3 and 1 tokens at 20, 40 and 60 ms; request 1 one token at 60 ms.
    """
    header = replace(
        sample_trace("speculative").header,
        prompts=("a", "b", "c"),
        prompt_ids=((1, 2), (3,), (4,)),
        environment={"load": LOAD},
    )
    made = Trace(header)
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


def test_requests_arrive_begin_commit_and_end() -> None:
    first, second, waiting = requests(trace())
    assert (first.arrival, first.begin, first.ttft) == (0, 2 * MS, 20 * MS)
    assert (second.arrival, second.begin, second.ttft) == (5 * MS, 40 * MS, 55 * MS)
    assert first.gaps == [20 * MS, 20 * MS], "tokens of a round are one gap"
    assert first.tpot == 10 * MS
    assert (second.gaps, second.tpot) == ([], None)
    assert (waiting.begin, waiting.ttft, waiting.finished) == (None, None, False)


def test_figures() -> None:
    found = figures(trace(), 30, 10)
    assert (found["requests"], found["finished"], found["tokens"], found["seconds"]) == (3, 2, 6, 0.06)
    assert found["tokens_per_second"] == pytest.approx(100)
    assert found["busy_tokens_per_second"] == pytest.approx(100)
    assert (found["ttft_ms"], found["ttft_p95_ms"]) == (37.5, pytest.approx(20 + 0.95 * 35))
    assert (found["tpot_ms"], found["tpot_p95_ms"]) == (10, 10)
    assert (found["itl_ms"], found["itl_p95_ms"]) == (20, 20)
    assert (found["good"], found["good_share"]) == (1, pytest.approx(1 / 3))
    assert found["goodput"] == pytest.approx(1 / 0.06)
    assert figures(trace(), 30, 9.9)["good"] == 0
    assert figures(trace(), 60, 10)["good"] == 2


def test_idle_time_is_not_busy() -> None:
    run = trace()
    late = {**LOAD, "arrivals": [0, 95 * MS, 200 * MS]}
    run.header = replace(run.header, environment={"load": late})
    run.commits = [c if c.sequence == 0 else replace(c, time=100 * MS) for c in run.commits]
    found = figures(run, 1, 1)
    assert found["tokens_per_second"] == pytest.approx(6 / 0.1)
    assert found["busy_tokens_per_second"] == pytest.approx(6 / 0.065)  # 0 to 60 and 95 to 100 ms


def test_nothing_is_measured_before_the_first_token() -> None:
    found = figures(Trace(trace().header), 1, 1)
    assert (found["tokens_per_second"], found["ttft_p95_ms"], found["itl_ms"]) == (None, None, None)
    assert (found["good"], found["goodput"]) == (0, None)


def test_a_method_stops_paying_at_the_first_batch_size_at_which_it_is_slower() -> None:
    def speeds(**tokens_per_second: float) -> dict[int, dict[str, float]]:
        return {int(k[1:]): {"busy_tokens_per_second": v} for k, v in tokens_per_second.items()}

    plain = speeds(b1=10.0, b2=20.0, b4=30.0)
    assert stops_paying(speeds(b1=20.0, b2=19.0, b4=40.0), plain) == 2  # type: ignore[arg-type]
    assert stops_paying(speeds(b1=10.0, b2=20.0), plain) is None  # type: ignore[arg-type]


def test_the_load_is_a_condition_of_a_comparison() -> None:
    run = trace()
    assert batch_size(run) == 2
    other = replace(run.header, environment={"load": {**LOAD, "arrivals": [0, 0, 0]}})
    plain = sample_trace("autoregressive")
    assert load_of(plain.header) is None
    later = Trace(other, run.spans, rounds=[replace(r, drafted=0) for r in run.rounds], commits=run.commits)
    first, second = comparisons([[run], [later]])
    assert first.reason == "different arrivals"
    assert second.baseline == 1


@pytest.mark.parametrize(
    "facts",
    [
        3,
        {},
        {"arrivals": [0], "batch": 2},
        {"arrivals": [0, 1, "x"], "batch": 2},
        {"arrivals": 7, "batch": 2},
    ],
)
def test_facts_of_another_form_are_no_load(facts: object) -> None:
    header = replace(trace().header, environment={"load": facts})
    assert load_of(header) is None
    assert requests(Trace(header)) == []


def test_the_queue_is_a_track_of_the_timeline() -> None:
    run = view_model([trace()])["runs"][0]
    *devices, waiting = run["tracks"]
    assert [track["role"] for track in devices] == [d.role for d in working_devices(trace())]
    assert waiting["role"] == "requests"
    spans = waiting["spans"]
    assert list(zip(spans["start"], spans["end"], spans["rows"], strict=True)) == [(0, 2, 1), (5, 40, 1)]
    assert queue(sample_trace("speculative")) == []
