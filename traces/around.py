"""What a run has around the rows of a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Around(NamedTuple):
    """What a run has before and after the rows of a part; the default is a whole run.

    Times are nanoseconds since the run's start.
    """

    commits: int = 0
    """Number of commits before the first one of the part."""
    last: Mapping[int, int] = MappingProxyType({})
    """Time of the last of them, by sequence."""
    emitted: Mapping[int, int] = MappingProxyType({})
    """Tokens committed by the rounds before the first one of the part, by sequence."""
    steps: Mapping[int, tuple[int, int]] = MappingProxyType({})
    """First and last step of each sequence of the run; empty unless finished ones are still fed."""
    since: int | None = None
    """Spans that start before this time may be missing; None if no earlier one is."""
    until: int | None = None
    """Spans that start after this time are missing; None if there are none."""


WHOLE = Around()
