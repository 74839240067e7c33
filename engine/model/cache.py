"""The KV cache: one preallocated tensor in which a slot's rows of one head are contiguous."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows, Slots
from specscope.engine.model.stage import from_bytes, to_bytes

_REUSED = 32
"""Buffers of forwards of at most this many rows are reused."""


class Cache(Slots):
    """Slots with keys and values.

    A cache owns the buffers of its forwards, so it serves one forward at a time.
    """

    def __init__(
        self, shape: ModelShape, slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(slots, capacity, shape.context)
        self.shape = shape
        size = (shape.layers, slots, 2 * shape.kv_heads, capacity + 1, shape.head_dim)
        self.tensor = zeros(size, dtype, device)
        """Keys, then values: (layers, slots, 2 x kv_heads, capacity + 1, head_dim).

        The last row holds no token: unused rows of static steps write to it."""
        self.features: Tensor | None = None
        """Hidden states kept by `store_features`, (slots, capacity, k D), or None."""
        self._buffers: dict[int, Buffers] = {}

    def store_features(self, rows: Rows, states: Tensor) -> None:
        """Store hidden states (T, k D) of the rows just appended, in `features`."""
        if self.features is None or self.features.shape[2] != states.shape[1]:
            self.features = states.new_zeros((self.slots, self.capacity, states.shape[1]))
        for slot, first, end in rows.segments():
            stop = self.length(slot)
            self.features[slot, stop - (end - first) : stop] = states[first:end]

    def pad(self, length: int, new_rows: int = 0) -> None:
        """Let attention read padding (see `Slots.pad`); grow the tensor if it has too few rows."""
        super().pad(length, new_rows)
        rows = self.tensor.shape[3]
        if length + new_rows > rows:
            grown = self.tensor.new_zeros(
                (*self.tensor.shape[:3], length + new_rows + rows // 2, self.shape.head_dim)
            )
            grown[:, :, :, :rows] = self.tensor
            self.tensor = grown

    def keep(self, slot: int, path: np.ndarray) -> None:
        """Make a path the committed prefix, tensors included; drop all other rows."""
        n = len(path)
        moved = n > 0 and int(path[-1]) != n - 1  # indices grow along a path
        if moved:
            first = int((path != np.arange(n)).argmax())
            rows = torch.from_numpy(path[first:]).to(self.tensor.device)
            held = self.tensor[:, slot]
            held[:, :, first:n] = held.index_select(2, rows)
            if self.features is not None:
                self.features[slot, first:n] = self.features[slot].index_select(0, rows)
        super().keep(slot, path)

    def export_kv(self, slot: int, path: np.ndarray) -> bytes:
        """Return keys and values, (layers, 2 x kv_heads, n, head_dim) as bytes."""
        if self.missing_kv[slot, path].any():
            return b""
        rows = torch.from_numpy(path).to(self.tensor.device)
        return to_bytes(self.tensor[:, slot].index_select(2, rows))

    def import_kv(self, slot: int, tokens: np.ndarray, data: bytes) -> None:
        first, last = self.length(slot), self.length(slot) + len(tokens)
        shape = (self.shape.layers, 2 * self.shape.kv_heads, len(tokens), self.shape.head_dim)
        kv = from_bytes(data, shape, self.tensor) if data else None
        super().import_kv(slot, tokens, data)
        if kv is not None:
            self.tensor[:, slot, :, first:last] = kv

    def buffers(self, count: int) -> Buffers:
        buffers = self._buffers.get(count) or Buffers(self.shape, count, self.tensor)
        if count <= _REUSED:
            self._buffers[count] = buffers
        return buffers


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros. On a CPU a page takes memory only when it is first written to."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    pages = np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)  # numpy uses calloc, torch does not
    return torch.from_numpy(pages).view(dtype).view(size)


class Buffers:
    """Intermediate tensors that all layers of a forward share, with views of their parts.

    Reused between forwards: for a few rows of a small model, making the views takes noticeable
    time.
    """

    def __init__(self, shape: ModelShape, count: int, like: Tensor) -> None:
        heads, kv_heads, size = shape.heads, shape.kv_heads, shape.head_dim
        qkv = like.new_empty(count, (heads + 2 * kv_heads) * size)
        self.qkv = qkv
        by_head = qkv.view(count, heads + 2 * kv_heads, size)
        self.queries = by_head.narrow(1, 0, heads)
        """(T, heads, head_dim)."""
        self.queries_keys = by_head.narrow(1, 0, heads + kv_heads)
        """(T, heads + kv_heads, head_dim)."""
        self.kv = by_head.narrow(1, heads, 2 * kv_heads).transpose(0, 1)
        """Keys, then values, (2 x kv_heads, T, head_dim)."""
        self.attended = like.new_empty(count, heads * size)
        """Attention's weighted values, before the output projection, (T, heads x head_dim)."""
        gate_up = like.new_empty(count, (1 + shape.gated) * shape.inner)
        self.gate_up = gate_up
        """Products of the MLP's first matrices, (T, 2 x inner), or (T, inner) without a gate."""
        self.gate, self.up = gate_up[:, : shape.inner], gate_up[:, shape.inner :]
        self._exact = like.dtype in (torch.float32, torch.float64)
        if self._exact:
            pairs = self.queries_keys.view(count, heads + kv_heads, size // 2, 2)
            self._pairs = torch.view_as_complex(pairs)

    def rotate(self, rotation: Tensor) -> None:
        """Multiply the rotary pairs of queries and keys in place.

        `rotation` is complex, (T, heads + kv_heads, head_dim / 2).
        """
        if self._exact:
            self._pairs.mul_(rotation)
        else:
            pairs = torch.view_as_complex(self.queries_keys.float().view(*rotation.shape, 2))
            rotated = torch.view_as_real(pairs * rotation)
            self.queries_keys.copy_(rotated.view(self.queries_keys.shape))
