"""Which tokens a head with a shortened vocabulary drafts: the most frequent ones in answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.training.data import Corpus
from engine.types import check_range


class Vocabulary(NamedTuple):
    """The tokens that a head drafts."""

    tokens: Tensor
    """(N,) int64, rising."""
    coverage: float
    """Share of the answers' tokens that are among them."""

    def facts(self, vocab: int) -> dict[str, float]:
        """Return the facts for the card; `vocab` is the target's V."""
        return {"tokens": len(self.tokens), "of": vocab, "coverage": round(self.coverage, 5)}


def most_frequent(corpus: Corpus, count: int, vocab: int) -> Vocabulary:
    """Return the `count` most frequent tokens of the answers; among equals, lower ids first.

    Raises:
        UsageError: The target has fewer tokens.
    """
    check_range("vocabulary", count, 1, vocab)
    counts = np.bincount(_answers(corpus), minlength=vocab)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:count])
    return Vocabulary(torch.from_numpy(chosen), float(counts[chosen].sum() / max(1, counts.sum())))


def _answers(corpus: Corpus) -> np.ndarray:
    """Return the tokens of all answers."""
    if corpus.answers is None:
        return corpus.ids
    change = np.zeros(len(corpus.ids) + 1, dtype=np.int64)
    change[corpus.answers] += 1
    change[corpus.starts[1:]] -= 1
    return corpus.ids[np.cumsum(change)[:-1] > 0]
