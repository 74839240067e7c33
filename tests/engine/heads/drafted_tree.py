"""One drafted tree, level by level, for comparing a head's logits with a reference."""

from __future__ import annotations

import torch

from engine.heads.drafting import Columns
from engine.types import Prefix
from engine.workers.head_forwards import PrefixForwards
from engine.workers.host import Host
from engine.workers.jobs import Grown
from tests.engine.model import tiny

NODES = ((20, -1), (21, -1), (22, 0), (23, 1), (24, 1))
"""Token and parent of each node."""
GROWN = [((), [-1]), ((0, 1), [0, 1]), ((0, 1, 2, 3, 4), [3, 4])]
"""Nodes above each level, and their parents of the level's nodes."""


def level_rows(host: Host, prefix: Prefix, levels: int) -> list[torch.Tensor | None]:
    """Return the logits of the host's head at each level of the tree, over all tokens."""
    head = host.forwards.heads["head"]
    logits = head.draft(PrefixForwards(host.forwards, "head", prefix, [], levels))
    level = [0, 0, 1, 1, 1]
    nodes = [Grown(*node, level[i], -1, 0.0, (), 0) for i, node in enumerate(NODES)]
    drafted = (logits(nodes[: len(above)], parents) for above, parents in GROWN)
    return [rows if rows is None else spread(rows, head.columns) for rows in drafted]


def spread(rows: torch.Tensor, columns: Columns) -> torch.Tensor:
    """Return logits over all tokens, (R, V); -inf for tokens without a column."""
    full = torch.full((len(rows), tiny.VOCAB), -torch.inf)
    full[:, [columns.token(i) for i in range(rows.shape[1])]] = rows
    return full


def path_to(node: int) -> list[int]:
    """Return the tokens from the first level to a node."""
    return [] if node < 0 else [*path_to(NODES[node][1]), NODES[node][0]]
