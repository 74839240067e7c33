"""DSI's thread-pool experiment: real threads that wait the times of Table 2.

Section 4 replaces each forward by a wait, so that the measured time has the forwards' latencies and
what threads cost. Drafts are right or wrong by a fixed script. A rejection begins a new generation;
forwards of an older one are ignored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait


def measured_time(
    right: Sequence[bool], target: float, drafter: float, lookahead: int, servers: int
) -> float:
    """Return the seconds that real threads take for a text.

    Args:
        right: For each token, whether its draft is right.
        target: Seconds of a target forward.
        drafter: Seconds of a drafter forward.
        lookahead: Drafts of a block.
        servers: Threads that verify.
    """
    with ThreadPoolExecutor(servers) as pool:
        started, position = time.perf_counter(), 0
        while position < len(right):
            rest = right[position:]
            count = rest.index(False) + 1 if False in rest else len(rest)
            _generation(pool, count, (target, drafter, lookahead))
            position += count
        return time.perf_counter() - started


def _generation(pool: ThreadPoolExecutor, count: int, costs: tuple[float, float, int]) -> None:
    """Draft and verify until `count` tokens are known, then stop the drafter."""
    stop, drafted = threading.Event(), threading.Semaphore(0)
    thread = threading.Thread(target=_draft, args=(stop, drafted, costs[1]), daemon=True)
    thread.start()
    try:
        _verify(pool, count, costs, drafted)
    finally:  # an interrupt, too: without it the drafter would keep the process alive
        stop.set()
        thread.join()


def _verify(
    pool: ThreadPoolExecutor, count: int, costs: tuple[float, float, int], drafted: threading.Semaphore
) -> None:
    """Verify blocks of drafts until `count` tokens are known."""
    target, drafter, lookahead = costs
    running: dict[Future[None], int] = {pool.submit(time.sleep, target): 1}
    covered, available, known = 1, 0, 0
    while known < count:
        done, _ = wait(running, timeout=drafter / 8, return_when=FIRST_COMPLETED)
        for future in done:
            known = max(known, running.pop(future))
        while drafted.acquire(blocking=False):
            available += 1
        while available - (covered - 1) >= lookahead or (not running and available >= covered):
            covered = min(covered + lookahead, available + 1)
            running[pool.submit(time.sleep, target)] = covered


def _draft(stop: threading.Event, drafted: threading.Semaphore, seconds: float) -> None:
    while not stop.wait(seconds):
        drafted.release()
