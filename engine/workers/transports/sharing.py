"""A virtual device shared by several workers: each of k forwards at once has 1/k of its speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol


class Timer(Protocol):
    """Protocol of the virtual loop's clock."""

    now: int
    """Microseconds."""

    def call_at(self, when: int, action: Callable[[], object]) -> None:
        """Run an action at a time in microseconds."""
        ...


class Processor:
    """Equal shares in exact fractions; a forward ends at a whole microsecond, rounded up."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Future[None], Fraction] = {}
        self._since = 0
        self._plans = 0

    def work(self, clock: Timer, us: int) -> asyncio.Future[None]:
        """Start a forward that takes `us` microseconds alone; return a future of its end."""
        self._advance(clock.now)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left[done] = Fraction(us)
        self._plan(clock)
        return done

    def _advance(self, now: int) -> None:
        if self._left:
            share = Fraction(now - self._since, len(self._left))
            self._left = {done: max(Fraction(0), left - share) for done, left in self._left.items()}
        self._since = now

    def _plan(self, clock: Timer) -> None:
        """Schedule the end of the next forward; a forward that starts earlier makes a new plan."""
        self._plans += 1
        if self._left:
            plan, soonest = self._plans, min(self._left.values()) * len(self._left)
            clock.call_at(
                clock.now + -(-soonest.numerator // soonest.denominator), lambda: self._end(clock, plan)
            )

    def _end(self, clock: Timer, plan: int) -> None:
        if plan != self._plans:
            return
        self._advance(clock.now)
        for done in [done for done, left in self._left.items() if left <= 0]:
            del self._left[done]
            if not done.done():
                done.set_result(None)
        self._plan(clock)
