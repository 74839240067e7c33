"""The devices there are, whatever they are: which seats a layout takes, and how workers and models come to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from engine.errors import UsageError
from engine.model.language import LanguageModel
from engine.trace.events import Device
from engine.types import Layout
from engine.workers.jobs import Stage
from engine.workers.worker import Worker

Loader = Callable[..., LanguageModel]
"""Makes a model; `stage` may say which part of it, (number, count)."""


class Assignment(NamedTuple):
    """Where a worker sits: one device, or several that work as one. The seat's name is the worker's."""

    name: str
    devices: tuple[Device, ...]
    members: tuple[Assignment, ...] = ()
    """Of a group of workers: the seats of each, its leader's first."""
    lanes: tuple[tuple[str, int], ...] = ()
    """For models that do not keep all of the devices busy: how many, the first ones."""
    split: bool = False
    """Whether each member holds a part of the model's layers, rather than all of them."""

    @property
    def singles(self) -> tuple[Assignment, ...]:
        """The seats of its workers."""
        return self.members or (self,)

    def of(self, model: str) -> tuple[Device, ...]:
        """Return the devices that a model keeps busy."""
        return self.devices[: dict(self.lanes).get(model)]

    @property
    def stages(self) -> tuple[Stage | None, ...]:
        """Which part of the model each of its workers holds; None for all of it."""
        count = len(self.singles)
        return tuple(Stage(i, count) if self.split else None for i in range(count))


class Pipeline(NamedTuple):
    """What a site offers a target that is split over its devices by layers."""

    usual: int
    """Stages where nobody says how many."""
    devices: int
    layers: int = 0
    """Those of the target that the times are of; 0 where that is the target itself."""


class Site(Protocol):
    """The devices there are: which seats a layout takes, and how workers and models come to them."""

    def seats(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Return the seats of each model.

        Raises:
            UsageError: The layout needs more devices than there are.
        """
        ...

    def servers(self, drafters: int) -> int:
        """Return how many target servers there is room for beside so many drafters; 0 for none."""
        ...

    def drafters(self) -> int:
        """Return how many different drafters there are."""
        ...

    def ranks(self) -> int:
        """Return how many devices may share a drafter's layers, at least 1."""
        ...

    def depth(self) -> int:
        """Return the layers of the drafter that the times are of; 0 where that is the drafter itself."""
        ...

    def pipeline(self) -> Pipeline:
        """Return over how many devices the target's layers can be split.

        Raises:
            UsageError: The site does not say how long that takes.
        """
        ...

    def start_worker(self, seat: Assignment) -> Worker:
        """Start a worker."""
        ...

    def loader(self, model: str, seat: Assignment) -> Loader:
        """Return how a worker makes a model."""
        ...


def staged(seats: Sequence[Assignment], count: int) -> dict[str, list[Assignment]]:
    """Split the target over the first seats; draft on the last of them and on the first (PEARL, appendix G).

    Raises:
        UsageError: There are fewer devices.
    """
    if count > len(seats):
        raise UsageError(
            f"the target is to be split over {count} devices; there are {len(seats)}: ask for fewer stages"
        )
    members = tuple(seats[:count])
    devices = tuple(device for seat in members for device in seat.devices)
    whole = Assignment(f"{members[0].name}..{members[-1].name}/pipeline", devices, members, split=True)
    return {"drafter": [members[-1], members[0]], "target": [whole]}
