"""What a head loses on a batch, and how many of its greedy drafts are accepted."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specscope.engine.heads.packed import Frozen, Texts
from specscope.engine.training.settings import HeadOptions
from specscope.engine.training.step import Losses

_CHUNK = 128
"""States whose logits are in memory at once."""


class _Distilled(torch.autograd.Function):
    """The mean of share CE + (1 - share) KL(p || q) over states.

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

    Under autocast its matrix products have autocast's dtype. `states`, (A, D), are the head's, and
    `features`, (A, D), the target's in their place: q and p are the softmax of their logits.
    `tokens`, (A,) int64, are the text's in their place. `own` is the head's own LM head, which is
    learned too, or None for the target's `lm_head`, (V, D) each.
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


def head_losses(head: Any, texts: Texts, frozen: Frozen, options: HeadOptions) -> Losses:
    """Return the losses of one batch, summed over the places k of a draft with weight lambda_k.

    Cross-entropy to the text's tokens (offline distillation; ParallelSpec, equations 2 and 3), KL(p
    || q) to the target's distribution (online; equation 4, whose cross-entropy has the same
    gradient), or a mixture by `token_loss`; and smooth L1 to the target's features.

    With a shortened vocabulary, p is the target's distribution over the drafted tokens, and places
    whose token is none of them count in the smooth L1 only: there every draft is rejected. A bucket
    for the other tokens would give q a mass that no draft can use.
    """
    total, places = torch.zeros((), device=texts.ids.device), list[Tensor]()
    for k, learned in enumerate(head.learn(texts)):
        states, labels, own = learned.of_answers(texts)
        if not len(labels):  # the batch has no draft of this length
            places.append(torch.zeros_like(total))
            continue
        features = texts.features[labels - 1]
        columns, drafted = frozen.columns(texts.ids[labels])
        loss = states.sum() * 0.0
        if drafted.any():
            p, q, chosen = features[drafted], states[drafted], columns[drafted]
            loss = distilled(q, p, chosen, frozen.draft_lm_head, options.token_loss, own)
        places.append(loss.detach())
        if options.regression:
            loss = loss + options.regression * functional.smooth_l1_loss(states, features)
        total = total + options.fade**k * loss
    by_place = tuple(round(place, 5) for place in torch.stack(places).tolist())
    return Losses(total, total.item(), None, by_place)


class DraftAcceptance(NamedTuple):
    """How many greedy drafts equal the target's greedy text, by place in the draft."""

    reached: tuple[int, ...]
    """Drafts whose earlier tokens were all accepted."""
    accepted: tuple[int, ...]
    """Of these, the drafts whose token here was accepted, too."""

    @property
    def rates(self) -> tuple[float | None, ...]:
        """By place; None if no draft reached it."""
        return tuple(a / r if r else None for a, r in zip(self.accepted, self.reached, strict=True))

    @property
    def length(self) -> float:
        """Tokens per forward of the target with drafted chains, its own token included."""
        return 1.0 + sum(accumulate((rate or 0.0 for rate in self.rates), mul))

    def __add__(self, other: DraftAcceptance) -> DraftAcceptance:  # type: ignore[override]
        return DraftAcceptance(
            *(tuple(map(sum, zip(a, b, strict=True))) for a, b in zip(self, other, strict=True))
        )


@torch.no_grad()
def acceptance(head: Any, texts: Texts, frozen: Frozen, count: int) -> DraftAcceptance:
    """Draft `count` tokens after every anchor and compare them with the text.

    A place counts if the text from the anchor to it is the target's greedy choice.
    """
    drafts = head.draft(texts, frozen, count)
    greedy = frozen.target_best(texts.features)
    anchors = torch.from_numpy(texts.anchors).to(drafts.device)
    alive = torch.ones_like(anchors, dtype=torch.bool)
    reached, accepted = list[int](), list[int]()
    for k in range(count):
        inside = np.isin(texts.anchors, texts.anchors_with(k + 1))
        at = (anchors + 1 + k).clamp(max=len(texts.ids) - 1)
        alive &= torch.from_numpy(inside).to(drafts.device) & (greedy[at - 1] == texts.ids[at])
        reached.append(int(alive.sum()))
        alive &= drafts[:, k] == texts.ids[at]
        accepted.append(int(alive.sum()))
    return DraftAcceptance(tuple(reached), tuple(accepted))
