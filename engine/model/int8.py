"""Matrices in int8, with one scale per row: a quarter of fp32's bytes.

Row i is q[i] scale[i], with q in -127 .. 127 and scale[i] = max |row i| / 127 in bf16. Drafts may
come from such matrices: a verifier's rules are exact for any q.

A model's hidden state may be rotated, which int8 rounds better (QuaRot, section 4).
Ashkboos et al. 2024: with an orthogonal R, the states x R give the same logits if the matrices that
read them are W R and those that write to them R' W. A norm's weight is moved into the matrices that
read its output, and values of a head are rotated from V to the output projection. The states'
few large values are then spread over a block, so that one scale suits a whole row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from math import gcd

import torch
from torch import Tensor

from specscope.engine.model.shape import EMBEDDING, ModelShape
from specscope.engine.sampling.draws import largest

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
    plain = not (shape.layer_norm or shape.post_norms or shape.learned_positions or shape.mixture)
    return plain and shape.input_norm and shape.final_norm


def rotated_model(
    shape: ModelShape, take: Callable[[str], Tensor]
) -> tuple[ModelShape, Callable[[str], Tensor]]:
    """Return shape and tensors of the rotated model; its embeddings are rotated when they are read.

    `can_rotate` holds for `shape`.
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


LARGEST = 127
PAIRED_STEPS = 90
"""Largest number in a product's matrices and activations if FBGEMM adds pairs of products in 16
bits, which 2 x 180 x 90 fits."""
MULTIPLE = 64
"""The product without FBGEMM is for matrices whose inner width is a multiple of this."""
REFINED = 16
"""Outputs of a row that are computed again."""
SMALLEST = 1e-30


def quantised(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix (out, in) as int8, and its scales, (out,) bf16."""
    scale = (matrix.float().abs().amax(1) / LARGEST).bfloat16()
    scale = torch.where(scale > 0, scale, 1.0)
    rows = (matrix.float() / scale.float()[:, None]).round()
    return rows.clamp(-LARGEST, LARGEST).to(torch.int8), scale


def dequantised(matrix: Tensor, scale: Tensor) -> Tensor:
    """Return a matrix of int8, (out, in), in float32; its scales are (out,)."""
    return matrix.float() * scale.float()[:, None]


def has_fbgemm() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def is_rotated(shape: ModelShape, dtype: torch.dtype, bits: int, *, on_cpu: bool) -> bool:
    """Return whether a model on one device, with matrices of these bits, is rotated."""
    return bits == 8 and on_cpu and dtype == torch.float32 and has_fbgemm() and can_rotate(shape)


def int8_product(weight: Tensor, *, rotated_inputs: bool = False) -> Callable[[Tensor], Tensor] | None:
    """Return x -> x W', (T, out) float32, in int8; None if this processor has no fast product.

    W is (out, in) in fp32 on a CPU; `rotated_inputs`: x is rotated already (see above).
    """
    if has_fbgemm():
        return fbgemm_product(weight, rotates=not rotated_inputs)
    return weight_only_product(weight) if weight.shape[1] % MULTIPLE == 0 else None


@cache
def fbgemm_steps() -> int:
    """Return the largest number that FBGEMM multiplies exactly: 127 with AVX-512 VNNI, else 90."""
    ones, scale = torch.ones((1, MULTIPLE)), torch.tensor([1 / LARGEST], dtype=torch.double)
    with _fbgemm():
        row = torch.quantize_per_channel(ones, scale, torch.zeros(1, dtype=torch.long), 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(row, None)
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    exact = abs(float(product(ones, 1 / LARGEST, LARGEST, packed)) - MULTIPLE) < 0.5
    return LARGEST if exact else PAIRED_STEPS


def fbgemm_product(weight: Tensor, *, rotates: bool) -> Callable[[Tensor], Tensor]:
    """Round x, too, for x86; a row's result does not depend on the other rows.

    `rotates` is whether x and W are rotated first: (x R) (W R)' = x W' (see above).
    """
    outputs, steps = len(weight), fbgemm_steps()
    weight = rotated_blocks(weight) if rotates else weight
    scale = (weight.abs().amax(1).clamp_(min=SMALLEST) / steps).double()
    with _fbgemm():
        zero = torch.zeros(outputs, dtype=torch.long)
        packed = torch.ops.quantized.linear_prepack(
            torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8), None
        )
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def product(x: Tensor) -> Tensor:
        if not len(x):
            return x.new_empty((0, outputs))
        x = rotated_blocks(x) if rotates else x
        if len(x) == 1:
            most = max(float(x.abs().max()), SMALLEST)
            return multiply(x, most / steps, steps, packed)
        rows = x.abs().amax(1, keepdim=True).clamp_(min=SMALLEST)
        return multiply(x / rows, 1 / steps, steps, packed).mul_(rows)

    return product


def refined_product(product: Callable[[Tensor], Tensor], weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a product that rounds, with each row's largest outputs computed again from W."""
    count = min(REFINED, len(weight))

    def refined(x: Tensor) -> Tensor:
        output = product(x)
        _, columns = largest(output, count)
        return output.scatter_(1, columns, torch.bmm(weight[columns], x.unsqueeze(2)).squeeze(2))

    return refined


def weight_only_product(weight: Tensor) -> Callable[[Tensor], Tensor]:
    """Round x to bf16, for processors without FBGEMM."""
    matrix, scale = quantised(weight)
    return lambda x: torch.ops.aten._weight_int8pack_mm(x.bfloat16(), matrix, scale).float()


@contextmanager
def _fbgemm() -> Generator[None]:
    """Let torch pack quantised matrices for FBGEMM, without its notice that it may drop them."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        torch.backends.quantized.engine = before
