"""One drafted tree, level by level: what a head is asked for when its logits are held against a reference."""

from __future__ import annotations

import torch

from engine.drafters.static import tree
from engine.types import Prefix
from engine.workers.heads import HEADS
from engine.workers.host import Host
from engine.workers.jobs import Grow, Grown

NODES = ((20, -1), (21, -1), (22, 0), (23, 1), (24, 1))
"""Token and parent of each node."""
GROWN = [((), [-1]), ((0, 1), [0, 1]), ((0, 1, 2, 3, 4), [3, 4])]
"""Of each level: the nodes there are, and those that get children."""


def level_rows(host: Host, prefix: Prefix, levels: int) -> list[torch.Tensor | None]:
    """Return the logits that the host's head says at each level of the tree."""
    job = Grow("head", (prefix,), tree("medusa"), (levels,), sampled=False, rows=((),))
    rows = HEADS[type(host.forwards.heads["head"])](host.forwards, job, [])
    level = [0, 0, 1, 1, 1]
    nodes = [Grown(*node, level[i], -1, 0.0, (), 0) for i, node in enumerate(NODES)]
    return [rows(nodes[: len(there)], at) for there, at in GROWN]


def path_to(node: int) -> list[int]:
    """Return the tokens on the way to a node."""
    return [] if node < 0 else [*path_to(NODES[node][1]), NODES[node][0]]
