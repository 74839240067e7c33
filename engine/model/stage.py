"""A model split over devices by its layers: what each stage holds, and what it hands to the next one.

A stage is a decoder of some of the layers, with a KV cache of its own. The first one has the embeddings, the last one the
head; in between, hidden states travel as plain bytes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from engine.errors import SpecScopeError
from engine.types import check_range

if TYPE_CHECKING:
    from torch import Tensor


def layer_stages(layers: int, count: int) -> list[range]:
    """Return the layers of each stage: neighbours, shared out as evenly as they can be.

    Raises:
        UsageError: There are fewer layers than stages.
    """
    check_range("stages", count, 1, layers)
    return [range(layers * i // count, layers * (i + 1) // count) for i in range(count)]


class Border:
    """What crosses the borders of one stage in one forward.

    Args:
        came: The states of its rows, (T, D) as bytes, from the stage before; nothing for the first stage.
    """

    def __init__(self, came: bytes = b"") -> None:
        self._came = came
        self.left: bytes | None = None
        """The states after its layers, for the stage behind; None where there is none."""

    def enter(self, rows: int, like: Tensor) -> Tensor:
        """Return the states to begin with, (rows, D) in the type and on the device of `like`, which is (.., D)."""
        return from_bytes(self._came, (rows, like.shape[-1]), like)

    def leave(self, states: Tensor) -> None:
        """Hand the states on."""
        self.left = to_bytes(states)


def to_bytes(tensor: Tensor) -> bytes:
    """Return a tensor's elements as they lie in memory."""
    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def from_bytes(data: bytes, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return what `to_bytes` made, in the type and on the device of another tensor.

    Raises:
        SpecScopeError: It is of another size: two devices do not hold the same rows.
    """
    if len(data) != prod(shape) * like.element_size():
        raise SpecScopeError(
            f"a device got {len(data)} bytes for {shape[0]} rows; the devices hold different rows"
        )
    flat = torch.frombuffer(bytearray(data), dtype=like.dtype) if data else like.new_empty(0)
    return flat.view(shape).to(like.device)
