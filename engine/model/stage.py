"""Pipeline parallelism: a model split by layers into stages, and the hidden states between them.

A stage is a decoder of a range of layers with its own KV cache. The first stage holds the
embeddings, the last one the LM head. Hidden states travel between stages as bytes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from specscope.engine.errors import SpecScopeError
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from torch import Tensor


def layer_stages(layers: int, count: int) -> list[range]:
    """Return the contiguous range of layers of each stage; sizes differ by at most 1.

    UsageError unless there are 1 to `layers` stages.
    """
    check_range("stages", count, 1, layers)
    return [range(layers * i // count, layers * (i + 1) // count) for i in range(count)]


class StageIO:
    """Hidden states, (T, D) as bytes, into and out of a stage; nothing comes into the first."""

    def __init__(self, incoming: bytes = b"") -> None:
        self._incoming = incoming
        self.outgoing: bytes | None = None
        """Hidden states (T, D) for the next stage as bytes; None for the last stage."""

    def receive(self, rows: int, like: Tensor) -> Tensor:
        return from_bytes(self._incoming, (rows, like.shape[-1]), like)

    def send(self, states: Tensor) -> None:
        self.outgoing = to_bytes(states)


def to_bytes(tensor: Tensor) -> bytes:
    import torch  # takes seconds; layers are counted without it

    return tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()


def from_bytes(data: bytes, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return the tensor of `to_bytes`, with dtype and device of `like`.

    SpecScopeError if the size differs: two devices do not hold the same rows.
    """
    import torch

    if len(data) != prod(shape) * like.element_size():
        raise SpecScopeError(
            f"a device got {len(data)} bytes for {shape[0]} rows; the devices hold different rows"
        )
    flat = torch.frombuffer(bytearray(data), dtype=like.dtype) if data else like.new_empty(0)
    return flat.view(shape).to(like.device)
