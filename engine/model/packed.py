"""Products of rows with a large fp32 matrix, in the packed layout that suits the processor.

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

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_ROWS = 256
"""Number of rows that a layout is optimised for; it accepts any number."""


def packed_product(weight: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return x -> x W' with a packed copy of W; None if torch has neither library.

    Args:
        weight: W, (out, in), in fp32 on a CPU.
    """
    if torch.backends.mkl.is_available() and (is_intel() or not torch.backends.mkldnn.is_available()):
        return MklProduct(weight)
    return OneDnnProduct(weight) if torch.backends.mkldnn.is_available() else None


@cache
def is_intel() -> bool:
    """Return whether the processor is Intel's; true if the system does not name its vendor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    vendor = next((line for line in lines if line.startswith("vendor_id")), "GenuineIntel")
    return vendor.endswith("GenuineIntel")


class MklProduct:
    """x W' with W in MKL's packed layout.

    Args:
        weight: W, (out, in), in fp32 on a CPU.
    """

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), _ROWS)
        # The product reads the shape of W only: an expanded scalar holds no memory.
        self._shape_of = weight.new_empty((1, 1)).expand(weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkl._mkl_linear(x, self._packed, self._shape_of, None, len(x))


class OneDnnProduct:
    """x W' with W in oneDNN's packed layout.

    Args:
        weight: W, (out, in), in fp32 on a CPU.
    """

    def __init__(self, weight: Tensor) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
