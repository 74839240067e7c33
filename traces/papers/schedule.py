"""Time of DSI, SI and plain decoding in target forwards, with independent acceptance.

DSI after a rejection: a target forward on the prefix begins at once. The drafter goes on; each
`lookahead` drafts begin a target forward on another server, and a partial block begins one where
nothing running covers the next position. A rejection at the token after n accepted ones is known
when the forward that covers it ends; then all of it begins again.

The thread-pool experiment of section 4 replaces each forward by a wait, so that the measured time
has the forwards' latencies and what threads cost. Drafts are right or wrong by a fixed script. A
rejection begins a new generation; forwards of an older one are ignored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np

DRAFTER = np.arange(1, 101) / 100
"""Drafter latencies of the paper's grid, in target forwards."""
RATE = np.arange(101) / 100
LOOKAHEAD = np.arange(1, 201)
SERVERS = 7
_REST = 40.0
"""A geometric series ends where a term is below exp(-40)."""


def si_time(drafter: np.ndarray, rate: np.ndarray, lookahead: np.ndarray) -> np.ndarray:
    """Return SI's time per token: (k d + 1) / (1 + a + ... + a^k), broadcast over the arguments."""
    safe = np.where(rate < 1, rate, 0.0)
    tokens = np.where(rate < 1, (1 - safe ** (lookahead + 1)) / (1 - safe), lookahead + 1.0)
    return (lookahead * drafter + 1) / tokens


def dsi_time(drafter: np.ndarray, rate: np.ndarray, lookahead: np.ndarray) -> np.ndarray:
    """Return DSI's time per token, broadcast over the arguments.

    If k d <= 1, the token after n accepted ones is known at ceil(n / k) k d + 1. A run of accepted
    tokens has n geometric and gives n + 1 tokens, and E[ceil(n / k)] = a / (1 - a^k).
    """
    safe = np.where(rate < 1, rate, 0.0)
    blocks = lookahead * drafter * safe / (1 - safe**lookahead)
    full = np.where(rate < 1, (1 - safe) * (1 + blocks), drafter)
    return np.where(lookahead * drafter <= 1 + 1e-12, full, partial_time(drafter, rate))


def partial_time(drafter: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Return DSI's time per token with one server, whose forwards take what is drafted.

    Forward i + 1 begins at time i and covers floor(i / d) drafts, so n accepted tokens need i =
    ceil(n d) forwards more; E[ceil(n d)] is the sum over m of P(n > m / d).
    """
    drafter, rate = np.broadcast_arrays(drafter, rate)
    pairs, index = np.unique(np.stack([drafter.ravel(), rate.ravel()]), axis=1, return_inverse=True)
    times = np.array([_partial(d, a) for d, a in pairs.T])
    return times[index].reshape(drafter.shape)


def _partial(drafter: float, rate: float) -> float:
    if rate == 1:
        return drafter
    if rate == 0:
        return 1.0
    terms = int(_REST * drafter / -np.log(rate)) + 2
    covered = np.floor(np.arange(terms) / drafter + 1e-9)
    return float((1 - rate) * (1 + (rate ** (covered + 1)).sum()))


def feasible(drafter: np.ndarray, lookahead: np.ndarray) -> np.ndarray:
    """Return where `SERVERS` target servers suffice: ceil(1 / (k d)) <= 7."""
    return np.ceil(1 / (lookahead * drafter) - 1e-9) <= SERVERS


def run_time(right: np.ndarray, drafter: float, lookahead: int) -> float:
    """Return the time of DSI for one text, by following its forwards one after the other.

    `right`: of each token, whether its draft is right; the drafter's latency is in target forwards.
    """
    time, position = 0.0, 0
    while position < len(right):
        wrong = np.flatnonzero(~right[position:])
        count = int(wrong[0]) + 1 if len(wrong) else len(right) - position
        time += _run_of(count, drafter, lookahead)
        position += count
    return time


def si_run_time(right: np.ndarray, drafter: float, lookahead: int) -> float:
    """Return SI's time for one text: rounds of k d + 1 until it is complete (appendix E.1)."""
    position, rounds = 0, 0
    while position < len(right):
        block = right[position : position + lookahead]
        wrong = np.flatnonzero(~block)
        position += (int(wrong[0]) if len(wrong) else lookahead) + 1
        rounds += 1
    return rounds * (lookahead * drafter + 1)


def _run_of(count: int, drafter: float, lookahead: int) -> float:
    """Return the time until `count` tokens are known after a new beginning."""
    covered, end = 1, 1.0
    while covered < count:
        full = (covered - 1 + lookahead) * drafter
        if full <= end + 1e-12:
            start, more = full, lookahead
        else:
            start, more = end, int(end / drafter + 1e-9) - (covered - 1)
        covered, end = covered + max(1, more), max(start, drafter * covered) + 1
    return end


def measured_time(
    right: Sequence[bool], target: float, drafter: float, lookahead: int, servers: int
) -> float:
    """Return the seconds that real threads take for a text; both latencies are in seconds."""
    with ThreadPoolExecutor(servers) as pool:
        started, position = time.perf_counter(), 0
        while position < len(right):
            rest = right[position:]
            count = rest.index(False) + 1 if False in rest else len(rest)
            _generation(pool, count, (target, drafter, lookahead))
            position += count
        return time.perf_counter() - started


def _generation(pool: ThreadPoolExecutor, count: int, costs: tuple[float, float, int]) -> None:
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
