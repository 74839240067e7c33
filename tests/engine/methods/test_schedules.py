"""Draft lengths that adapt in virtual time and on the bundled pair, and their rows in the trace."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import specscope
from specscope.engine.drafting.schedule import WINDOW
from specscope.engine.types import Limits, Sampling
from tests.engine.methods.test_baselines import counts_up, never
from tests.engine.worker.harness import Flat, scripted_cluster

KEYS = ("speculative", "pearl")
LONG_RUN = 60


def right_to_20(path: np.ndarray) -> int:
    return counts_up(path) if len(path) < 20 else 5


def run(method: str, new: int, drafter=counts_up, **config):
    with scripted_cluster(counts_up, drafter, Flat(1000, 250, 30, 20)) as cluster:
        return cluster.run(method, [9, 10], config=config, limits=cluster.limits(new))


@pytest.mark.parametrize(("method", "fours"), [("speculative", 3), ("pearl", 4)])
def test_the_average_doubles_while_all_drafts_are_accepted_and_falls_to_1(method, fours):
    """PEARL asks for the next chunk before the verdict about the last one."""
    trace = run(method, 60, right_to_20, gamma=2, schedule="average")
    asked = [c.asked for c in trace.chains]
    assert asked == [2] * 3 + [4] * fours + [2] * 3 + [1] * (len(asked) - 6 - fours)
    assert {c.stop for c in trace.chains} == {"full"}


@pytest.mark.parametrize("method", KEYS)
def test_drafting_ends_for_good_and_the_rest_is_plain(method):
    trace = run(method, 50, never, gamma=2, off_below=0.5)
    off = [c for c in trace.chains if c.stop == "off"]
    judged = [r for r in trace.rounds if r.drafted]
    assert len(judged) == WINDOW
    assert len(off) == 50 - WINDOW
    assert {(c.asked, c.drafted, c.span) for c in off} == {(0, 0, -1)}
    assert {r.mode for r in trace.rounds[WINDOW:]} == {"plain"}
    assert [c.token for c in trace.commits] == [(n + 1) % 50 + 10 for n in range(50)]


@pytest.mark.parametrize(
    ("method", "sampling", "config"),
    [
        ("speculative", Sampling(0.8, seed=5), {"schedule": "average", "confidence": 0.4}),
        ("pearl", Sampling(), {"schedule": "threshold"}),
    ],
    ids=str,
)
def test_each_row_has_the_reason_that_its_tokens_show(threads, method, sampling, config):
    asked = {"config": {"gamma": 4, **config}, "sampling": sampling, "limits": Limits(LONG_RUN)}
    trace = threads.run(method, "Tell me a story.", **asked)
    assert trace.header.config["confidence"] == 0.4
    tokens = {(d.draft_span, d.position): d for d in trace.decisions if d.draft_span >= 0}
    assert Counter(d.draft_span for d in tokens.values()).most_common(1)[0][1] == 1
    end = len(trace.header.prompt_ids[0]) + LONG_RUN
    for c in trace.chains:
        own = [d for (span, p), d in tokens.items() if c.span <= span < c.span + c.drafted]
        own.sort(key=lambda d: d.position)
        assert [d.position for d in own] == [*range(c.position, c.position + c.drafted)]
        assert all(d.q >= 0.4 for d in own[:-1])
        unsure = bool(own) and own[-1].q < 0.4
        assert c.stop == ("full" if c.drafted == c.asked else "uncertain" if unsure else "end")
        assert c.stop != "end" or c.position + c.drafted == end
    assert sum(c.drafted for c in trace.chains) == len(tokens)
    assert {"full", "uncertain"} <= {c.stop for c in trace.chains}


@pytest.mark.parametrize("method", KEYS)
def test_each_request_of_a_load_has_a_schedule_of_its_own(method):
    """The drafter is always right for the first prompt, and never for the second."""
    drafter = lambda path: counts_up(path) if path[0] == 9 else 5  # noqa: E731
    config = {"gamma": 2, "schedule": "average", "off_below": 0.2}
    with scripted_cluster(counts_up, drafter, Flat(1000, 250)) as cluster:
        asked = {"limits": cluster.limits(LONG_RUN), "load": specscope.Load((0.0, 0.0), batch=2)}
        trace = cluster.run(method, [9, 10], [8, 10], config=config, **asked)
    asked = {s: [c.asked for c in trace.chains if c.sequence == s] for s in (0, 1)}
    assert max(asked[0]) == 4
    assert asked[1][-1] == 0
    assert {c.stop for c in trace.chains if c.sequence == 1} == {"full", "off"}
    assert [c.token for c in trace.commits if c.sequence == 1] == [(n + 1) % 50 + 10 for n in range(LONG_RUN)]


def test_the_pipelines_halves_are_two_drafts_and_the_second_needs_a_sure_first():
    trace = run("pearl", 20, gamma=4, placement="pipeline")
    assert {(c.asked, c.stop) for c in trace.chains} <= {(2, "full"), (2, "end")}
    assert len(trace.chains) > len(trace.rounds)


def test_a_confidence_of_the_user_is_kept():
    for schedule, given, used in (("threshold", {"confidence": 0.7}, 0.7), ("average", {}, 0)):
        trace = run("speculative", 3, gamma=2, schedule=schedule, **given)
        assert trace.header.config["confidence"] == used
