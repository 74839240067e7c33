"""Runs coroutines to their end, also for callers on a running event loop, as in a notebook."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeAlias

Work: TypeAlias = Coroutine[Any, Any, Any]


POLL_S = 0.05
"""Seconds between two looks at whether the caller's task was cancelled."""


def run_here_or_apart(run: Callable[[Work], Any], work: Work) -> Any:
    """Return `run(work)`; where a loop runs in this thread already, from a thread of its own.

    An event loop cannot start inside another one. The caller waits for the thread.
    KeyboardInterrupt cancels the work and is raised when it has ended. A cancellation of the
    caller's task, which `asyncio.run` makes of the first Ctrl-C, cancels the work, too.

    Args:
        run: Runs a coroutine to its end on a new event loop.
        work: The coroutine.
    """
    if asyncio._get_running_loop() is None:
        return run(work)
    started: Future[Callable[[], object]] = Future()

    async def noted() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        started.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work

    caller = asyncio.current_task()
    before = caller.cancelling() if caller else 0
    with ThreadPoolExecutor(1, "specscope-loop") as thread:  # leaving the block waits for the thread
        ended = thread.submit(run, noted())
        try:
            while not ended.done() and (caller is None or caller.cancelling() == before):
                wait([ended], POLL_S)
        finally:
            wait([started, ended], return_when=FIRST_COMPLETED)
            if not ended.done():
                with contextlib.suppress(RuntimeError):  # its loop was closed meanwhile
                    started.result()()
        return ended.result()
