from dataclasses import replace

import pytest
from hypothesis import given

from specscope.engine.trace.events import Footer, Round
from specscope.engine.trace.trace import Trace
from specscope.traces.view.tokens import by_branch, ghosts, trees
from tests.traces import strategies
from tests.traces.samples import KINDS, sample_events, sample_trace


@pytest.fixture
def trace():
    return sample_trace("tree", tokens=41, acceptance=0.6)


def test_incomplete_rounds_of_a_run_in_progress_have_no_tree():
    events = sample_events("tree")
    last = max(i for i, e in enumerate(events) if isinstance(e, Round))
    young = Trace.of([e for e in events[:last] if not isinstance(e, Footer)])
    assert len(trees(young)) == len(young.rounds) == len(trees(Trace.of(events))) - 1


def test_the_first_lost_branches_of_the_sample():
    """a b c under the prefix, d e under a, f under b, g h under d, i under e; a, e accepted."""
    trace = sample_trace("tree")
    outcomes = [
        "accepted",
        "rejected",
        "discarded",
        "rejected",
        "accepted",
        "discarded",
        "discarded",
        "discarded",
        "corrected",
    ]
    first = [d for d in trace.decisions if d.step == 1 and d.node >= 0]
    others = [d for d in trace.decisions if d.step != 1 or d.node < 0]
    fates = dict(enumerate(outcomes))
    trace.decisions = [
        replace(d, outcome=fates[d.node].replace("corrected", "rejected")) for d in first
    ] + others
    rows = [(g["node"], g["before"] - 5, g["branch"]) for g in ghosts(trace) if g["step"] == 1]
    assert rows == [
        (3, 1, False),
        (6, 1, False),
        (7, 1, True),
        (8, 2, False),
        (1, 0, False),
        (5, 0, False),
        (2, 0, True),
    ]


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"tree"}))
def test_chains_keep_their_order(kind):
    trace = sample_trace(kind, acceptance=0.6)
    assert by_branch(trace.decisions) == trace.decisions
    assert not any(g["branch"] for g in ghosts(trace))


@strategies.many
@given(strategies.work())
def test_any_trace_has_its_trees(trace):
    for tree in trees(trace):
        size = len(tree["nodes"]["parent"])
        assert {len(column) for column in tree["nodes"].values()} == {size}
        assert all(-1 <= p < size for p in tree["nodes"]["parent"])
    assert sorted(by_branch(trace.decisions), key=repr) == sorted(trace.decisions, key=repr)
