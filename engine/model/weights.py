"""Weights as the decoder uses them: fused matrices, rotary pairs side by side, a layout that suits the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from engine.model.shape import Shape


_BLOCK = 512 * 1024
"""Bytes of a block of a matrix on a CPU. Measured for 2 to 16 rows: a sixth faster than the whole matrix at once."""


def widths(columns: int, rows: int, like: Tensor) -> list[int]:
    """Return the widths of the blocks a matrix (rows, columns) is computed in, on the device of `like`.

    A weight wider than high is cut on a CPU, into blocks of about half a megabyte and multiples of 16 columns.
    """
    blocks = round(rows * columns * like.element_size() / _BLOCK)
    if like.device.type != "cpu" or columns <= rows or blocks < 2:
        return [columns]
    width = math.ceil(columns / blocks / 16) * 16
    return [min(width, columns - i) for i in range(0, columns, width)]


class Linear(NamedTuple):
    """Blocks of a matrix (in, out), side by side, and of an optional bias (out,)."""

    blocks: Sequence[Tensor]
    """(in, width) each: a weight's rows, transposed."""
    biases: Sequence[Tensor | None]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None, *, shared: bool = False) -> Linear:
        """Lay a weight (out, in) out for the device; a shared one stays as it is."""
        sizes = widths(weight.shape[0], weight.shape[1], weight)
        blocks = [block.t() for block in weight.split(sizes)]
        if weight.device.type == "cpu" and weight.shape[0] > weight.shape[1] and not shared:
            blocks = [block.contiguous() for block in blocks]
        return cls(blocks, [None] * len(blocks) if bias is None else bias.split(sizes))

    def into(self, parts: Sequence[Tensor], x: Tensor) -> None:
        """Write x W' + b into the parts of a tensor (T, out), split by `widths`."""
        for part, block, bias in zip(parts, self.blocks, self.biases, strict=True):
            if bias is None:
                torch.mm(x, block, out=part)
            else:
                torch.addmm(bias, x, block, out=part)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W' + b, (T, out)."""
        total = x.new_empty(x.shape[0], sum(block.shape[1] for block in self.blocks))
        self.into(self._split(total), x)
        return total

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add x W' + b to `total`, (T, out), in place."""
        parts = [total] if len(self.blocks) == 1 else self._split(total)
        for part, block, bias in zip(parts, self.blocks, self.biases, strict=True):
            part.addmm_(x, block)
            if bias is not None:
                part.add_(bias)

    def _split(self, total: Tensor) -> Sequence[Tensor]:
        return total.split([block.shape[1] for block in self.blocks], 1)


class Norm:
    """RMS norm over the last dimension: x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.size = weight.shape[-1]
        # On a CPU torch's own rms_norm is seven small operations. These four do the same in half the time:
        # sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(size eps)) / sqrt(size).
        self._quick = weight.device.type == "cpu" and weight.dtype == torch.float32
        self._floor = torch.tensor(math.sqrt(self.size * eps))
        self._scaled = weight * math.sqrt(self.size)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normed rows."""
        if self._quick:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return x.div(torch.hypot(length, self._floor)).mul_(self._scaled)
        return functional.rms_norm(x, (self.size,), None, self.eps) * self.weight


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; queries, keys and values are one matrix, gate and up another."""

    window: int | None
    """Sliding window in positions, itself included; None sees everything."""
    norm: Norm
    qkv: Linear
    qk_norm: Norm | None
    """Its weight is (heads + kv_heads, head_dim)."""
    out: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, shape: Shape, number: int, take: Callable[[str], Tensor]) -> Layer:
        """Collect layer `number` from a checkpoint."""
        at = f"model.layers.{number}."

        def pairs(x: Tensor) -> Tensor:
            """Bring element i of each head next to element i + head_dim / 2."""
            split = x.unflatten(0, (-1, 2, shape.head_dim // 2))
            return split.transpose(1, 2).flatten(0, 2)

        def attention(kind: str) -> Tensor:
            q, k, v = (take(f"{at}self_attn.{part}_proj.{kind}") for part in "qkv")
            return torch.cat([pairs(q), pairs(k), v])

        def mlp(kind: str) -> Tensor:
            return torch.cat([take(f"{at}mlp.{part}_proj.{kind}") for part in ("gate", "up")])

        def head_norm() -> Norm:
            q, k = (pairs(take(f"{at}self_attn.{part}_norm.weight")) for part in "qk")
            return Norm(torch.cat([q.expand(shape.heads, -1), k.expand(shape.kv_heads, -1)]), shape.eps)

        return cls(
            window=shape.windows[number],
            norm=Norm(take(f"{at}input_layernorm.weight"), shape.eps),
            qkv=Linear.of(attention("weight"), attention("bias") if shape.qkv_bias else None),
            qk_norm=head_norm() if shape.qk_norm else None,
            out=Linear.of(
                take(f"{at}self_attn.o_proj.weight"),
                take(f"{at}self_attn.o_proj.bias") if shape.out_bias else None,
            ),
            mlp_norm=Norm(take(f"{at}post_attention_layernorm.weight"), shape.eps),
            gate_up=Linear.of(mlp("weight"), mlp("bias") if shape.mlp_bias else None),
            down=Linear.of(
                take(f"{at}mlp.down_proj.weight"), take(f"{at}mlp.down_proj.bias") if shape.mlp_bias else None
            ),
        )
