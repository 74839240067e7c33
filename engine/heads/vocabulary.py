"""The shortened vocabulary of a drafting head (FR-Spec, Zhao et al. 2025, arXiv 2502.14856).

A head may draft N of the target's V tokens: its logits then have N columns, and column i is the
target's token i + d2t[i]. The head's LM head is N rows of the target's, so a row of a draft costs
N x D products instead of V x D. All other tokens have q = 0, so the rules that verify drafts stay
exact.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.heads.config import HeadConfig, TensorShapes
from engine.heads.drafting import Columns, Take
from engine.heads.published import Published
from engine.model.decoder import Decoder
from engine.model.shard import SplitHead
from engine.model.weights import Linear
from engine.pairs.checkpoint import Checkpoint


def vocabulary_tensors(config: HeadConfig) -> TensorShapes:
    """Return name and shape of the map to the target's tokens; none for a whole vocabulary."""
    return {"d2t": (config.draft_vocab,)} if config.draft_vocab else {}


def vocabulary_share(config: HeadConfig) -> float:
    """Return N / V, the size of one product with the LM head."""
    return config.draft_vocab / config.vocab_size if config.draft_vocab else 1.0


def target_ids(d2t: Tensor) -> Tensor:
    """Map draft ids to target ids: target_id[i] = i + d2t[i], shape (N,)."""
    return torch.arange(len(d2t), device=d2t.device) + d2t


def offsets(ids: Tensor) -> Tensor:
    """Return the d2t of some target ids, (N,): the inverse of `target_ids`."""
    return ids - torch.arange(len(ids), device=ids.device)


def lent_lm_head(config: HeadConfig, take: Take, target: Decoder) -> tuple[Linear | SplitHead, Columns]:
    """Return the target's LM head, or the rows of it that a head drafts from, and its columns."""
    lm_head = target.head
    assert isinstance(lm_head, Linear | SplitHead), "a target has its own LM head"
    if not config.draft_vocab:
        return lm_head, Columns()
    tokens = target_ids(take("d2t")).sort().values
    return Linear(lm_head.rows(tokens), bits=8), Columns(tokens)


def own_lm_heads(config: HeadConfig, take: Take, names: Iterable[str]) -> tuple[list[Linear], Columns]:
    """Return the LM heads of these names, rows in the order of the target's, and their columns."""
    weights = map(take, names)
    if not config.draft_vocab:
        return [Linear(weight, bits=8) for weight in weights], Columns()
    tokens, order = target_ids(take("d2t")).sort()
    return [Linear(weight[order], bits=8) for weight in weights], Columns(tokens)


def check_ids(path: Path, weights: Checkpoint, head: Published) -> None:
    """Check that d2t maps every draft token to a different token of the target.

    Raises:
        ModelError: A token is outside the vocabulary or repeated, or `t2d` marks other tokens.
    """
    if not head.config.draft_vocab:
        return
    cpu, vocab = torch.device("cpu"), head.config.vocab_size
    ids = target_ids(weights.take(head.names["d2t"], cpu, torch.int64))
    for i in ((ids < 0) | (ids >= vocab)).nonzero()[:1, 0].tolist():
        raise ModelError(f"{path}: d2t maps draft token {i} to {int(ids[i])}; valid are 0 to {vocab - 1}")
    tokens, counts = ids.unique(return_counts=True)
    for i in (counts > 1).nonzero()[:1, 0].tolist():
        raise ModelError(
            f"{path}: d2t maps {int(counts[i])} draft tokens to {int(tokens[i])}; at most one may"
        )
    if (t2d := head.names.get("t2d")) is not None:
        weights.check_type(t2d, ("BOOL",))
        marks = weights.take(t2d, cpu, torch.bool)
        if marks.shape != (vocab,) or not torch.equal(marks.nonzero()[:, 0], tokens):
            raise ModelError(f"{path}: t2d and d2t mark different tokens; the file is broken")
