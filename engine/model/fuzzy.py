"""Layer-parallel attention: the layers of a group read one hidden state, so that several devices can compute them at once.

Source: EasySpec (Wu et al. 2025), section 3.1, algorithm 2; the groups are those of its Table 6. The result is fuzzy: good
enough to draft with, and its keys and values are those of no ordinary forward.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.trace.events import PartKind
from engine.types import check_range

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from engine.model.cache import Buffers


def layer_groups(layers: int, size: int) -> list[range]:
    """Return the groups of layers whose attention runs at once (EasySpec, Table 6).

    Layer 0 is alone, as is the last one; the first group has min(size, 3) layers, those after it `size`, the last group
    what is left. With size 1 every layer is alone.

    Raises:
        UsageError: The size is not within 1 and the number of layers.
    """
    check_range("layer-parallel size", size, 1, layers)
    cuts = {0, 1, *range(1 + min(size, 3), layers - 1, size), layers - 1, layers}
    return [range(a, b) for a, b in pairwise(sorted(cuts))]


class Share(Protocol):
    """How devices that run the same forward share its attention layers. Each computes everything else itself."""

    @property
    def rank(self) -> int:
        """Which of the devices this one is."""
        ...

    @property
    def ways(self) -> int:
        """How many devices there are."""
        ...

    def swap(self, mine: Mapping[int, Tensor], count: int, like: Tensor) -> list[Tensor]:
        """Give this device's tensors and return those of all devices.

        Args:
            mine: This device's part of `count` tensors, by index.
            count: How many there are together.
            like: A tensor of their shape and type, on this device.
        """
        ...


class Alone:
    """One device that computes all layers."""

    rank = 0
    ways = 1

    def swap(self, mine: Mapping[int, Tensor], count: int, like: Tensor) -> list[Tensor]:  # noqa: ARG002 - nobody else
        """Return its own tensors."""
        return [mine[i] for i in range(count)]

    def agree(self, stopped: bool) -> bool:
        """Return whether to stop: there is nobody to ask."""
        return stopped


class PartTime(NamedTuple):
    """When a device worked on a part of a forward, in nanoseconds of its clock."""

    kind: PartKind
    """attention, or exchange: bringing the outputs of a group together."""
    layer: int
    """The layer; of an exchange the group's first."""
    start: int
    end: int

    def later(self, by: int) -> PartTime:
        """Return it, so many nanoseconds later."""
        return self._replace(start=self.start + by, end=self.end + by)


class Fuzzy:
    """How one forward treats its layers.

    Args:
        groups: Layers whose attention runs at once, in order; all layers are in them.
        share: Who computes which.
        watch: Called with the layer and the buffers after each attention that this device computes.
    """

    def __init__(
        self,
        groups: Sequence[range],
        share: Share | None = None,
        watch: Callable[[int, Buffers], None] | None = None,
    ) -> None:
        self.groups = groups
        self.watch = watch
        self._share: Share = share or Alone()
        self._times: list[PartTime] = []

    def attend(self, group: range, like: Tensor, attention: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the attention outputs of a group: of its i-th layer, device i mod ways computes it.

        Args:
            group: The layers.
            like: The hidden state they all read, (T, D).
            attention: Computes one layer's output, (T, D).
        """
        share = self._share
        mine: dict[int, Tensor] = {}
        for i in range(share.rank, len(group), share.ways):
            start = time.perf_counter_ns()
            mine[i] = attention(group[i])
            self._took("attention", group[i], start, like)
        if share.ways == 1:
            return list(mine.values())
        start = time.perf_counter_ns()
        outputs = share.swap(mine, len(group), like)
        self._took("exchange", group.start, start, like)
        return outputs

    def times(self) -> tuple[PartTime, ...]:
        """Return when this device worked on which part, since the last call."""
        taken, self._times = tuple(self._times), []
        return taken

    def _took(self, kind: PartKind, layer: int, start: int, like: Tensor) -> None:
        if like.is_cuda:
            # the layers of a group meet at its end anyway: so these are times of work, not of launches
            import torch

            torch.cuda.current_stream(like.device).synchronize()
        self._times.append(PartTime(kind, layer, start, time.perf_counter_ns()))
