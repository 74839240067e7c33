"""Continuous batching: merges the pending model calls of all sequences into one batched call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call of a model for some sequences."""

    role: str
    """`target`, `drafter`, or `scores` and `judge`, the parts of a target's call that overlaps."""
    start: Callable[..., Awaitable[list[Any]]]
    """(*columns, *options) -> one result for each sequence."""
    columns: tuple[Sequence[Any], ...]
    """Arguments with one entry for each sequence; the first are the prefixes."""
    options: tuple[Any, ...]
    """The other arguments."""


class Gathering:
    """Calls of sequences that decode at the same time; each sequence waits in one call at most."""

    def __init__(self) -> None:
        self.decoding = 0
        """Sequences that will make a call, or end."""
        self._calls: list[tuple[Call, asyncio.Future[list[Any]]]] = []
        self._begun: list[tuple[Call, asyncio.Future[list[Any]]]] = []
        """Calls whose sequences go on."""
        self._changed = asyncio.Event()

    async def join(self, call: Call) -> list[Any]:
        """Wait until the call has been made together with others; return its own results."""
        results: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._calls.append((call, results))
        self._changed.set()
        return await results

    def begin(self, call: Call) -> None:
        """Let the call be made together with others, without waiting for it."""
        self._begun.append((call, asyncio.get_running_loop().create_future()))

    def end(self) -> None:
        self.decoding -= 1
        self._changed.set()

    async def complete(self) -> None:
        """Wait until each decoding sequence waits in a call, or ended."""
        while len(self._calls) < self.decoding:
            self._changed.clear()
            await self._changed.wait()

    def waits(self, role: str) -> bool:
        return any(call.role == role for call, _ in (*self._calls, *self._begun))

    async def make(self, role: str, **more: Any) -> None:
        """Make the calls of a role, equal ones as one; `more` are arguments of the first."""
        taken = [one for one in (*self._calls, *self._begun) if one[0].role == role]
        self._calls = [one for one in self._calls if one[0].role != role]
        self._begun = [one for one in self._begun if one[0].role != role]
        while taken:
            first = taken[0][0]
            same = [one for one in taken if one[0][1::2] == first[1::2]]
            taken = [one for one in taken if one[0][1::2] != first[1::2]]
            columns = zip(*(call.columns for call, _ in same), strict=True)
            joined = [[entry for part in parts for entry in part] for parts in columns]
            found, more = await first.start(*joined, *first.options, **more), {}
            for call, results in same:
                count = len(call.columns[0])
                results.set_result(found[:count])
                found = found[count:]
