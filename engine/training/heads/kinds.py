"""The kinds of drafting heads: what is built, what its file says, what it loses and what it accepts."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from engine.heads.form import PARALLEL
from engine.model.shape import ModelShape
from engine.training.fit import Losses
from engine.training.heads.layered import Eagle, ParallelEagle, ParallelMedusa
from engine.training.heads.layout import Texts
from engine.training.heads.side import Frozen, Hydra, Medusa
from engine.training.options import HeadOptions

Head = Medusa | Hydra | Eagle | ParallelEagle | ParallelMedusa


def build(kind: str, shape: ModelShape, size: int, seed: int, scale: float = 1.0, level: float = 1.0) -> Head:
    """Return a head before its training; its weights are a function of the seed.

    Args:
        kind: One of `engine.training.options.HEADS`.
        shape: Of the target.
        size: Heads, or masks.
        seed: Fixes the weights.
        scale: What embeddings are multiplied with in training, to be as large as features.
        level: Root mean square of the features.
    """
    makers = {
        "medusa": lambda: Medusa(shape.width, size),
        "hydra": lambda: Hydra(shape.width, size, scale),
        "eagle": lambda: Eagle(shape, scale),
        "parallelspec_medusa": lambda: ParallelMedusa(shape, size, scale, level),
        "parallelspec_eagle": lambda: ParallelEagle(shape, size, scale, level),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return makers[kind]()


def drafts_of(kind: str, size: int) -> int:
    """Return how many tokens a head of that size drafts: a parallel drafter's token row drafts one, too."""
    return size + 1 if kind in PARALLEL else size


def head_losses(head: Head, texts: Texts, frozen: Frozen, options: HeadOptions) -> Losses:
    """Return the losses of one batch, summed over the places of a draft with their weights lambda_k.

    Cross-entropy to the text's tokens (offline distillation; ParallelSpec, equations 2 and 3), KL(p || q) to the target's
    distribution (online; equation 4, whose cross-entropy has the same gradient), or a mixture by `token_loss`; and smooth
    L1 to the target's features.
    """
    total, places = torch.zeros((), device=texts.ids.device), list[torch.Tensor]()
    for k, (states, labels) in enumerate(head.learn(texts)):
        logits, features = states @ frozen.lm_head.T, texts.features[labels - 1]
        loss = torch.zeros_like(total)
        if options.token_loss:
            loss = loss + options.token_loss * functional.cross_entropy(logits, texts.ids[labels])
        if options.token_loss < 1:
            log_p = (features @ frozen.lm_head.T).log_softmax(-1)
            divergence = functional.kl_div(
                logits.log_softmax(-1), log_p, log_target=True, reduction="batchmean"
            )
            loss = loss + (1 - options.token_loss) * divergence
        places.append(loss.detach())
        if options.regression:
            loss = loss + options.regression * functional.smooth_l1_loss(states, features)
        total = total + options.fade**k * loss
    found = tuple(round(place, 5) for place in torch.stack(places).tolist())
    return Losses(total, total.item(), None, found)


class Acceptance(NamedTuple):
    """How often greedy drafts are what the target writes greedily, by place in the draft."""

    reached: tuple[int, ...]
    """Drafts of which every token before this one was accepted."""
    accepted: tuple[int, ...]
    """Those of which this one was accepted, too."""

    @property
    def rates(self) -> tuple[float | None, ...]:
        """Share of the drafts that get there of which the next token is accepted; None where none gets there."""
        return tuple(a / r if r else None for a, r in zip(self.accepted, self.reached, strict=True))

    @property
    def length(self) -> float:
        """Tokens per forward of the target when one chain is drafted: the accepted ones and the target's own."""
        return 1.0 + sum(accumulate((rate or 0.0 for rate in self.rates), mul))

    def __add__(self, other: Acceptance) -> Acceptance:  # type: ignore[override]
        """Return both as one."""
        return Acceptance(
            *(tuple(map(sum, zip(a, b, strict=True))) for a, b in zip(self, other, strict=True))
        )


@torch.no_grad()
def acceptance(head: Head, texts: Texts, frozen: Frozen, count: int) -> Acceptance:
    """Draft `count` tokens behind every anchor and compare them with the text, as far as it is greedy.

    A place counts when the text up to it is what the target writes greedily from the anchor on.
    """
    drafts = head.draft(texts, frozen, count)
    greedy = frozen.best(texts.features)
    anchors = torch.from_numpy(texts.anchors).to(drafts.device)
    alive = torch.ones_like(anchors, dtype=torch.bool)
    reached, accepted = list[int](), list[int]()
    for k in range(count):
        inside = np.isin(texts.anchors, texts.reaching(k + 1))
        at = (anchors + 1 + k).clamp(max=len(texts.ids) - 1)
        alive &= torch.from_numpy(inside).to(drafts.device) & (greedy[at - 1] == texts.ids[at])
        reached.append(int(alive.sum()))
        alive &= drafts[:, k] == texts.ids[at]
        accepted.append(int(alive.sum()))
    return Acceptance(tuple(reached), tuple(accepted))
