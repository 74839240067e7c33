"""Shorten a trained head's vocabulary, or store it as int8, without training."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.errors import UsageError
from engine.heads.files import read_head, write_head
from engine.heads.vocabulary import offsets
from engine.pairs.config import read_config
from engine.training.data import Corpus
from engine.training.loop import check_empty, read_facts, write_facts
from engine.training.target_text import read_text
from engine.types import check_range


class Vocabulary(NamedTuple):
    """The tokens that a head drafts."""

    tokens: Tensor
    """(N,) int64, rising."""
    coverage: float
    """Share of the answers' tokens that are among them."""

    def facts(self, vocab: int) -> dict[str, float]:
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
    if corpus.answers is None:
        return corpus.ids
    change = np.zeros(len(corpus.ids) + 1, dtype=np.int64)
    change[corpus.answers] += 1
    change[corpus.starts[1:]] -= 1
    return corpus.ids[np.cumsum(change)[:-1] > 0]


def shorten_head(
    head: Path,
    target: Path,
    out: Path,
    *,
    text: Path | None = None,
    vocabulary: int = 0,
    int8: bool = False,
    keep: Collection[str] = (),
) -> dict[str, Any]:
    """Write a head that drafts the most frequent tokens of its target's answers only.

    Args:
        head: The head's directory.
        target: Directory of its target.
        out: New folder for the result.
        text: File of text that the target wrote; not read if all tokens stay.
        vocabulary: N; 0 for all tokens of the target.
        int8: Store matrices as int8, except those to `keep`, which stay in bf16.
        keep: Names of matrices.

    Returns:
        Number of tokens, of how many, and their share of the answers; empty if all tokens stay.

    Raises:
        UsageError: A setting is wrong, `out` is in use, the head is for another target or has its
            own LM head, or the text is another target's.
        ModelError: The head or the text is broken.
    """
    check_empty(out)
    config, tensors = read_head(head, target)
    if config.own_lm_head or "lm_head.weight" in tensors:
        raise UsageError(
            f"{head} has an LM head of its own, which stays as it is; only heads with the target's can be shortened"
        )
    tensors.pop("d2t", None)
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    if unknown := [name for name in keep if name not in matrices]:
        raise UsageError(f"{unknown[0]} is no matrix of this head; its matrices are {', '.join(matrices)}")
    vocab, facts = read_config(target).vocab_size, dict[str, Any]()
    if vocabulary:
        if text is None:
            raise UsageError("a shorter vocabulary needs --text, written.safetensors of an earlier training")
        chosen = most_frequent(read_text(text, target), vocabulary, vocab)
        tensors["d2t"], facts = offsets(chosen.tokens), chosen.facts(vocab)
    out.mkdir(parents=True, exist_ok=True)
    write_head(out, replace(config, vocab_size=vocab, draft_vocab=vocabulary), tensors, int8=int8, keep=keep)
    before = {
        name: fact for name, fact in read_facts(head).items() if name not in ("acceptance", "vocabulary")
    }
    if before or facts:
        write_facts(out, before | ({"vocabulary": facts} if facts else {}))
    return facts
