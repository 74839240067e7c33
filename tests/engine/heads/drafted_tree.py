"""One drafted tree, level by level, for comparing a head's logits with a reference."""

from __future__ import annotations

import torch

from engine.types import Prefix
from engine.workers.head_forwards import PrefixForwards
from engine.workers.host import Host
from engine.workers.jobs import Grown

NODES = ((20, -1), (21, -1), (22, 0), (23, 1), (24, 1))
"""Token and parent of each node."""
GROWN = [((), [-1]), ((0, 1), [0, 1]), ((0, 1, 2, 3, 4), [3, 4])]
"""Nodes above each level, and their parents of the level's nodes."""


def level_rows(host: Host, prefix: Prefix, levels: int) -> list[torch.Tensor | None]:
    """Return the logits of the host's head at each level of the tree."""
    logits = host.forwards.heads["head"].draft(PrefixForwards(host.forwards, "head", prefix, [], levels))
    level = [0, 0, 1, 1, 1]
    nodes = [Grown(*node, level[i], -1, 0.0, (), 0) for i, node in enumerate(NODES)]
    return [logits(nodes[: len(above)], parents) for above, parents in GROWN]


def path_to(node: int) -> list[int]:
    """Return the tokens from the first level to a node."""
    return [] if node < 0 else [*path_to(NODES[node][1]), NODES[node][0]]
