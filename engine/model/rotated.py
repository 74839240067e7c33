"""A model whose hidden state is rotated, which int8 rounds better (QuaRot, section 4).

Ashkboos et al. 2024: with an orthogonal R, the states x R give the same logits if the matrices that
read them are W R and those that write to them R' W. A norm's weight is moved into the matrices that
read its output, and values of a head are rotated from V to the output projection. The states'
few large values are then spread over a block, so that one scale suits a whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import gcd

import torch
from torch import Tensor

from engine.model.shape import EMBEDDING, ModelShape

BLOCK = 64
"""Most numbers that are rotated together."""
_READERS = {
    "self_attn.q_proj": "input_layernorm",
    "self_attn.k_proj": "input_layernorm",
    "self_attn.v_proj": "input_layernorm",
    "mlp.gate_proj": "post_attention_layernorm",
    "mlp.up_proj": "post_attention_layernorm",
}
"""Matrices that read a norm's output, and the norm."""
_WRITERS = ("self_attn.o_proj", "mlp.down_proj")
"""Matrices that write to the hidden state."""


@cache
def _orthogonal(size: int) -> Tensor:
    """Return an orthogonal matrix, (size, size), the same in all processes."""
    numbers = torch.randn((size, size), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linalg.qr(numbers).Q.float()


def rotated_blocks(x: Tensor) -> Tensor:
    """Return x, of any shape, with every block of its last dimension rotated."""
    block = gcd(x.shape[-1], BLOCK)
    return (x.reshape(-1, block) @ _orthogonal(block)).view(x.shape)


def rotated(x: Tensor) -> Tensor:
    """Return x R, of x's shape: rotated blocks, then rotations across the blocks."""
    blocks = rotated_blocks(x).unflatten(-1, (-1, gcd(x.shape[-1], BLOCK)))
    return (_orthogonal(blocks.shape[-2]) @ blocks).flatten(-2)


def can_rotate(shape: ModelShape) -> bool:
    """Return whether all norms are RMS norms whose weights only matrices read."""
    plain = not (shape.layer_norm or shape.post_norms or shape.learned_positions)
    return plain and shape.input_norm and shape.final_norm


def rotated_model(
    shape: ModelShape, take: Callable[[str], Tensor]
) -> tuple[ModelShape, Callable[[str], Tensor]]:
    """Return shape and tensors of the rotated model; its embeddings are rotated when they are read.

    Args:
        shape: The model's shape; `can_rotate` holds.
        take: Returns its tensors by name.
    """

    def take_rotated(name: str) -> Tensor:
        if name.endswith("norm.weight") and not name.endswith(("q_norm.weight", "k_norm.weight")):
            return torch.ones_like(take(name))
        if name == "lm_head.weight":
            weight = take(EMBEDDING if shape.tied else name)
            return rotated(weight * take("model.norm.weight"))
        module, _, kind = name.rpartition(".")
        matrix = ".".join(module.split(".")[3:])
        tensor = take(name)
        if matrix in _READERS and kind == "weight":
            tensor = rotated(tensor * take(f"{module.removesuffix(matrix)}{_READERS[matrix]}.weight"))
        if matrix == "self_attn.v_proj":
            tensor = _rows(tensor, shape.head_dim)
        if matrix == "self_attn.o_proj" and kind == "weight":
            tensor = rotated(tensor.unflatten(1, (-1, shape.head_dim))).flatten(1)
        return _rows(tensor, shape.width) if matrix in _WRITERS else tensor

    return replace(shape, tied=False), take_rotated


def _rows(tensor: Tensor, size: int) -> Tensor:
    """Return R' W for the rows of a matrix, or R' b for a bias, in parts of `size` rows."""
    parts = tensor.unflatten(0, (-1, size)).movedim(1, -1)
    return rotated(parts).movedim(-1, 1).flatten(0, 1).contiguous()
