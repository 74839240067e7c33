"""SpecBranch round by round: scripted models, branch points, siblings, winners, and lost drafts."""

from __future__ import annotations

from collections import Counter
from math import log

import numpy as np

from specscope.engine.simulate.oracle import Scripted
from specscope.engine.trace.trace import Trace
from tests.engine.methods.pairs import Known, known_cluster
from tests.engine.worker.harness import Flat

PROMPT = [1, 2, 3]
Text = tuple[int, ...]
SURE, OTHER = 0.9, 999
TRUTH = tuple(range(10, 40))
UNSURE: dict[Text, dict[int, float]] = {
    (10, 11): {50: 0.25, 12: 0.24, 60: 0.2},
    (10, 11, 12, 13, 14): {70: 0.28, 71: 0.2, 15: 0.1},
    TRUTH[:9]: {80: 0.2, 81: 0.19, 82: 0.18, 83: 0.17},
}
"""Rows of the drafter where it is unsure, by the output so far; elsewhere it is sure."""


def drafted(path: np.ndarray) -> dict[int, float]:
    """Return the drafter's logits; after a wrong token it is sure of token 7."""
    return {token: log(p) for token, p in row_of(tuple(path[len(PROMPT) :].tolist())).items()}


def row_of(out: Text) -> dict[int, float]:
    right = out == TRUTH[: len(out)] and len(out) < len(TRUTH)
    row = UNSURE.get(out) or {TRUTH[len(out)] if right else 7: SURE}
    return {**row, OTHER: 1 - sum(row.values())} if max(row.values()) == SURE else row | _rest(row)


def _rest(row: dict[int, float]) -> dict[int, float]:
    rest = 1 - sum(row.values())
    return {200 + i: rest / 10 for i in range(10)}


def decode(tokens: int = 16, **settings: object) -> Trace:
    target = Scripted("target", lambda path, _: TRUTH[min(len(path) - len(PROMPT), len(TRUTH) - 1)], 1024)
    config = {"gamma": 4, "length": 4, "threshold": 0.5, "branches": 4, **settings}
    with known_cluster(Flat(), target=target, drafter=Known("drafter", drafted)) as cluster:
        return cluster.run("specbranch", PROMPT, config=config, limits=cluster.limits(tokens))


def siblings(trace: Trace, step: int) -> dict[int, str]:
    judged = [d for d in trace.decisions if d.step == step and d.node >= 0]
    last = max(d.position for d in judged)
    return {d.token: d.outcome for d in judged if d.position == last}


def test_every_round():
    trace = decode()
    assert trace.token_ids() == list(TRUTH[:16])
    assert [(r.mode, r.drafted, r.accepted, r.emitted) for r in trace.rounds[:4]] == [
        # trunk 10 11; siblings 50 12 60, of which 12 wins: its branch 13 14 is the next trunk
        ("post-verify", 5, 3, 3),
        # trunk 13 14; siblings 70 71, both wrong: 15 corrects, everything else is dropped
        ("post-verify", 4, 2, 3),
        # trunk 16 17 18, drafted alone; siblings 80 81 82, all wrong
        ("post-verify", 6, 3, 4),
        # trunk 20 21 22 23, drafted alone to gamma; a sure place has one sibling
        ("post-verify", 5, 5, 5),
    ]
    assert siblings(trace, 1) == {50: "rejected", 12: "accepted", 60: "rejected"}
    assert siblings(trace, 2) == {70: "rejected", 71: "rejected"}
    assert siblings(trace, 3) == {80: "rejected", 81: "rejected", 82: "rejected"}
    assert siblings(trace, 4) == {24: "accepted"}
    assert [s.rows for s in trace.spans if s.kind == "draft" and s.step == 1] == [1, 1, 1, 1, 3, 3, 3]
    lost = [d for d in trace.decisions if d.step == 1 and d.node < 0]
    assert Counter(d.token for d in lost) == {7: 6}, "three tokens below each of two lost siblings"
    assert {d.outcome for d in lost} == {"discarded"}
    # right after 12 comes 13; the place after 14 is unsure, so the branch has 3 of its 4 tokens
    assert [d.token for d in trace.decisions if d.step == 2 and d.outcome == "accepted"] == [13, 14]


def test_the_drafter_waits_only_after_a_rejection_and_drafts_beside_the_verification():
    trace = decode(24)
    prefill = max(s.end for s in trace.spans if s.kind == "prefill")
    verifies = [s for s in trace.spans if s.model == "target" and s.kind not in ("prefill", "sample")]
    beside, alone = Counter[int](), Counter[int]()
    for draft in (s for s in trace.spans if s.kind == "draft"):
        meets = any(v.start < draft.end and draft.start < v.end for v in verifies)
        (beside if meets else alone)[draft.step] += 1
    # 2, 3 and 4 tokens of the trunk; one forward more finds the unsure place after 2 and 3
    assert alone == {1: 3, 3: 4, 4: 4}
    assert [beside[step] for step in (1, 3, 4, 5)] == [4, 4, 4, 4]
    # the branches of round 1 take as long as its verification: 4 forwards of 250 us
    assert [r.time - prefill for r in trace.rounds[:2]] == [1_750_000, 2_750_000]


def test_co_located_has_the_same_rounds():
    apart, together = decode(), decode(placement="co-located")
    rounds = [[(r.drafted, r.accepted) for r in trace.rounds] for trace in (apart, together)]
    assert rounds[0] == rounds[1]
    assert together.commits[-1].time > apart.commits[-1].time
