"""The columns of logits that one process holds: all of them, or a rank's part (`--tp`).

Rank r of N holds tokens r ceil(V / N) and up. Its rows of logits have ceil(V / N) columns, and -inf
where a column is beyond the vocabulary, so such a column never wins and has probability 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


class Joins(Protocol):
    """The ranks that hold the other columns (`engine.model.shard.Ranks`)."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        ...

    @property
    def ways(self) -> int:
        """Number of ranks."""
        ...

    @property
    def spent(self) -> int:
        """Nanoseconds in all calls so far, time to wait for other ranks included."""
        ...

    def join(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in order of rank."""
        ...


class Vocabulary:
    """The columns of a model's logits that this process holds.

    All ranks call the same functions in the same order. Each decides from joined numbers, which
    have the same bits on all ranks, so all decide the same.

    Args:
        size: V.
        ranks: The ranks that hold the other columns; None if all are here.
    """

    def __init__(self, size: int, ranks: Joins | None = None) -> None:
        self.size, self._ranks = size, ranks
        self.rank, self.ways = (0, 1) if ranks is None else (ranks.rank, ranks.ways)
        self.width = -(-size // self.ways)
        """C, the columns of this rank's rows."""
        self.first = self.rank * self.width
        """The token of column 0."""

    @property
    def split(self) -> bool:
        """Whether other ranks hold columns."""
        return self._ranks is not None

    @property
    def spent(self) -> int:
        """Nanoseconds of all communication of the ranks so far; 0 without ranks."""
        return 0 if self._ranks is None else self._ranks.spent

    def limited(self, logits: Tensor, size: int) -> Tensor:
        """Return rows without the tokens from `size` on: cut off, or -inf in a rank's part."""
        if not self.split:
            return logits[:, :size]
        kept = min(max(0, size - self.first), self.width)
        return logits if kept == self.width else pad(logits[:, :kept], (0, self.width - kept), value=-inf)

    def join(self, tensor: Tensor) -> Tensor:
        """Return the tensors of all N ranks, (N, ...)."""
        return tensor[None] if self._ranks is None else torch.stack(self._ranks.join(tensor))

    def gather(self, logits: Tensor) -> Tensor:
        """Return whole rows, (R, V), on every rank, from each rank's columns, (R, C)."""
        if self._ranks is None or not len(logits):
            return logits if self._ranks is None else logits.new_empty((0, self.size))
        return torch.cat(self._ranks.join(logits), 1)[:, : self.size]

    def part(self, rows: Tensor) -> Tensor:
        """Return this rank's columns, (..., C), of whole rows, (..., V), with zeros for padding."""
        if not self.split:
            return rows
        held = rows[..., self.first : self.first + self.width]
        return pad(held, (0, self.width - held.shape[-1]))

    def largest(self, logits: Tensor, count: int) -> Tensor:
        """Return the `count` largest logits of each row, (R, count), in any order."""
        best = logits.topk(min(count, self.width), sorted=False).values
        return torch.cat(list(self.join(best)), 1).topk(count, sorted=False).values


def first_best(values: np.ndarray, ids: np.ndarray) -> list[int]:
    """Return the id of each column's largest value, (N, R); among equals, the first rank's."""
    return np.take_along_axis(ids, values.argmax(0)[None], 0)[0].astype(int).tolist()


def host(tensor: Tensor) -> np.ndarray:
    """Copy numbers to the host; on a GPU this waits for the device."""
    return tensor.cpu().numpy()


def upload(numbers: Sequence[float] | Tensor, device: torch.device) -> Tensor:
    """Copy numbers to a device, as float64, without waiting for it."""
    here = torch.as_tensor(numbers, dtype=torch.float64)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here
