"""The decoder's weights: fused matrices, adjacent rotary pairs, a layout that suits the device.

A large fp32 matrix on a CPU has the packed layout that suits the processor.
Measured on one core, all matrices of SmolLM2-135M, milliseconds by rows:

| processor, time to read the weights once | layout | 1 row | 4 rows | 8 rows | 16 rows |
|---|---|---|---|---|---|
| Intel, 52 ms | MKL | 64 | 78 | 88 | 111 |
| | oneDNN | 76 | 76 | 91 | 109 |
| | none | 64 | 119 | 187 | 185 |
| AMD, 15 ms | MKL | 25 | 45 | 56 | 77 |
| | oneDNN | 17 | 19 | 24 | 32 |
| | none | 34 | 52 | 59 | 80 |

MKL does not use all of another vendor's processor. The choice depends on the vendor only, so that
all processes of a machine compute the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from specscope.engine.model.experts import Expert, Experts, experts_of
from specscope.engine.model.int4 import int4_product
from specscope.engine.model.int8 import int8_product, refined_product
from specscope.engine.model.shape import ModelShape

_ROWS = 256
"""Number of rows that a layout is optimised for; it accepts any number."""


def packed_product(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return x -> x W' with a packed copy of W, fp32 on a CPU; None if torch has no library."""
    if torch.backends.mkl.is_available() and (is_intel() or not torch.backends.mkldnn.is_available()):
        return _mkl_product(weight)
    return _onednn_product(weight) if torch.backends.mkldnn.is_available() else None


@cache
def is_intel() -> bool:
    """Return whether the processor is Intel's; true if the system does not name its vendor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    vendor = next((line for line in lines if line.startswith("vendor_id")), "GenuineIntel")
    return vendor.endswith("GenuineIntel")


def _mkl_product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), _ROWS)
    # The product reads the shape of W only: an expanded scalar holds no memory.
    shape_of = weight.new_empty((1, 1)).expand(weight.shape)
    return lambda x: torch.ops.mkl._mkl_linear(x, packed, shape_of, None, len(x))


def _onednn_product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


PACKED_FROM = 1 << 20
"""Least bytes of a CPU matrix that a packed layout speeds up."""


class Linear:
    """A matrix and an optional bias: x W' + b.

    Args:
        weight: W, (out, in).
        bias: b, (out,).
        keep: Whether W is kept beside a product's own copy of it, for `rows`; the largest outputs
            of a rounded W are then exact.
        bits: 4 or 8 for a matrix that serves drafts only and is rounded; 0 for the weights as they
            are.
        rotated: Whether the inputs are rotated already (`specscope.engine.model.int8`).
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        keep: bool = False,
        bits: int = 0,
        rotated: bool = False,
    ) -> None:
        self.inputs = weight.shape[1]
        self._product = _product(weight, bits, rotated)
        if self._product is not None and bits and keep:
            self._product = refined_product(self._product, weight)
        self.bias = bias
        self.transposed = weight.t()
        """W', (in, out); empty if a product has its own copy, and W is not kept."""
        if self._product is not None:
            self.transposed = self.transposed if keep else weight.new_empty(0)
        elif (
            weight.device.type == "cpu" and weight.shape[0] > weight.shape[1] and not (keep and large(weight))
        ):
            self.transposed = self.transposed.contiguous()

    def rows(self, indices: Tensor) -> Tensor:
        """Return a copy of some rows of a kept W, (N, in), for N indices."""
        return self.transposed.t().index_select(0, indices)

    def __call__(self, x: Tensor) -> Tensor:
        if self._product is not None:
            output = self._product(x).to(x.dtype)
            return output if self.bias is None else output.add_(self.bias)
        return x @ self.transposed if self.bias is None else torch.addmm(self.bias, x, self.transposed)

    def into(self, out: Tensor, x: Tensor) -> None:
        if self._product is not None:
            out.copy_(self._product(x))
            if self.bias is not None:
                out.add_(self.bias)
        elif self.bias is None:
            torch.mm(x, self.transposed, out=out)
        else:
            torch.addmm(self.bias, x, self.transposed, out=out)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        if self._product is not None:
            total.add_(self._product(x))
        else:
            total.addmm_(x, self.transposed)
        if self.bias is not None:
            total.add_(self.bias)


def _product(weight: Tensor, bits: int, rotated: bool) -> Callable[[Tensor], Tensor] | None:
    """Return a product x -> x W' with its own copy of W; None if the plain one is best."""
    if not large(weight):
        return None
    if bits == 4 and (product := int4_product(weight)) is not None:
        return product
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    return (int8_product(weight, rotated_inputs=rotated) if bits else None) or packed_product(weight)


def large(weight: Tensor) -> bool:
    return weight.nbytes >= PACKED_FROM


