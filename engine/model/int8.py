"""Matrices in int8, with one scale per row: a quarter of fp32's bytes.

Row i is q[i] scale[i], with q in -127 .. 127 and scale[i] = max |row i| / 127 in bf16. Drafts may
come from such matrices: a verifier's rules are exact for any q.
"""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGEST = 127
STEPS = 90
"""Largest number in the matrices and activations of a product."""
BLOCK = 64
"""Most activations that are rotated together."""
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


def int8_product(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return x -> x W' with W in int8; None if this processor has no fast product.

    Args:
        weight: W, (out, in), in fp32 on a CPU.
    """
    if "fbgemm" in torch.backends.quantized.supported_engines:
        return FbgemmProduct(weight)
    return WeightOnlyProduct(weight) if weight.shape[1] % BLOCK == 0 else None


class FbgemmProduct:
    """x W' with W and x in int8, for x86.

    Both are rotated first: (x R) (W R)' = x W' for an orthogonal R. The rotation spreads the few
    large values of an activation over a block, so that one scale suits a whole row (QuaRot, Ashkboos
    et al. 2024, section 4). A row's result does not depend on the other rows.

    FBGEMM adds pairs of products in 16 bits, which 2 x 180 x 90 fits.

    Args:
        weight: W, (out, in), in fp32 on a CPU.
    """

    def __init__(self, weight: Tensor) -> None:
        self._outputs = len(weight)
        self._block = math.gcd(weight.shape[1], BLOCK)
        self._rotation = _rotation(self._block)
        rotated = self._rotate(weight)
        scale = (rotated.abs().amax(1).clamp_(min=SMALLEST) / STEPS).double()
        with _fbgemm():
            rows = torch.quantize_per_channel(
                rotated, scale, scale.new_zeros(len(scale), dtype=torch.long), 0, torch.qint8
            )
            self._packed = torch.ops.quantized.linear_prepack(rows, None)
        self._product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def _rotate(self, x: Tensor) -> Tensor:
        return (x.reshape(-1, self._block) @ self._rotation).view(x.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W', (T, out) float32, for x of (T, in)."""
        x = self._rotate(x)
        if len(x) == 1:
            largest = max(float(x.abs().max()), SMALLEST)
            return self._product(x, largest / STEPS, STEPS, self._packed)
        if not len(x):
            return x.new_empty((0, self._outputs))
        rows = x.abs().amax(1, keepdim=True).clamp_(min=SMALLEST)
        return self._product(x.div_(rows), 1 / STEPS, STEPS, self._packed).mul_(rows)


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


@cache
def _rotation(size: int) -> Tensor:
    """Return an orthogonal matrix, (size, size), the same in all processes."""
    numbers = torch.randn((size, size), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linalg.qr(numbers).Q.float()


@contextmanager
def _fbgemm() -> Iterator[None]:
    """Let torch pack quantised matrices for FBGEMM, without its notice that it may drop them."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        torch.backends.quantized.engine = before
