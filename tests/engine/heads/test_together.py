"""Heads draft for several sequences: one forward for all, with the rows of each one alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specscope.engine.drafting.tree import Static
from specscope.engine.heads.kinds import KINDS
from specscope.engine.types import Prefix
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Prefill, Propose, Stamp
from tests.engine.heads.drafted_tree import new_host
from tests.engine.heads.random_heads import make_head

PREFIXES = [Prefix(i, np.arange(3 + 7 * i, 3 + 7 * i + n)) for i, n in enumerate((9, 1, 4, 13))]
"""The target has forwarded nothing of the prompt of one token: no head can draft after it."""
DRAFTING = [0, 2, 3]
LEVELS = 3


def cached_host(target: Path, head: Path) -> Host:
    """Return a worker whose target and head have cached all prompts."""
    host = new_host(target, head, PREFIXES)
    prompts = tuple(Prefix(p.sequence, p.tokens[: p.sequence + 1]) for p in PREFIXES)
    host.handle(Prefill("head", prompts))  # different numbers of rows are left to catch up
    return host


@pytest.mark.parametrize("kind", KINDS)
def test_a_level_is_one_forward_over_all_sequences(kind: str, target: Path, tmp_path: Path) -> None:
    head = make_head(tmp_path / "head", kind, target)
    shape = Static(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
    alone = [_drafted(cached_host(target, head), shape, [i], [LEVELS]) for i in DRAFTING]
    trees, stamps = _drafted(cached_host(target, head), shape, DRAFTING, [LEVELS] * 3)
    assert list(trees) == [tree for (tree,), _ in alone]
    assert [(s.batch, s.rows, s.context) for s in stamps] == [
        (3, sum(s.rows for s in level), sum(s.context for s in level))
        for level in zip(*(one for _, one in alone), strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_sequence_has_its_own_number_of_levels(kind: str, target: Path, tmp_path: Path) -> None:
    head = make_head(tmp_path / "head", kind, target)
    shape = Static(((0,), (1,), (0, 0), (0, 1), (0, 0, 0)))
    trees, stamps = _drafted(cached_host(target, head), shape, [0, 1, 2, 3], [1, 3, 0, 3])
    alone = {i: _drafted(cached_host(target, head), shape, [i], [n])[0][0] for i, n in ((0, 1), (3, 3))}
    assert list(trees) == [alone[0], (), (), alone[3]]
    assert stamps[-1].batch == (1 if len(stamps) > 1 else 2), "the last level has one sequence"


def _drafted(host: Host, shape: Static, numbers: list[int], levels: list[int]) -> tuple[tuple, list[Stamp]]:
    """Return the trees after some prefixes, and the stamps of the forwards."""
    prefixes = tuple(PREFIXES[i] for i in numbers)
    job = Propose("head", prefixes, shape, tuple(levels), False, tuple(() for _ in prefixes))
    reply = host.handle(job)
    rounded = tuple(
        tuple((node.id, node.parent, node.level, round(node.probability, 4), node.forward) for node in tree)
        for tree in reply.value
    )
    return rounded, list(reply.stamps)
