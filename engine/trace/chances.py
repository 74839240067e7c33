"""Drafts beside an output: the accepted tokens, and the probabilities under drafter and target."""

from __future__ import annotations

from typing import Any

import torch

TOP = 5
"""Most probable tokens recorded of each judged token."""


def common(one: list[int], other: list[int]) -> int:
    """Return the number of first tokens that are equal.

    A draft's accepted tokens are those that it shares with the output: the target's own token is
    another one than the rejected one.
    """
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def chances(
    name: str,
    logits: torch.Tensor | None,
    drafted: list[int],
    own: list[int] | tuple[()] = (),
    place: int = 0,
) -> dict[str, Any]:
    """Return the arguments `name` and `top_name` of a round; nothing without logits.

    Args:
        name: `p` or `q`.
        logits: (rows, vocabulary).
        drafted: Tokens of the first rows.
        own: The token that the target drew at row `place`, or nothing.
        place: Its row.
    """
    tokens = [*drafted, *own]
    if logits is None or not tokens:
        return {}
    rows = logits[[*range(len(drafted)), *([place] if own else [])]]
    likely = rows.float().softmax(-1)
    best = likely.topk(min(TOP, likely.shape[-1]))
    chosen = likely.gather(1, torch.tensor(tokens, device=rows.device)[:, None])[:, 0]
    tops = [
        list(zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return {name: chosen.tolist(), f"top_{name}": tops}
