"""Forks: the branches below a round's siblings, from rows without parents."""

from dataclasses import replace

import pytest

from specscope.engine.trace.trace import Trace
from specscope.traces.view.document import view_model
from specscope.traces.view.forks import with_forks
from specscope.traces.view.tokens import ghosts, trees
from tests.engine.methods.test_specbranch import decode
from tests.traces.samples import sample_trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return decode()


def forks(trace: Trace) -> dict[int, dict]:
    return {tree["step"]: tree["fork"] for tree in with_forks(trace, trees(trace)) if "fork" in tree}


def test_a_fork_has_its_siblings_and_the_branch_of_each(trace):
    found = forks(trace)
    assert sorted(found) == [1, 2, 3], "later rounds have one sibling, so their drafts are chains"
    first = found[1]
    facts = ("level", "confidence", "siblings", "winner", "lost")
    # trunk 10 11, siblings 50 12 60
    assert [first[name] for name in facts] == [2, pytest.approx(0.25), 3, 2, 6]
    nodes = first["nodes"]
    assert list(zip(nodes["parent"], nodes["id"], nodes["level"], nodes["outcome"], strict=True)) == [
        (3, 13, 3, "pending"),  # of the winner, node 3
        (5, 14, 4, "pending"),
        *((2, 7, 3, "discarded"), (4, 7, 3, "discarded")),  # of nodes 2 and 4, by level
        *((7, 7, 4, "discarded"), (8, 7, 4, "discarded")),
        *((9, 7, 5, "discarded"), (10, 7, 5, "discarded")),
    ]
    assert [found[2][name] for name in facts] == [2, pytest.approx(0.28), 2, 0, 6]
    assert [found[3][name] for name in facts] == [3, pytest.approx(0.2), 3, 0, 9]


def test_tokens_whose_branch_is_not_known_are_counted_only(trace):
    cut = next(
        i for i, d in enumerate(trace.decisions) if d.node < 0 and d.step == 3 and d.outcome == "discarded"
    )
    fewer = replace(trace, decisions=trace.decisions[:cut] + trace.decisions[cut + 1 :])
    fork = forks(fewer)[3]
    assert fork["lost"] == 8
    assert fork["nodes"]["id"] == []


def test_other_trees_have_no_fork():
    assert forks(sample_trace("tree")) == {}


def test_lost_branches_leave_the_text_at_the_branch_point(trace):
    rows = [g for g in ghosts(trace) if g["step"] == 1 and g["node"] < 0]
    assert {row["before"] for row in rows} == {3 + 2}, "in front of the third token of the output"


def test_the_document_holds_the_forks(trace):
    (run,) = view_model([trace])["runs"]
    assert [tree["fork"]["siblings"] for tree in run["trees"]] == [3, 2, 3]
