"""How a model's calls are made: at once, or under load those of several sequences as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple


class AtOnce:
    """Makes each call of a model at once, for its own sequences."""

    allowed: Mapping[int, int] = {}

    async def join(
        self,
        role: str,  # noqa: ARG002 - no call waits for others
        start: Callable[..., Awaitable[list[Any]]],
        columns: tuple[Sequence[Any], ...],
        *options: Any,
    ) -> list[Any]:
        return await start(*columns, *options)


class _Call(NamedTuple):
    """A call of a model for some sequences."""

    role: str
    """`target`, `drafter`, or `scores` and `judge`, the parts of a target's call that overlaps."""
    start: Callable[..., Awaitable[list[Any]]]
    """(*columns, *options) -> one result for each sequence."""
    columns: tuple[Sequence[Any], ...]
    """Arguments with one entry for each sequence; the first are the prefixes, or their scores."""
    options: tuple[Any, ...]
    results: asyncio.Future[list[Any]]

    @property
    def sequence(self) -> int:
        return self.columns[0][0].sequence

    def matches(self, role: str, sequences: Collection[int] | None) -> bool:
        return self.role == role and (sequences is None or self.sequence in sequences)


class Gathering:
    """Continuous batching: merges the pending calls of sequences into one batched call.

    Each sequence waits in one call at most. `sequences` limits a method to the calls of these; None
    stands for all.
    """

    def __init__(self) -> None:
        self.decoding = set[int]()
        """Sequences that will make a call, or end."""
        self.allowed: Mapping[int, int] = {}
        """Most levels of a sequence's next draft; without an entry all that its method asks for."""
        self._calls = list[_Call]()
        self._begun = list[_Call]()
        """Calls whose sequences go on."""
        self._changed = asyncio.Event()

    async def join(
        self,
        role: str,
        start: Callable[..., Awaitable[list[Any]]],
        columns: tuple[Sequence[Any], ...],
        *options: Any,
    ) -> list[Any]:
        """Wait until the call has been made together with others; return its own results."""
        call = _Call(role, start, columns, options, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self._changed.set()
        return await call.results

    def begin(
        self, role: str, start: Callable[..., Awaitable[list[Any]]], columns: tuple[Sequence[Any], ...]
    ) -> None:
        """Let the call be made together with others, without waiting for it."""
        results: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._begun.append(_Call(role, start, columns, (), results))

    def end(self, sequence: int) -> None:
        self.decoding.remove(sequence)
        self._changed.set()

    async def complete(self, sequences: Collection[int] | None = None) -> None:
        """Wait until each decoding sequence waits in a call, or ended."""
        while self._busy(sequences):
            self._changed.clear()
            await self._changed.wait()

    def _busy(self, sequences: Collection[int] | None) -> set[int]:
        decoding = self.decoding if sequences is None else self.decoding.intersection(sequences)
        return decoding.difference(call.sequence for call in self._calls)

    def waits(self, role: str, sequences: Collection[int] | None = None) -> bool:
        return any(call.matches(role, sequences) for call in (*self._calls, *self._begun))

    def waiting(self, role: str) -> dict[int, tuple[Any, ...]]:
        """Return the arguments of the sequences that wait for a role, the longest waiting first."""
        found = [call for call in self._calls if call.role == role]
        return {call.sequence: tuple(column[0] for column in call.columns) for call in found}

    async def make(
        self, role: str, sequences: Collection[int] | None = None, **more: Any
    ) -> dict[int, list[Any]]:
        """Make the calls of a role, equal ones as one; return the results of each sequence.

        `more` are arguments of the first call.
        """
        taken = [call for call in (*self._calls, *self._begun) if call.matches(role, sequences)]
        self._calls = [call for call in self._calls if not call.matches(role, sequences)]
        self._begun = [call for call in self._begun if not call.matches(role, sequences)]
        results = dict[int, list[Any]]()
        while taken:
            start, options = taken[0].start, taken[0].options
            same = [call for call in taken if (call.start, call.options) == (start, options)]
            taken = [call for call in taken if (call.start, call.options) != (start, options)]
            columns = zip(*(call.columns for call in same), strict=True)
            joined = [[entry for part in parts for entry in part] for parts in columns]
            found, more = await start(*joined, *options, **more), {}
            for call in same:
                count = len(call.columns[0])
                results[call.sequence] = found[:count]
                call.results.set_result(found[:count])
                found = found[count:]
        return results
