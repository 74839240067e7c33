import json
from dataclasses import replace

import pytest
from hypothesis import given

from specscope.engine.trace.events import Footer, Round
from specscope.engine.trace.trace import Trace
from specscope.traces.view.document import view_model
from specscope.traces.view.tokens import by_branch, ghosts, trees
from specscope.traces.waiting import decoding_clock
from tests.traces import strategies
from tests.traces.samples import KINDS, SHAPE, WORDS, sample_events, sample_trace


@pytest.fixture
def trace():
    return sample_trace("tree", tokens=41, acceptance=0.6)


def test_a_row_holds_every_node_of_its_round_and_the_targets_own_token(trace):
    rows = trees(trace)
    assert [r["step"] for r in rows] == [r.step for r in trace.rounds]
    clock, sizes = decoding_clock(trace), set()
    for row, told in zip(rows, trace.rounds, strict=True):
        decided = [d for d in trace.decisions if d.step == row["step"]]
        nodes = sorted((d for d in decided if d.node >= 0), key=lambda d: d.node)
        own = [d for d in decided if d.node < 0 and told.emitted > told.accepted]
        shown = row["nodes"]
        assert (row["drafted"], row["accepted"], row["t"]) == (9, told.accepted, clock(told.time))
        assert shown["parent"][:9] == list(SHAPE)
        assert shown["level"][:9] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert shown["id"] == [d.token for d in (*nodes, *own)]
        assert shown["text"] == [WORDS[i] for i in shown["id"]]
        assert shown["outcome"] == [d.outcome for d in (*nodes, *own)]
        assert shown["q"][:9] == pytest.approx([d.q for d in nodes], abs=1e-4)
        assert len(shown["p"]) == len(shown["id"])
        if own:
            last = [i for i in range(9) if shown["outcome"][i] == "accepted"]
            assert shown["parent"][9] == (last[-1] if last else -1)
            assert shown["level"][9] == told.accepted
        sizes.add((len(shown["id"]), told.accepted))
    assert {n for n, _ in sizes} == {9, 10}, "the last round is cut before the target's own token"
    assert len(sizes) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_only_drafts_with_siblings_are_trees(kind):
    (run,) = view_model([sample_trace(kind)])["runs"]
    assert bool(run["trees"]) == (kind == "tree")
    json.dumps(run["trees"], allow_nan=False)


def test_incomplete_rounds_of_a_run_in_progress_have_no_tree():
    events = sample_events("tree")
    last = max(i for i, e in enumerate(events) if isinstance(e, Round))
    young = Trace.of([e for e in events[:last] if not isinstance(e, Footer)])
    assert len(trees(young)) == len(young.rounds) == len(trees(Trace.of(events))) - 1


def test_lost_branches_follow_each_other_with_marks_between(trace):
    nodes = {(d.step, d.node): d for d in trace.decisions if d.node >= 0}
    lost = list(ghosts(trace))
    assert len(lost) == sum(d.outcome in ("rejected", "discarded") for d in nodes.values())
    marked = 0
    lost.sort(key=lambda row: (row["step"], row["before"]))  # in the order of the text
    for before, row in zip([None, *lost], lost, strict=False):
        d = nodes[row["step"], row["node"]]
        same = before is not None and (before["step"], before["before"]) == (row["step"], row["before"])
        assert row["branch"] == (same and d.parent != before["node"])
        marked += row["branch"]
        if not row["branch"] and same:
            assert nodes[before["step"], before["node"]].position + 1 == d.position
        parent = nodes.get((row["step"], d.parent))
        kept = parent is None or parent.outcome == "accepted"
        assert row["before"] == (row["position"] if kept else row["before"]) <= row["position"]
    assert marked > len(trace.rounds)


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
