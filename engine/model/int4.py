"""Matrices in int4, in groups of 32 weights of a row with a scale and a zero each.

A weight is (q - 8) scale + zero, with q in 0 .. 15. Groups that lie on a grid of 16 steps already,
as those of GGUF's Q4_0 and Q4_1 do, keep their values but for the rounding of scale and zero to
bf16. Drafts may come from such matrices: a verifier's rules are exact for any q.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

GROUP = 32
"""Weights that share a scale and a zero."""
ROWS = 16
"""The packed layouts take multiples of this many rows of W."""
TILE = 16
"""Columns of a tile of CUDA's packed matrix."""


def fits_int4(size: Sequence[int]) -> bool:
    return size[0] % ROWS == 0 and size[1] % GROUP == 0


def quantised(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a matrix (out, in) as q, (out, in) int32, scale and zero, (out, in / 32) float32.

    Each group has the better of two grids: from its smallest to its largest weight, as in Q4_1, or
    symmetric about zero with the largest weight at q = 0, as in Q4_0.
    """
    groups = matrix.float().unflatten(1, (-1, GROUP))
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scales = ((high - low) / 15, torch.where(high > -low, high, low) / -8)
    zeros = (low + 8 * scales[0], torch.zeros_like(low))
    grids = [_on_grid(groups, scale, zero) for scale, zero in zip(scales, zeros, strict=True)]
    errors = [
        ((q - 8) * scale + zero - groups).square().sum(2, keepdim=True)
        for q, scale, zero in zip(grids, scales, zeros, strict=True)
    ]
    first = errors[0] <= errors[1]
    q = torch.where(first, grids[0], grids[1]).flatten(1).int()
    return q, torch.where(first, *scales).squeeze(2), torch.where(first, *zeros).squeeze(2)


def _on_grid(groups: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    safe = torch.where(scale == 0, 1.0, scale)
    return ((groups - zero) / safe + 8).round_().clamp_(0, 15)


def int4_product(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return x -> x W' with W, (out, in), in int4; None if this device has no fast product.

    W is in fp32 on a CPU or bf16 on CUDA. x has shape (T, in), the product (T, out), in any float
    type.
    """
    if not fits_int4(weight.shape):
        return None
    if weight.device.type == "cuda":
        return CudaProduct(weight) if weight.dtype == torch.bfloat16 else None
    return ArmProduct(weight) if platform.machine() in ("aarch64", "arm64") else X86Product(weight)


class X86Product:
    """x W' with W in int4 and x rounded to bf16, in torch's kernels for AVX2 and AVX-512."""

    def __init__(self, weight: Tensor) -> None:
        q, scale, zero = quantised(weight)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        self._scale_and_zero = torch.stack([scale.t(), zero.t()], 2).bfloat16()
        self._product = torch.ops.aten._weight_int4pack_mm_for_cpu.default

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x.bfloat16(), self._packed, GROUP, self._scale_and_zero)


class ArmProduct:
    """x W' with W in int4 and each row of x rounded to int8, in torch's kernels for Arm.

    These kernels have no zeros: only groups of Q4_0 keep their values.
    """

    def __init__(self, weight: Tensor) -> None:
        groups = weight.float().unflatten(1, (-1, GROUP))
        low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
        scale = torch.where(high > -low, high, low) / -8
        q = _on_grid(groups, scale, torch.zeros_like(scale)).flatten(1).to(torch.uint8)
        bytes_of_two = q[:, 1::2] << 4 | q[:, ::2]
        self._sizes = (weight.shape[1], weight.shape[0])
        scales = scale.squeeze(2).contiguous()
        self._packed = torch.ops.aten._dyn_quant_pack_4bit_weight(
            bytes_of_two, scales, None, GROUP, *self._sizes
        )

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.aten._dyn_quant_matmul_4bit(x.float(), self._packed, GROUP, *self._sizes)


class CudaProduct:
    """x W' with W and x in bf16 on CUDA, W in int4, in torch's tensor-core kernel."""

    def __init__(self, weight: Tensor) -> None:
        q, scale, zero = quantised(weight)
        bytes_of_two = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
        # A warp reads 8, 4 or 2 tiles at once, of which a row must have a whole number.
        tiles = next(n for n in (8, 4, 2) if weight.shape[1] % (n * TILE) == 0)
        self._packed = torch.ops.aten._convert_weight_to_int4pack(bytes_of_two, tiles)
        self._scale_and_zero = torch.stack([scale.t(), zero.t()], 2).bfloat16()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int4pack_mm(x, self._packed, GROUP, self._scale_and_zero)
