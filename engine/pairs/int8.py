"""Matrices stored as int8 (`engine.model.int8`): half of bf16's bytes.

The scales of `name` are a second tensor, `name.scale`, in bf16; float32 is read, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from engine.errors import ModelError
from engine.model.int8 import quantised

SUFFIX = ".scale"


def pack(tensors: Mapping[str, Tensor], keep: Collection[str] = ()) -> dict[str, Tensor]:
    """Return tensors to store: each matrix of floating-point numbers as int8 and its scales.

    Args:
        tensors: The tensors by name.
        keep: Names of matrices that stay as they are.
    """
    packed = dict[str, Tensor]()
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not tensor.is_floating_point() or name in keep:
            packed[name] = tensor
            continue
        packed[name], packed[name + SUFFIX] = quantised(tensor)
    return packed


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
