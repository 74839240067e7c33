"""What a head loses on a batch, and how many of its greedy drafts are accepted."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.heads.packed import Texts
from engine.heads.trainable import Frozen, TrainableHead
from engine.training.fit import Losses
from engine.training.heads.distil import distilled
from engine.training.options import HeadOptions


def head_losses(head: TrainableHead, texts: Texts, frozen: Frozen, options: HeadOptions) -> Losses:
    """Return the losses of one batch, summed over the places k of a draft with weight lambda_k.

    Cross-entropy to the text's tokens (offline distillation; ParallelSpec, equations 2 and 3), KL(p
    || q) to the target's distribution (online; equation 4, whose cross-entropy has the same
    gradient), or a mixture by `token_loss`; and smooth L1 to the target's features.

    With a shortened vocabulary, p is the target's distribution over the drafted tokens, and places
    whose token is none of them count in the smooth L1 only: there every draft is rejected. A bucket
    for the other tokens would give q a mass that no draft can use.

    Args:
        head: The head.
        texts: The batch.
        frozen: The target's embedding and LM head, and the tokens that the head drafts.
        options: Weights of the losses.
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
        """Acceptance rate of each place; None if no draft reached it."""
        return tuple(a / r if r else None for a, r in zip(self.accepted, self.reached, strict=True))

    @property
    def length(self) -> float:
        """Tokens per forward of the target with drafted chains, its own token included."""
        return 1.0 + sum(accumulate((rate or 0.0 for rate in self.rates), mul))

    def __add__(self, other: DraftAcceptance) -> DraftAcceptance:  # type: ignore[override]
        """Return the counts of both."""
        return DraftAcceptance(
            *(tuple(map(sum, zip(a, b, strict=True))) for a, b in zip(self, other, strict=True))
        )


@torch.no_grad()
def acceptance(head: TrainableHead, texts: Texts, frozen: Frozen, count: int) -> DraftAcceptance:
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
