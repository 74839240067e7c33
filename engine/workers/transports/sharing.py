"""A virtual device that several workers share: k pieces of work at once each go on at 1/k of their speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from fractions import Fraction
from typing import Protocol


class Timer(Protocol):
    """The loop's virtual clock."""

    now: int
    """Microseconds."""

    def call_at(self, when: int, action: Callable[[], object]) -> None:
        """Do something at a time in microseconds."""
        ...


class Processor:
    """Equal shares, exactly: times are fractions until a piece of work ends, which is at a whole microsecond."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Future[None], Fraction] = {}
        self._since = 0
        self._plans = 0

    def work(self, clock: Timer, us: int) -> asyncio.Future[None]:
        """Start a piece of work that takes so many microseconds alone; its future is done when it is."""
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
        """Ask to be called when the next piece ends, unless something changes before."""
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
