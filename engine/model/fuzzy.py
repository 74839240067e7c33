"""Layer-parallel attention: the layers of a group read one hidden state and run at the same time.

Source: EasySpec (Wu et al. 2025), section 3.1, algorithm 2, with the groups of Table 6. The result
is fuzzy: good enough for drafting, but its keys and values differ from an exact forward's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

from specscope.engine.trace.events import PartKind
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from torch import Tensor

    from specscope.engine.model.cache import Buffers


def layer_groups(layers: int, size: int) -> list[range]:
    """Return the groups of layers whose attention runs at the same time (EasySpec, Table 6).

    The first and the last layer form groups of one. Between them, the first group has min(size, 3)
    layers and the others `size`; the last of these may have fewer. UsageError unless 1 <= size <=
    layers.
    """
    check_range("layer-parallel size", size, 1, layers)
    cuts = {0, 1, *range(1 + min(size, 3), layers - 1, size), layers - 1, layers}
    return [range(a, b) for a, b in pairwise(sorted(cuts))]


class DeviceGroup(Protocol):
    """Devices that run the same forward and share its attention layers.

    Each device computes all other parts of the forward itself.
    """

    @property
    def rank(self) -> int: ...

    @property
    def ways(self) -> int: ...

    def swap(self, mine: Mapping[int, Tensor], count: int, like: Tensor) -> list[Tensor]:
        """Return the `count` tensors of all devices, in order of index; `mine` are this device's.

        All have the shape and dtype of `like`.
        """
        ...


class SingleDevice:
    """A group of one device, which computes all layers."""

    rank = 0
    ways = 1

    def swap(self, mine: Mapping[int, Tensor], count: int, like: Tensor) -> list[Tensor]:  # noqa: ARG002 - a protocol
        return [mine[i] for i in range(count)]

    def agree(self, stopped: bool) -> bool:
        return stopped


class PartTime(NamedTuple):
    """Start and end of one part of a forward on a device: marks, then nanoseconds of its clock."""

    kind: PartKind
    """`attention`, or `exchange` for exchanging a group's attention outputs."""
    layer: int
    """The layer; for an exchange the first layer of its group."""
    start: int
    end: int

    def later(self, by: int) -> PartTime:
        return self._replace(start=self.start + by, end=self.end + by)


class Fuzzy:
    """The layer groups of one forward and the devices that share them.

    Args:
        groups: Groups of layers whose attention runs at the same time; together all layers in
            order.
        devices: Devices that share the attention layers; default: this one alone.
        watch: Called with layer and buffers after each attention computed on this device.
        mark: Returns a mark in time (`specscope.engine.model.clock`): no layer waits for its own
            end.
    """

    def __init__(
        self,
        groups: Sequence[range],
        devices: DeviceGroup | None = None,
        watch: Callable[[int, Buffers], None] | None = None,
        mark: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.groups = groups
        self.watch = watch
        self._devices: DeviceGroup = devices or SingleDevice()
        self._mark = mark
        self._times: list[PartTime] = []

    def attend(self, group: range, like: Tensor, attention: Callable[[int], Tensor]) -> list[Tensor]:
        """Return the attention output (T, D) of each layer of a group that reads `like`, (T, D).

        Device i mod `ways` computes the group's i-th layer.
        """
        devices = self._devices
        mine: dict[int, Tensor] = {}
        for i in range(devices.rank, len(group), devices.ways):
            start = self._mark()
            mine[i] = attention(group[i])
            self._times.append(PartTime("attention", group[i], start, self._mark()))
        if devices.ways == 1:
            return list(mine.values())
        start = self._mark()
        outputs = devices.swap(mine, len(group), like)
        self._times.append(PartTime("exchange", group.start, start, self._mark()))
        return outputs

    def times(self) -> tuple[PartTime, ...]:
        times, self._times = tuple(self._times), []
        return times
