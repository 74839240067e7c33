"""Matrices in int8, with one scale per row: a quarter of fp32's bytes.

Row i is q[i] scale[i], with q in -127 .. 127 and scale[i] = max |row i| / 127 in bf16. Drafts may
come from such matrices: a verifier's rules are exact for any q.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.draws import largest
from engine.model.rotated import can_rotate, rotated_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from engine.model.shape import ModelShape

LARGEST = 127
PAIRED_STEPS = 90
"""Largest number in a product's matrices and activations if FBGEMM adds pairs of products in 16
bits, which 2 x 180 x 90 fits."""
MULTIPLE = 64
"""The product without FBGEMM is for matrices whose inner width is a multiple of this."""
REFINED = 16
"""Outputs of a row that are computed again."""
SMALLEST = 1e-30
"""Replaces the scale of a row of zeros."""


def quantised(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix (out, in) as int8, and its scales, (out,) bf16."""
    scale = (matrix.float().abs().amax(1) / LARGEST).bfloat16()
    scale = torch.where(scale > 0, scale, 1.0)
    rows = (matrix.float() / scale.float()[:, None]).round()
    return rows.clamp(-LARGEST, LARGEST).to(torch.int8), scale


def dequantised(matrix: Tensor, scale: Tensor) -> Tensor:
    """Return a matrix of int8 in float32, (out, in).

    Args:
        matrix: (out, in) int8.
        scale: (out,), any type of floating-point numbers.
    """
    return matrix.float() * scale.float()[:, None]


def has_fbgemm() -> bool:
    """Return whether torch has FBGEMM, as on x86."""
    return "fbgemm" in torch.backends.quantized.supported_engines


def is_rotated(shape: ModelShape, dtype: torch.dtype, bits: int, *, on_cpu: bool) -> bool:
    """Return whether a model on one device, with matrices of these bits, is rotated."""
    return bits == 8 and on_cpu and dtype == torch.float32 and has_fbgemm() and can_rotate(shape)


def int8_product(weight: Tensor, *, rotated_inputs: bool = False) -> Callable[[Tensor], Tensor] | None:
    """Return x -> x W' with W in int8; None if this processor has no fast product.

    Args:
        weight: W, (out, in), in fp32 on a CPU.
        rotated_inputs: Whether the inputs are rotated already (`engine.model.rotated`).
    """
    if has_fbgemm():
        return FbgemmProduct(weight, rotates=not rotated_inputs)
    return WeightOnlyProduct(weight) if weight.shape[1] % MULTIPLE == 0 else None


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


class FbgemmProduct:
    """x W' with W and x in int8, for x86.

    A row's result does not depend on the other rows.

    Args:
        weight: W, (out, in), in fp32 on a CPU.
        rotates: Whether x and W are rotated first: (x R) (W R)' = x W' (`engine.model.rotated`).
    """

    def __init__(self, weight: Tensor, *, rotates: bool) -> None:
        self._outputs, self._rotates = len(weight), rotates
        weight = rotated_blocks(weight) if rotates else weight
        self._steps = steps = fbgemm_steps()
        scale = (weight.abs().amax(1).clamp_(min=SMALLEST) / steps).double()
        zero = torch.zeros(len(weight), dtype=torch.long)
        with _fbgemm():
            rows = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(rows, None)
        self._product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W', (T, out) float32, for x of (T, in)."""
        if not len(x):
            return x.new_empty((0, self._outputs))
        x = rotated_blocks(x) if self._rotates else x
        if len(x) == 1:
            largest = max(float(x.abs().max()), SMALLEST)
            return self._product(x, largest / self._steps, self._steps, self._packed)
        rows = x.abs().amax(1, keepdim=True).clamp_(min=SMALLEST)
        return self._product(x / rows, 1 / self._steps, self._steps, self._packed).mul_(rows)


class RefinedProduct:
    """x W' by a product that rounds; each row's largest outputs are computed again from W.

    Args:
        product: x -> x W', (T, out) float32.
        weight: W, (out, in), in fp32.
    """

    def __init__(self, product: Callable[[Tensor], Tensor], weight: Tensor) -> None:
        self._product, self._weight = product, weight
        self._count = min(REFINED, len(weight))

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W', (T, out), for x of (T, in)."""
        output = self._product(x)
        _, columns = largest(output, self._count)
        rows = self._weight[columns]
        return output.scatter_(1, columns, torch.bmm(rows, x.unsqueeze(2)).squeeze(2))


class WeightOnlyProduct:
    """x W' with W in int8 and x rounded to bf16, for processors without FBGEMM.

    Args:
        weight: W, (out, in), in fp32 on a CPU.
    """

    def __init__(self, weight: Tensor) -> None:
        self._matrix, self._scale = quantised(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W', (T, out) float32, for x of (T, in)."""
        return torch.ops.aten._weight_int8pack_mm(x.bfloat16(), self._matrix, self._scale).float()


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
