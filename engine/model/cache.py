"""The KV cache: one preallocated tensor, laid out so that a slot's rows of one head stand next to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.model.slots import Slots
from engine.model.stage import from_bytes, to_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from engine.model.shape import ModelShape
    from engine.model.slots import Rows

_REUSED = 32
"""Buffers of forwards of up to this many rows are kept for the next one."""


class Cache(Slots):
    """Slots with their keys and values. It also lends its forwards their buffers, so it serves one at a time.

    Args:
        shape: The model's shape.
        slots: Number of sequences held at once.
        capacity: Rows a slot can hold, tree rows included.
        dtype: Of keys and values.
        device: Where they live.
    """

    def __init__(
        self, shape: ModelShape, slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(slots, capacity, shape.context)
        self.shape = shape
        size = (shape.layers, slots, 2 * shape.kv_heads, capacity, shape.head_dim)
        self.tensor = torch.zeros(size, dtype=dtype, device=device)
        """Keys, then values: (layers, slots, 2 x kv_heads, capacity, head_dim)."""
        self.features: Tensor | None = None
        """Hidden states of the rows, (slots, capacity, k D), where a run keeps some (see `remember`)."""
        self._buffers: dict[int, Buffers] = {}

    def remember(self, rows: Rows, states: Tensor) -> None:
        """Keep a hidden state of rows just added, (T, k D), beside their keys and values."""
        if self.features is None or self.features.shape[2] != states.shape[1]:
            self.features = states.new_zeros((self.slots, self.capacity, states.shape[1]))
        for slot, first, end in rows.segments():
            stop = self.length(slot)
            self.features[slot, stop - (end - first) : stop] = states[first:end]

    def align(self, length: int, more: int = 0) -> None:
        """Let attention read padding (see `Slots.align`); the tensor grows where that lies beyond its rows."""
        super().align(length, more)
        rows = self.tensor.shape[3]
        if length + more > rows:
            grown = self.tensor.new_zeros(
                (*self.tensor.shape[:3], length + more + rows // 2, self.shape.head_dim)
            )
            grown[:, :, :, :rows] = self.tensor
            self.tensor = grown

    def keep(self, slot: int, path: np.ndarray) -> None:
        """Make the rows of a path the trunk, tensors included, and drop all others."""
        n = len(path)
        moved = n > 0 and int(path[-1]) != n - 1  # indices grow along a path, so its last one tells
        if moved:
            first = int((path != np.arange(n)).argmax())
            rows = torch.from_numpy(path[first:]).to(self.tensor.device)
            held = self.tensor[:, slot]
            held[:, :, first:n] = held.index_select(2, rows)
            if self.features is not None:
                self.features[slot, first:n] = self.features[slot].index_select(0, rows)
        super().keep(slot, path)

    def pick(self, slot: int, path: np.ndarray) -> bytes:
        """Return keys and values, (layers, 2 x kv_heads, n, head_dim) as bytes."""
        if self.absent[slot, path].any():
            return b""
        rows = torch.from_numpy(path).to(self.tensor.device)
        return to_bytes(self.tensor[:, slot].index_select(2, rows))

    def plant(self, slot: int, tokens: np.ndarray, data: bytes) -> None:
        """Add rows with their keys and values (see `Slots.plant`)."""
        first, last = self.length(slot), self.length(slot) + len(tokens)
        shape = (self.shape.layers, 2 * self.shape.kv_heads, len(tokens), self.shape.head_dim)
        new = from_bytes(data, shape, self.tensor) if data else None
        super().plant(slot, tokens, data)
        if new is not None:
            self.tensor[:, slot, :, first:last] = new

    def buffers(self, count: int) -> Buffers:
        """Return the buffers of a forward of that many rows."""
        found = self._buffers.get(count) or Buffers(self.shape, count, self.tensor)
        if count <= _REUSED:
            self._buffers[count] = found
        return found


class Buffers:
    """Where the layers of a forward leave what they work out, one after the other, and views of it.

    Made once per number of rows: beside a few rows of a small model, making views takes a noticeable time.

    Args:
        shape: The model's shape.
        count: Rows of the forward, T.
        like: A tensor of the type and on the device to use.
    """

    def __init__(self, shape: ModelShape, count: int, like: Tensor) -> None:
        heads, kv_heads, size = shape.heads, shape.kv_heads, shape.head_dim
        qkv = like.new_empty(count, (heads + 2 * kv_heads) * size)
        self.qkv = qkv
        by_head = qkv.view(count, heads + 2 * kv_heads, size)
        self.queries = by_head.narrow(1, 0, heads)
        """(T, heads, head_dim)."""
        self.turned = by_head.narrow(1, 0, heads + kv_heads)
        """Queries and keys, (T, heads + kv_heads, head_dim)."""
        self.kv = by_head.narrow(1, heads, 2 * kv_heads).transpose(0, 1)
        """Keys, then values, (2 x kv_heads, T, head_dim)."""
        self.read = like.new_empty(count, heads * size)
        """What attention reads, (T, heads x head_dim)."""
        gate_up = like.new_empty(count, 2 * shape.inner)
        self.gate_up = gate_up
        self.gate, self.up = gate_up.split(shape.inner, 1)
        self._exact = like.dtype in (torch.float32, torch.float64)
        if self._exact:
            self._pairs = torch.view_as_complex(self.turned.view(count, heads + kv_heads, size // 2, 2))

    def rotate(self, rotation: Tensor) -> None:
        """Multiply the pairs of queries and keys by `rotation`, (T, heads + kv_heads, head_dim / 2) complex."""
        if self._exact:
            self._pairs.mul_(rotation)
        else:
            pairs = torch.view_as_complex(self.turned.float().view(*rotation.shape, 2))
            self.turned.copy_(torch.view_as_real(pairs * rotation).view(self.turned.shape))
