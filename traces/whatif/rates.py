"""How often a drafter was right, for tokens at which a run tested none of its drafts.

A token of which the target is sure is easy for the drafter, too, and a run leaves out tokens of one
kind: those copied from the text, or after a whole accepted draft. So the rate of a token is that of
the tests at which the target gave its token about the same probability. Without probabilities, as
in runs of other engines, it is the rate of tests in the same place of a draft.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST = 10
"""Tests that a rate needs."""


class TestedDraft(NamedTuple):
    """The test of a draft."""

    place: int
    """Place 1 follows the committed prefix."""
    right: bool
    p: float | None = None
    """The target's probability of the output's token there."""


@dataclass(frozen=True, slots=True)
class RecordedRates:
    """Acceptance rates of tested drafts, by place and by the target's probability."""

    tested: Counter[int]
    accepted: Counter[int]
    ps: tuple[float, ...] = ()
    """Those of the tests, rising."""
    right: tuple[int, ...] = (0,)
    """Right drafts among the first n of them."""

    @classmethod
    def of(cls, tests: Iterable[TestedDraft]) -> RecordedRates:
        rows = list(tests)
        known = sorted((t.p, t.right) for t in rows if t.p is not None)
        return cls(
            Counter(t.place for t in rows),
            Counter(t.place for t in rows if t.right),
            tuple(p for p, _ in known),
            (0, *accumulate(right for _, right in known)),
        )

    @property
    def known(self) -> bool:
        return self.tested.total() > 0

    @property
    def overall(self) -> float:
        return self.accepted.total() / max(1, self.tested.total())

    def at(self, place: int, p: float | None = None) -> float:
        """Return the rate of tests with nearly this p, of this place without one.

        Too few tests: of a place, that of the nearest place before it; else that of all tests.
        """
        if p is not None and len(self.ps) >= LEAST:
            return self._near(p)
        nearest = next((k for k in range(place, 0, -1) if self.tested[k] >= LEAST), 0)
        return self.accepted[nearest] / self.tested[nearest] if nearest else self.overall

    def _near(self, p: float) -> float:
        """Return the rate of the `LEAST` tests nearest to p, and of all that are as near."""
        ps = self.ps
        here = bisect_left(ps, p)
        windows = range(max(0, here - LEAST), min(here, len(ps) - LEAST) + 1)
        best = min(windows, key=lambda i: max(p - ps[i], ps[i + LEAST - 1] - p))
        first, last = bisect_left(ps, ps[best]), bisect_right(ps, ps[best + LEAST - 1])
        return (self.right[last] - self.right[first]) / (last - first)
