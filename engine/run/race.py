"""A race: work under way at once, of which the first results decide what to do with the rest (DSI)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any


class Race:
    """Use it as `async with run.race() as race`; results come in the order in which they are ready.

    Leaving cancels what is still running, in order of its start, and waits for none of it: the method goes on at once,
    a device stays busy until its forward ends. An error of any of the work is raised where results are taken.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}
        self._finished: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work; its result comes out of the iteration."""
        task = asyncio.ensure_future(work)
        self._running[task] = None
        task.add_done_callback(self._finish)
        return task

    def stop(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel one piece of work, and forget its result if it has one that was not taken."""
        if task in self._running:
            del self._running[task]
            task.cancel()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task in self._running:
            self._finished.put_nowait(task)
        elif not task.cancelled():
            task.exception()  # nobody asks any more

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
        """Return all results that are ready, at least one; the iteration ends when nothing is running."""
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
