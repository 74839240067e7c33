"""Weights as the decoder uses them: fused matrices, rotary pairs side by side, a layout that suits the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from engine.model.shape import ModelShape


PACKED_FROM = 1 << 20
"""Bytes of a matrix on a CPU from which oneDNN's own layout pays. Measured on one core, target of the bundled pair, all
matrices: 1 row 1.9 ms after 2.4, 5 rows 2.2 after 4.8, 256 rows 26 after 62; smaller matrices lose 9 us a call to it."""


class Linear:
    """A matrix and an optional bias: x W' + b.

    Args:
        weight: W, (out, in).
        bias: b, (out,).
        shared: The weight is used elsewhere too: it is not copied unless it is packed.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, shared: bool = False) -> None:
        self._packed = pack(weight)
        self.bias = bias
        self.across = weight.t()
        """W', (in, out); empty when packed."""
        if self._packed is not None:
            self.across = weight.new_empty(0)
        elif weight.device.type == "cpu" and weight.shape[0] > weight.shape[1] and not shared:
            self.across = self.across.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W' + b, (T, out), for x of (T, in)."""
        if self._packed is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return x @ self.across if self.bias is None else torch.addmm(self.bias, x, self.across)

    def into(self, out: Tensor, x: Tensor) -> None:
        """Write x W' + b into a tensor (T, out)."""
        if self._packed is not None:
            out.copy_(self(x))
        elif self.bias is None:
            torch.mm(x, self.across, out=out)
        else:
            torch.addmm(self.bias, x, self.across, out=out)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add x W' + b to a tensor (T, out), in place."""
        if self._packed is not None:
            total.add_(self(x))
        else:
            total.addmm_(x, self.across)
            if self.bias is not None:
                total.add_(self.bias)


def pack(weight: Tensor) -> Tensor | None:
    """Return a weight (out, in) in oneDNN's own layout; None where that is not to be had, or does not pay."""
    suits = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.nbytes >= PACKED_FROM
    if not suits or not torch.backends.mkldnn.is_available():
        return None
    reorder = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    return None if reorder is None else reorder(weight.contiguous(), _ROWS)


_ROWS = 4
"""Rows the layout is made for; it serves any number."""


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


def as_it_is(x: Tensor) -> Tensor:
    """Return x: where a drafting head has no norm."""
    return x


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; queries, keys and values are one matrix, gate and up another."""

    window: int | None
    """Sliding window in positions, itself included; None sees everything."""
    norm: Callable[[Tensor], Tensor]
    qkv: Linear
    qk_norm: Norm | None
    """Its weight is (heads + kv_heads, head_dim)."""
    out: Linear
    mlp_norm: Norm
    gate_up: Linear
    down: Linear

    @classmethod
    def of(cls, shape: ModelShape, number: int, take: Callable[[str], Tensor]) -> Layer:
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
            norm=Norm(take(f"{at}input_layernorm.weight"), shape.eps) if shape.input_norm else as_it_is,
            qkv=Linear(attention("weight"), attention("bias") if shape.qkv_bias else None),
            qk_norm=head_norm() if shape.qk_norm else None,
            out=Linear(
                take(f"{at}self_attn.o_proj.weight"),
                take(f"{at}self_attn.o_proj.bias") if shape.out_bias else None,
            ),
            mlp_norm=Norm(take(f"{at}post_attention_layernorm.weight"), shape.eps),
            gate_up=Linear(mlp("weight"), mlp("bias") if shape.mlp_bias else None),
            down=Linear(
                take(f"{at}mlp.down_proj.weight"), take(f"{at}mlp.down_proj.bias") if shape.mlp_bias else None
            ),
        )
