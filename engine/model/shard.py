"""Tensor parallelism: each rank holds a part of every layer, and ranks add their partial outputs.

Rank r of N has KV heads with their query heads, feed-forward columns, and a part of the LM head's
rows. Where N does not divide a number, zeros pad it (PEARL, ICLR 2025, appendix F): padded heads
and columns add exact zeros to the output. The hidden state has its whole width on every rank, so
norms and masks see no padding. A KV head and its query heads stay together, so no rank stores the
keys of another one; ranks beyond the number of KV heads have only padded heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from specscope.engine.errors import UsageError
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.weights import Linear

HEAD = "lm_head.weight"


class Ranks(Protocol):
    """The ranks that share a model, from the side of one of them.

    All ranks call the same functions in the same order, with tensors of the same shapes.
    """

    @property
    def rank(self) -> int: ...

    @property
    def ways(self) -> int: ...

    @property
    def spent(self) -> int:
        """Nanoseconds in all calls so far, time to wait for other ranks included."""
        ...

    def join(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in order of rank."""
        ...

    def add(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors; it has the same bits on every rank."""
        ...

    def agree(self, stopped: bool) -> bool:
        """Return whether any rank was stopped, so that all stop at the same place."""
        ...


class TensorPart(NamedTuple):
    """A range of a tensor's rows or columns; it may end beyond the tensor."""

    dim: int
    """0 for rows, 1 for columns."""
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a model that one rank holds.

    Raises:
        UsageError: The model norms the queries of all heads together, as OLMoE does.
    """

    whole: ModelShape
    rank: int
    ways: int

    def __post_init__(self) -> None:
        if self.ways > 1 and self.whole.qk_norm == "all":
            raise UsageError(
                f"{self.whole.family} norms the queries of all heads as one vector, so its heads are not split over "
                f"{self.ways} devices; leave tp and drafter_tp at 1"
            )

    @property
    def shape(self) -> ModelShape:
        """The rank's shape: fewer heads and columns, with padding; the whole vocabulary."""
        kv_heads = self._share(self.whole.kv_heads)
        heads = kv_heads * (self.whole.heads // self.whole.kv_heads)
        mixture = self.whole.mixture
        if mixture is not None:
            shares = self._share(mixture.inner), self._share(mixture.shared)
            mixture = mixture._replace(inner=shares[0], shared=shares[1])
        inner = self._share(self.whole.inner)
        return replace(self.whole, heads=heads, kv_heads=kv_heads, inner=inner, mixture=mixture)

    @property
    def vocabulary(self) -> TensorPart:
        """The rank's rows of the LM head."""
        return self._part(0, self._share(self.whole.vocab))

    def part(self, key: str) -> TensorPart | None:
        """Return the rank's part of a checkpoint's tensor; None for the whole tensor."""
        shape, (matrix, kind) = self.shape, key.split(".")[-2:]
        inner = shape.inner
        if shape.mixture is not None and ".experts." in key:
            inner = shape.mixture.inner
        elif shape.mixture is not None and ".shared." in key:
            inner = shape.mixture.shared
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        rows = {
            "q_proj": queries,
            "k_proj": keys,
            "v_proj": keys,
            "gate_proj": inner,
            "up_proj": inner,
        }
        columns = {"o_proj": queries, "down_proj": inner}
        if key == HEAD:
            return self.vocabulary
        if matrix in rows:
            return self._part(0, rows[matrix])
        return self._part(1, columns[matrix]) if matrix in columns and kind == "weight" else None

    def take(self, key: str, read: Callable[[str, TensorPart | None], Tensor]) -> Tensor:
        """Return the rank's padded part of a tensor; `read` leaves out what lies beyond its end."""
        part = self.part(key)
        tensor = read(key, part)
        if part is not None:
            return padded(tensor, part)
        # The bias of a sum is added once.
        summed = key.endswith((".o_proj.bias", ".down_proj.bias"))
        return tensor.zero_() if summed and self.rank else tensor

    def head(self, embedding: Tensor, take: Callable[[str], Tensor], ranks: Ranks) -> SplitHead:
        """Return the rank's LM head; a tied one shares the rows of the embeddings, (V, D)."""
        if not self.whole.tied:
            return SplitHead(take(HEAD), self.whole.vocab, ranks)
        rows = self.vocabulary
        return SplitHead(padded(embedding[rows.start : rows.stop], rows), self.whole.vocab, ranks)

    def _share(self, count: int) -> int:
        return -(-count // self.ways)

    def _part(self, dim: int, size: int) -> TensorPart:
        return TensorPart(dim, self.rank * size, (self.rank + 1) * size)


def padded(tensor: Tensor, part: TensorPart) -> Tensor:
    missing = part.stop - part.start - tensor.shape[part.dim]
    if not missing:
        return tensor
    return pad(tensor, (0, 0) * (tensor.ndim - 1 - part.dim) + (0, missing))


class SplitHead:
    """An LM head whose rows are split over ranks.

    Args:
        weight: This rank's rows, padded, (ceil(V / N), D).
        vocab: V.
        ranks: The ranks that hold the other rows.
    """

    def __init__(self, weight: Tensor, vocab: int, ranks: Ranks) -> None:
        self._linear, self._vocab, self._ranks = Linear(weight, keep=True), vocab, ranks

    def __call__(self, x: Tensor) -> Tensor:
        """Return all logits on every rank, (T, V), for x of (T, D)."""
        if not len(x):
            return x.new_empty((0, self._vocab))
        return torch.cat(self._ranks.join(self._linear(x)), 1)[:, : self._vocab]

    def rows(self, indices: Tensor) -> Tensor:
        """Return a copy of some rows of the whole head, (N, D), for N indices on every rank."""
        count = -(-self._vocab // self._ranks.ways)
        local = indices - self._ranks.rank * count
        held = (local >= 0) & (local < count)
        rows = self._linear.rows(local.clamp(0, count - 1))
        return self._ranks.add(rows * held[:, None])
