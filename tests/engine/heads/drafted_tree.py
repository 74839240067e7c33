"""One drafted tree, level by level, for comparing a head's logits with a reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.heads.drafting import Columns
from specscope.engine.heads.files import check_head
from specscope.engine.heads.find import load_head
from specscope.engine.heads.packed import Frozen, Texts, pack, states_of
from specscope.engine.layout import Packing
from specscope.engine.types import Prefix, Sampling
from specscope.engine.worker.head_forwards import PackedForwards
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Begin, Grown, LoadModel, Prefill
from tests.engine.model import tiny

NODES = ((20, -1), (21, -1), (22, 0), (23, 1), (24, 1))
"""Token and parent of each node."""
LEVELS = (0, 0, 1, 1, 1)
"""The level of each node."""
FRONTIERS = ([-1], [0, 1], [3, 4])
"""Parents of each level's nodes."""


def new_host(
    target: Path,
    head: Path,
    prefixes: Sequence[Prefix],
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    *,
    static: bool = False,
    capacity: int = 64,
) -> Host:
    """Return a worker with a target and a head, after the target's prefill of the prefixes."""
    host = Host("worker")
    host.handle(LoadModel("target", partial(load, str(target), forward="static" if static else "eager")))
    host.handle(LoadModel("head", partial(load_head, str(head)), beside="target"))
    features = check_head(head, target).features or (-1,)
    host.handle(Begin(sampling, len(prefixes), capacity, tiny.VOCAB, Packing(), 1, features=features))
    host.handle(Prefill("target", tuple(prefixes)))
    return host


class Tree:
    """The tree after a prefix (`specscope.engine.heads.drafting.Growing`), at a depth."""

    def __init__(self, prefix: Prefix, levels: int) -> None:
        self.prefix, self.levels, self.depth = prefix, levels, 0

    @property
    def nodes(self) -> list[Grown]:
        return [Grown(*NODES[i], LEVELS[i], -1, 0.0, (), 0) for i in range(5) if LEVELS[i] < self.depth]

    @property
    def frontier(self) -> list[int]:
        return FRONTIERS[self.depth]

    def level(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the frontier's tokens and the rows of their parents; the nodes above have rows."""
        rows = [-1, *(node for frontier in FRONTIERS[1 : self.depth] for node in frontier)]
        nodes = [NODES[i] for i in self.frontier]
        return tuple(token for token, _ in nodes), tuple(rows.index(parent) - 1 for _, parent in nodes)


def level_rows(host: Host, prefix: Prefix, levels: int) -> list[torch.Tensor]:
    """Return the logits of the host's head at each level of the tree, over all tokens."""
    head, forwards = host.forwards.heads["head"], PackedForwards(host.forwards, "head", [])
    logits, tree, found = head.draft(forwards), Tree(prefix, levels), list[torch.Tensor]()
    assert forwards.begin(prefix), "the target has forwarded the prefix"
    for tree.depth in range(len(FRONTIERS)):
        (rows,) = logits([tree])
        found.append(spread(rows, head.columns))
    return found


def spread(rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """Return logits over all tokens, (R, V); -inf for tokens without a column."""
    full = torch.full((len(rows), tiny.VOCAB), -torch.inf)
    full[:, [columns.token(i) for i in range(rows.shape[1])]] = rows
    return full


def path_to(node: int) -> list[int]:
    return [] if node < 0 else [*path_to(NODES[node][1]), NODES[node][0]]


def state_after(head: Any, texts: Texts, frozen: Frozen, path: Sequence[int]) -> torch.Tensor:
    """Return the head's state after the text up to its first anchor and some drafts, (D,)."""
    n, place = int(texts.anchors[0]), len(path)
    ids = texts.ids.clone()
    ids[n + 1 : n + 1 + place] = torch.tensor(path, dtype=torch.int64)
    texts = texts._replace(ids=ids, embedded=frozen.embed(ids))
    learned = head.learn(texts)
    if place < len(learned):
        return learned[place].states[learned[place].labels == n + 1 + place][-1]
    states = list[torch.Tensor]()  # EAGLE's later drafts read its own states
    for _ in range(place + 1):
        packed = pack(texts, 0, within=True)
        features = texts.features.clone()
        features[n : n + len(states)] = torch.stack(states) if states else features[:0]
        inputs = (texts.embedded[packed.tokens], features[packed.tokens - 1], packed)
        states.append(states_of(head, *inputs)[packed.tokens == n + len(states)][0])
    return states[-1]
