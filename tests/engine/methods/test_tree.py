"""Token trees: virtual times, the KV rows of the accepted path, and the trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import specscope
from specscope.engine.types import NO_TREE, Limits, Prefix, Sampling
from specscope.engine.worker.jobs import Grown, Stamp
from tests.engine.methods.pairs import known_cluster, make_pair, ranked, timeless
from tests.engine.methods.test_easyspec import DrafterWorker
from tests.engine.worker.harness import Flat

PROMPT = [1, 2, 3]


@dataclass(frozen=True)
class PerRow(Flat):
    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        return 1000 + 10 * rows if model == "target" else 200 + 5 * rows


def run(ranks: Callable[[np.ndarray], list[int]], new: int, **config: object):
    """Run `tree` with a drafter of ranked tokens; the target's token is 100 + its position."""
    target, latency = (
        ranked("target", lambda path: [100 + len(path)]),
        PerRow(sample_us=30, communicate_us=20),
    )
    with known_cluster(latency, target=target, drafter=ranked("drafter", ranks)) as cluster:
        return cluster.run("tree", PROMPT, config=config, limits=cluster.limits(new))


def second_is_right(path: np.ndarray) -> list[int]:
    """The drafter's first choice is never the target's, its second always."""
    return [7, 100 + len(path)]


def work(trace, kind: str) -> list[tuple[int, int]]:
    return [(s.rows, s.context) for s in trace.spans if s.kind == kind]


def test_a_round_takes_the_hand_computed_time_and_feeds_no_row_twice():
    # w wrong, r right; levels: w r | ww wr rw rr | www and all with one r. r, rr are accepted.
    trace = run(second_is_right, 9, width=4, depth=3)
    assert [(r.drafted, r.accepted, r.emitted) for r in trace.rounds] == [(10, 2, 3)] * 3
    assert trace.token_ids() == list(range(103, 112))
    assert work(trace, "draft") == [
        (rows, at + 3 * i) for i in range(3) for rows, at in ((1, 2), (2, 3), (4, 5))
    ]
    assert work(trace, "verify") == [(11, 2 + 3 * i) for i in range(3)]
    nodes = [d for d in trace.decisions if d.step == 1 and d.node >= 0]
    assert [n.parent for n in sorted(nodes, key=lambda n: n.node)] == [-1, -1, 0, 0, 1, 1, 2, 2, 3, 4]
    fates = {n.node: n.outcome for n in nodes if n.outcome != "discarded"}
    assert fates == {0: "rejected", 1: "accepted", 4: "rejected", 5: "accepted"}
    start = max(s.end for s in trace.spans if s.kind == "prefill")
    round_us = 3 * 200 + 5 * (1 + 2 + 4) + 1000 + 10 * 11 + 20 + 30
    assert [r.time - start for r in trace.rounds] == [1000 * round_us * i for i in (1, 2, 3)]


def test_of_an_accepted_path_the_drafter_forwards_only_the_last_level_again():
    trace = run(lambda path: [100 + len(path), 7], 8, width=2, depth=3)
    assert [(r.drafted, r.accepted, r.emitted) for r in trace.rounds] == [(6, 3, 4)] * 2
    assert work(trace, "draft") == [(1, 2), (2, 3), (2, 5), (2, 5), (2, 7), (2, 9)]


# What a worker does, on random models.

SAMPLED = Sampling(1.3, seed=4)


def tree_after(drafter: DrafterWorker, tokens: list[int]) -> tuple[tuple[Grown, ...], tuple[Stamp, ...]]:
    reply = drafter.grow(tokens, size=1, width=3, depth=3)
    return reply.value, reply.stamps


def path_to(tree: tuple[Grown, ...], node: int) -> list[int]:
    path = list[int]()
    while node >= 0:
        path.append(tree[node].id)
        node = tree[node].parent
    return path[::-1]


@pytest.fixture(params=["llama3-rope", "mistral-window", "qwen3"])
def drafter(request, tmp_path):
    return DrafterWorker(make_pair(tmp_path, request.param, "other")[0].drafter_path, SAMPLED)


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_a_drafted_tree_equals_forwards_of_every_path_alone(drafter, sampling):
    drafter.begin(sampling)
    tree, stamps = tree_after(drafter, [5, 9, 4])
    assert [(s.rows, s.context) for s in stamps] == [(3, 0), (3, 3), (3, 6)]
    for node, t in enumerate(tree):
        drafter.begin(sampling)
        prefix = Prefix(0, np.asarray([5, 9, 4, *path_to(tree, node)[:-1]]))
        logits = drafter.host.forwards.extend("drafter", [prefix], [NO_TREE], [], "draft")[0]
        q = (logits[0] / (sampling.temperature or 1)).softmax(-1)
        assert t.probability == pytest.approx(float(q[t.id]), abs=1e-5)
        assert t.top[0] == (int(q.argmax()), pytest.approx(float(q.max()), abs=1e-5))
        assert t.level == len(path_to(tree, node)) - 1
        if sampling is SAMPLED:
            assert np.allclose(drafter.q[t.row], q, atol=1e-5)
    rows = {(t.parent, t.row) for t in tree}
    parents = {t.parent for t in tree}
    assert len(rows) == len(parents), "siblings share a row of q, other nodes do not"
    assert len({row for _, row in rows}) == (len(parents) if sampling is SAMPLED else 1)


def test_after_a_later_branch_the_rows_equal_a_fresh_computation(drafter):
    drafter.begin(SAMPLED)
    prompt, tree = [5, 9, 4], tree_after(drafter, [5, 9, 4])[0]
    branch = max(i for i, t in enumerate(tree) if t.level == 1)
    assert path_to(tree, branch) != path_to(tree, 3), "not the first path"
    longer = [*prompt, *path_to(tree, branch), 11]
    mine, stamps = tree_after(drafter, longer)
    assert (stamps[0].rows, stamps[0].context) == (1, 5), "only the last token is forwarded again"
    drafter.begin(SAMPLED)
    fresh, stamps = tree_after(drafter, longer)
    assert stamps[0].rows == 6
    assert [t._replace(probability=0.0, top=()) for t in mine] == [
        t._replace(probability=0.0, top=()) for t in fresh
    ]
    assert [t.probability for t in mine] == pytest.approx([t.probability for t in fresh], abs=1e-5)


@pytest.mark.parametrize(
    ("drafts", "sampling"),
    [
        ("sampled", Sampling()),
        ("sampled", Sampling(0.8, top_p=0.95, seed=2)),
        ("greedy", Sampling(0.5, seed=9)),
    ],
    ids=str,
)
def test_a_chain_gives_the_trace_rows_of_speculative(tmp_path, drafts, sampling):
    pair, _ = make_pair(tmp_path, "llama3-rope", "other")
    with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
        chain, *others = (
            cluster.run(
                method, [5, 9, 23], config={**config, "drafts": drafts}, sampling=sampling, limits=Limits(40)
            )
            for method, config in (
                ("speculative", {"gamma": 4}),
                ("tree", {"width": 1, "depth": 4}),
                ("easyspec", {"size": 1, "gamma": 4}),
            )
        )
    for same in others:
        assert timeless(same) == timeless(chain)
        assert {d.outcome for d in same.decisions} >= {"accepted", "rejected", "corrected"}