class Norm:
    """RMS norm over the last dimension: x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self.size = weight.shape[-1]
        # On a CPU torch's rms_norm runs seven small operations. These four take half the time:
        # sqrt(mean(x^2) + eps) = hypot(|x|, sqrt(size eps)) / sqrt(size).
        self._quick = weight.device.type == "cpu" and weight.dtype == torch.float32
        self._floor = torch.tensor(math.sqrt(self.size * eps))
        self._scaled = weight * math.sqrt(self.size)

    def __call__(self, x: Tensor) -> Tensor:
        if self._quick:
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return x.div(torch.hypot(length, self._floor)).mul_(self._scaled)
        return functional.rms_norm(x, (self.size,), None, self.eps) * self.weight


class LayerNorm:
    """Layer norm over the last dimension: (x - mean) / sqrt(variance + eps) * weight + bias."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def norm_of(shape: ModelShape, take: Callable[[str], Tensor], name: str) -> Norm | LayerNorm:
    weight = take(f"{name}.weight")
    return LayerNorm(weight, take(f"{name}.bias"), shape.eps) if shape.layer_norm else Norm(weight, shape.eps)


ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "relu": functional.relu,
    "gelu": functional.gelu,
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), partial(functional.gelu, approximate="tanh")),
}


def _norm_all(queries: Norm, keys: Norm, heads: int, x: Tensor) -> Tensor:
    """Norm the queries of all heads as one vector, and the keys as another.

    x is (T, heads + kv_heads, head_dim).
    """
    normed = queries(x[:, :heads].flatten(1)), keys(x[:, heads:].flatten(1))
    return torch.cat(normed, 1).view(x.shape)


def identity(x: Tensor) -> Tensor:
    """Return x unchanged; replaces a norm that a drafting head lacks."""
    return x


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; one matrix for queries, keys and values, one for gate and up."""

    window: int | None
    """Sliding window in positions, the row itself included; None for all positions."""
    norm: Callable[[Tensor], Tensor]
    qkv: Linear
    qk_norm: Callable[[Tensor], Tensor] | None
    """Norms queries and keys, (T, heads + kv_heads, head_dim); None without such a norm."""
    out: Linear
    mlp_norm: Norm | LayerNorm
    gate_up: Linear | None
    """None in a layer of experts, of which `down` is the whole MLP."""
    down: Linear | Experts
    out_norm: Norm | LayerNorm | None = None
    down_norm: Norm | LayerNorm | None = None
    rotation: int = 0
    """1 for the model's other rotation."""

    @classmethod
    def of(
        cls,
        shape: ModelShape,
        number: int,
        take: Callable[[str], Tensor],
        *,
        bits: int = 0,
        rotated: bool = False,
    ) -> Layer:
        prefix, linear = f"model.layers.{number}.", partial(Linear, bits=bits, rotated=rotated)
        mixture = shape.mixture_of(number)

        def pairs(x: Tensor) -> Tensor:
            """Make elements i and i + r / 2 of the r rotated ones of each head neighbours."""
            heads = x.unflatten(0, (-1, shape.head_dim))
            turned, rest = heads[:, : shape.rotated], heads[:, shape.rotated :]
            turned = turned.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
            return torch.cat([turned, rest], 1).flatten(0, 1)

        def attention(kind: str) -> Tensor:
            q, k, v = (take(f"{prefix}self_attn.{part}_proj.{kind}") for part in "qkv")
            return torch.cat([pairs(q), pairs(k), v])

        def gate_up(mlp: str) -> Linear:
            names = [f"{prefix}{mlp}.{part}_proj" for part in (("gate", "up") if shape.gated else ("up",))]
            bias = torch.cat([take(f"{name}.bias") for name in names]) if shape.mlp_bias else None
            return linear(torch.cat([take(f"{name}.weight") for name in names]), bias)

        def down(mlp: str) -> Linear:
            bias = take(f"{prefix}{mlp}.down_proj.bias") if shape.mlp_bias else None
            return Linear(take(f"{prefix}{mlp}.down_proj.weight"), bias, bits=bits)

        def expert(mlp: str) -> Expert:
            return Expert(gate_up(mlp), down(mlp), ACTIVATE[shape.activation])

        def head_norm() -> Callable[[Tensor], Tensor]:
            q, k = (pairs(take(f"{prefix}self_attn.{part}_norm.weight")) for part in "qk")
            if shape.qk_norm == "all":
                return partial(_norm_all, Norm(q, shape.eps), Norm(k, shape.eps), shape.heads)
            return Norm(torch.cat([q.expand(shape.heads, -1), k.expand(shape.kv_heads, -1)]), shape.eps)

        def post_norm(part: str) -> Norm | LayerNorm | None:
            return norm_of(shape, take, f"{prefix}{part}.post_norm") if shape.post_norms else None

        return cls(
            window=shape.windows[number],
            rotation=int(shape.others[number]) if shape.others else 0,
            norm=norm_of(shape, take, f"{prefix}input_layernorm") if shape.input_norm else identity,
            qkv=linear(attention("weight"), attention("bias") if shape.qkv_bias else None),
            qk_norm=head_norm() if shape.qk_norm else None,
            out=linear(
                take(f"{prefix}self_attn.o_proj.weight"),
                take(f"{prefix}self_attn.o_proj.bias") if shape.out_bias else None,
            ),
            mlp_norm=norm_of(shape, take, f"{prefix}post_attention_layernorm"),
            gate_up=gate_up("mlp") if mixture is None else None,
            down=down("mlp") if mixture is None else experts_of(mixture, expert, lambda n: take(prefix + n)),
            out_norm=post_norm("self_attn"),
            down_norm=post_norm("mlp"),
        )
