"""The loss of a head's states against the target, with its gradient, for a few states at a time.

With a vocabulary of 49,152, logits and their gradients are most of a step's work and memory. Here
no logits are kept for the backward pass: the gradient of the states is computed with the loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CHUNK = 128
"""States whose logits are in memory at once."""


class _Distilled(torch.autograd.Function):
    """share CE + (1 - share) KL(p || q), averaged over states.

    The gradient of a state's logits is q - share onehot(token) - (1 - share) p.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, features: Tensor, tokens: Tensor, lm_head: Tensor, own: Tensor, share: float
    ) -> Tensor:
        total = states.new_zeros((), dtype=torch.float32)
        gradient, count = torch.empty_like(states), len(states)
        learned = torch.zeros_like(own, dtype=torch.float32) if own.requires_grad else None
        for first in range(0, count, _CHUNK):
            rows = slice(first, first + _CHUNK)
            chosen = tokens[rows, None]
            z = states[rows] @ own.T
            q, normaliser = _softmax(z)
            if share:
                total += share * (normaliser - z.gather(-1, chosen)[:, 0]).sum()
            if share < 1:
                y = features[rows] @ lm_head.T
                p, target_normaliser = _softmax(y)
                ratio = y.sub_(z).mul_(p).sum(-1, dtype=torch.float32)
                total += (1 - share) * (ratio - target_normaliser + normaliser).sum()
                q.sub_(p, alpha=1 - share)
            if share:
                q.scatter_add_(-1, chosen, torch.full_like(chosen, -share, dtype=q.dtype))
            gradient[rows] = q @ own
            if learned is not None:
                learned += q.T @ states[rows]
        ctx.save_for_backward(gradient.div_(count), learned if learned is None else learned.div_(count))
        return total / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient, learned = ctx.saved_tensors
        scaled = None if learned is None else (learned * gradients[0]).to(gradient.dtype)
        return gradient * gradients[0], None, None, None, scaled, None


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities, (A, V), and the logarithm of their normaliser, (A,) float32."""
    p = logits.softmax(-1)
    return p, logits.amax(-1).float() - p.amax(-1).float().log()


def distilled(
    states: Tensor,
    features: Tensor,
    tokens: Tensor,
    lm_head: Tensor,
    share: float,
    own: Tensor | None = None,
) -> Tensor:
    """Return `share` times the cross-entropy plus the rest times KL(p || q), a scalar.

    Under autocast its matrix products have autocast's dtype.

    Args:
        states: The head's states, (A, D); q is the softmax of their logits.
        features: The target's features in their place, (A, D); p is the softmax of their logits.
        tokens: The text's tokens in their place, (A,) int64.
        lm_head: The target's, (V, D).
        share: Weight of the cross-entropy, from 0 to 1.
        own: The head's own LM head, (V, D), which is learned too; None: the target's.
    """
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else lm_head.dtype
    with torch.autocast(kind, enabled=False):
        given = lm_head.to(dtype)
        inputs = (
            states.to(dtype),
            features.to(dtype),
            tokens,
            given,
            given if own is None else own.to(dtype),
        )
        return _Distilled.apply(*inputs, share)  # pyright: ignore[reportReturnType]
