"""An LM head of some of the target's tokens (FR-Spec, Zhao et al. 2025, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.weights import Linear


class DraftVocabulary:
    """An LM head of some of the target's tokens; the other tokens have logit -inf.

    A drafter with such a head gives the other tokens q = 0, so rules that verify drafts stay exact.

    Args:
        lm_head: Returns the logits of N tokens.
        ids: Their ids in the target's vocabulary, (N,).
        vocab: V.
    """

    def __init__(self, lm_head: Linear, ids: Tensor, vocab: int) -> None:
        self._lm_head, self._ids, self._vocab = lm_head, ids, vocab

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of all tokens, (T, V), for x of (T, D)."""
        logits = x.new_full((len(x), self._vocab), -torch.inf)
        return logits.index_copy_(1, self._ids, self._lm_head(x))
