"""A race: concurrent work; its first results decide which of the rest is cancelled (DSI)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class Race:
    """Concurrent work with results in the order in which they are ready.

    Use it as `async with run.race() as race`. Leaving the block cancels the running work, in order
    of its start, without waiting: the method continues at once, but a device stays busy until its
    forward ends. An error of the work is raised by the iteration.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}
        self._finished: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work; the iteration yields its result."""
        task = asyncio.ensure_future(work)
        self._running[task] = None
        task.add_done_callback(self._finish)
        return task

    def stop(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel one piece of work, or drop its result if the iteration has not yielded it."""
        if task in self._running:
            del self._running[task]
            task.cancel()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task in self._running:
            self._finished.put_nowait(task)
        elif not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it

    async def __aenter__(self) -> Race:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, self._running = self._running, {}
        for task in running:
            task.cancel()

    def __aiter__(self) -> Race:
        return self

    async def __anext__(self) -> list[Any]:
        """Return all ready results, at least one; the iteration ends if no work is running."""
        ready = list[asyncio.Task[Any]]()
        while not ready:
            if not self._running:
                raise StopAsyncIteration
            done = [await self._finished.get()]
            while not self._finished.empty():
                done.append(self._finished.get_nowait())
            ready = [task for task in done if task in self._running]
        for task in ready:
            del self._running[task]
        return [task.result() for task in ready]
