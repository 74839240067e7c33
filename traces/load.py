"""The load of the machine by other programs during a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.trace.events import OTHERS, TOO_BUSY

if TYPE_CHECKING:
    from engine.trace.trace import Trace


class OtherLoad(NamedTuple):
    """What other programs used on average."""

    used: float
    cores: int
    """Of the machine."""

    @property
    def text(self) -> str:
        """The load as a figure: `0.1 of 2 cores`."""
        return f"{self.used:.1f} of {self.cores} cores"

    @property
    def warning(self) -> str:
        """A sentence if the load was high, else empty."""
        if self.used < TOO_BUSY:
            return ""
        return f"Other programs used {self.text} during the run: the times may be wrong."


def other_load(trace: Trace) -> OtherLoad | None:
    """Return the load by other programs; None for a run without this row, such as a virtual one."""
    share = next((row.busy for row in trace.occupancy if row.device == OTHERS), None)
    return of_cores(share, trace.header.environment.get("cores"))


def of_cores(share: object, cores: object) -> OtherLoad | None:
    """Return the load of a share of a machine's cores; None if one of them is unknown."""
    if not isinstance(share, int | float) or not isinstance(cores, int):
        return None
    return OtherLoad(share * cores, cores)
