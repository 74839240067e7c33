"""Matrices stored as int8, with one scale per row in a second tensor.

Row i of `name` is q[i] scale[i], with q in -127 .. 127 and scale[i] = max |row i| / 127, stored as
`name.scale` in bf16 (float32 is read, too). A file is half as large as in bf16.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.errors import ModelError

SUFFIX = ".scale"
_LARGEST = 127


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors to store: each matrix of floating-point numbers as int8 and its scales."""
    packed = dict[str, Tensor]()
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not tensor.is_floating_point():
            packed[name] = tensor
            continue
        scale = (tensor.float().abs().amax(1) / _LARGEST).bfloat16()
        scale = torch.where(scale > 0, scale, 1.0)
        rows = (tensor.float() / scale.float()[:, None]).round()
        packed[name] = rows.clamp(-_LARGEST, _LARGEST).to(torch.int8)
        packed[name + SUFFIX] = scale
    return packed


def unpack(matrix: Tensor, scale: Tensor) -> Tensor:
    """Return a stored matrix in float32, (out, in).

    Args:
        matrix: (out, in) int8.
        scale: (out,), any type of floating-point numbers.
    """
    return matrix.float() * scale.float()[:, None]


def check_scale(name: str, shape: tuple[int, ...], scale: Tensor) -> None:
    """Check the scales of a stored matrix.

    Args:
        name: The matrix's name, for errors.
        shape: The matrix's shape.
        scale: Its scales.

    Raises:
        ModelError: There is not one scale per row, or one is no finite number above 0.
    """
    if len(shape) != 2 or scale.shape != shape[:1]:
        raise ModelError(
            f"{name}{SUFFIX} has shape {list(scale.shape)}; {name} of shape {list(shape)} needs one scale per row"
        )
    for i in (~(scale.isfinite() & (scale > 0))).nonzero()[:1, 0].tolist():
        raise ModelError(f"{name}{SUFFIX} is {scale[i]:g} in row {i}; it must be a finite number above 0")
