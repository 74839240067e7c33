"""A trainable Llama decoder layer over packed rows; tensors are named as in transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.heads.packed import Packed
from engine.model.shape import ModelShape


class TrainableNorm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self._eps)


class TrainableAttention(nn.Module):
    """Attention of packed rows; rotary pairs are (i, i + head_dim / 2)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width, queries, keys = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(width, queries, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(queries, width, bias=False)
        self._size, self._scale = shape.head_dim, shape.rope_scale
        self.register_buffer("frequencies", torch.tensor(shape.frequencies), persistent=False)

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """Map (R, D) to (R, D)."""
        angles = packed.positions[:, None, None] * self.get_buffer("frequencies")
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(x).unflatten(-1, (-1, self._size)) for project in projections)
        sizes = [len(mask) for mask in packed.seen]
        split = (t.transpose(0, 1).split(sizes, 1) for t in (_rotate(q, cos, sin), _rotate(k, cos, sin), v))
        outputs = [
            functional.scaled_dot_product_attention(*(t[None] for t in qkv), attn_mask=mask, enable_gqa=True)
            for qkv, mask in zip(zip(*split, strict=True), packed.seen, strict=True)
        ]
        return self.o_proj(torch.cat(outputs, 2)[0].transpose(0, 1).flatten(1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class TrainableFeedForward(nn.Module):
    """down(SiLU(gate(x)) * up(x))."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class TrainableLayer(nn.Module):
    """A layer of the target's shape, without biases; `input_norm` norms its attention's input."""

    def __init__(self, shape: ModelShape, *, input_norm: bool) -> None:
        super().__init__()
        self.input_layernorm = TrainableNorm(shape.width, shape.eps) if input_norm else nn.Identity()
        self.self_attn = TrainableAttention(shape)
        self.post_attention_layernorm = TrainableNorm(shape.width, shape.eps)
        self.mlp = TrainableFeedForward(shape.width, shape.inner)

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """Map (R, D) to (R, D)."""
        x = x + self.self_attn(self.input_layernorm(x), packed)
        return x + self.mlp(self.post_attention_layernorm(x))
