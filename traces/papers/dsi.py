"""DSI: Tables 1 and 2, the bounds, heat maps over 2,020,000 configurations, SP against MP.

Times of DSI, SI and plain decoding are in target forwards, with independent acceptance.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from fractions import Fraction
from functools import cache, partial
from math import ceil, floor
from typing import Any

import numpy as np

from specscope.traces.papers.rows import Heat, Paper, TableCell, numbers

_DATA = numbers("dsi")
_DRAWN = 100
"""Texts of 50 tokens drawn for a row of Table 2."""
_LOOKAHEADS = {"Figure 2": 0, "Figure 7": 5}
"""Lookahead of the heat maps; 0: the best feasible one of each configuration."""
DRAFTER = np.arange(1, 101) / 100
"""Drafter latencies of the paper's grid, in target forwards."""
RATE = np.arange(101) / 100
LOOKAHEAD = np.arange(1, 201)
SERVERS = 7
_REST = 40.0
"""A geometric series ends where a term is below exp(-40)."""
_ONE_SEVENTH = Fraction(1, 7)
_WAYS: dict[str, Callable[[Fraction], int]] = {
    "worst case: non-SI": floor,
    "worst case: SI": lambda t: floor(t / (1 + _ONE_SEVENTH)),
    "worst case: DSI": floor,
    "best case: non-SI": floor,
    "best case: SI": lambda t: 2 * floor(t / (1 + _ONE_SEVENTH)),
    "best case: DSI": lambda t: floor((t - 1) / _ONE_SEVENTH) + 1 if t >= 1 else 0,
}
"""Tokens at a time of Figure 1, whose drafter takes 1/7 of a target forward."""


@cache
def table_2_times(name: str) -> tuple[float, dict[int, float]]:
    """Return milliseconds of DSI, and of SI by lookahead, under the protocol of section 4."""
    target, drafter, _, percent, _ = _DATA["Table 2"][name]
    protocol, first = _DATA["protocol"], _DATA["Table 3"].get(name, [1.0, 1.0])
    ratio, lookaheads = drafter / target, protocol["lookaheads"]
    texts = np.random.default_rng(0).random((_DRAWN, protocol["tokens"])) < percent / 100

    def mean(time: Callable[[np.ndarray, float, int], float], lookahead: int) -> float:
        return float(np.mean([time(text, ratio, lookahead) for text in texts]))

    own = min(mean(run_time, k) for k in lookaheads if feasible(np.array(ratio), np.array(k)))
    prefill = (first[0] - 1) * target
    serial = prefill + (first[1] - 1) * drafter
    return prefill + own * target, {k: serial + mean(si_run_time, k) * target for k in lookaheads}


def _over_si(cell: TableCell) -> float:
    dsi, si = table_2_times(cell.row)
    return (
        si[cell.line["lookahead"]] if "lookahead" in cell.line else float(np.mean(list(si.values())))
    ) / dsi


def _latency(cell: TableCell) -> Mapping[str, Any]:
    target, drafter, percent, *_ = cell.table[cell.row]
    return {"published": percent, "ours": 100 * drafter / target}


def _printed_speed_ups() -> list[float]:
    return [values[-1] for name, values in _DATA["Table 2"].items() if name != "columns"]


def _texts() -> Iterator[tuple[float, float, np.ndarray]]:
    """Yield drafter latencies and drawn texts of 50 tokens at rates over the whole grid."""
    generator = np.random.default_rng(0)
    for drafter in (0.05, 0.1, 0.25, 0.5, 0.75, 1.0):
        for rate in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
            yield drafter, rate, generator.random((20, 50)) < rate


def _above_the_bound() -> int:
    """Count drawn texts that take longer than t1 p (N - 1) + t2 ((1 - p)(N - 1) + 1)."""
    above = 0
    for drafter, _, texts in _texts():
        for text in texts:
            share, more = float(text[:-1].mean()), len(text) - 1
            bound = drafter * share * more + (1 - share) * more + 1
            above += run_time(np.append(text[:-1], [True]), drafter, 1) > bound + 1e-9
    return above


def _slower_texts() -> int:
    return sum(
        run_time(text, drafter, lookahead) > len(text) + 1e-9
        for drafter, _, texts in _texts()
        for text in texts
        for lookahead in (1, 2, 5, 20)
    )


@cache
def _times() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times per token of DSI and SI, and what is feasible.

    Their axes are drafter latency, rate and lookahead: 100 x 101 x 200.
    """
    drafter, rate, lookahead = np.meshgrid(DRAFTER, RATE, LOOKAHEAD, indexing="ij", sparse=True)
    allowed = np.broadcast_to(feasible(drafter, lookahead), (len(DRAFTER), len(RATE), len(LOOKAHEAD)))
    return dsi_time(drafter, rate, lookahead), si_time(drafter, rate, lookahead), allowed


@cache
def _ratios(lookahead: int = 0) -> dict[str, np.ndarray]:
    """Return ratios of times over (drafter latency, rate); "best" is the faster of SI and non-SI.

    Latencies for which seven servers do not suffice are left out.
    """
    dsi, si, allowed = _times()
    if lookahead:
        fits = allowed[:, 0, lookahead - 1]
        si, dsi = si[fits, :, lookahead - 1], dsi[fits, :, lookahead - 1]
    else:
        si, dsi = (np.where(allowed, times, np.inf).min(2) for times in (si, dsi))
    best = np.minimum(si, 1) / dsi
    return {"si_over_plain": si, "dsi_over_si": si / dsi, "dsi_over_plain": 1 / dsi, "dsi_over_best": best}


def _slower_configurations() -> int:
    dsi, si, allowed = _times()
    return int((dsi > si + 1e-9)[allowed].sum())


def _ratio(cell: TableCell) -> np.ndarray:
    return _ratios(cell.line.get("lookahead", 0))[cell.line["ratio"]]


def _pink_cells(cell: TableCell) -> int:
    below = RATE[None, :] < DRAFTER[:, None] - 1e-9
    return int((below & (_ratio(cell) <= 1 + 1e-9)).sum())


def _pictures(item: str) -> list[Heat]:
    """Return the figure's maps as speed-ups: the first algorithm's time over the second one's."""
    maps = _ratios(_LOOKAHEADS[item])
    pictures = [
        Heat("(a) speed-up of SI over non-SI", 1 / maps["si_over_plain"]),
        Heat("(b) of DSI over SI", maps["dsi_over_si"]),
        Heat("(c) of DSI over non-SI", maps["dsi_over_plain"]),
        Heat("(d) of DSI over the better of both", maps["dsi_over_best"]),
    ]
    return pictures[: 3 if _LOOKAHEADS[item] else 4]


def _share(cell: TableCell) -> float:
    """Return the share of target forwards that count with model parallelism."""
    return 1 - cell.line["rate"] ** cell.line["k"]


def _block(cell: TableCell) -> float:
    return cell.line["k"] * cell.line["drafter"]


def _threads(cell: TableCell) -> Mapping[str, Any]:
    target, drafter, _, percent, _ = _DATA["Table 2"][cell.row]
    protocol, ratio = _DATA["protocol"], np.array(drafter / target)
    lookahead = next(k for k in protocol["lookaheads"] if feasible(ratio, np.array(k)))
    right = np.random.default_rng(1).random(protocol["tokens"]) < percent / 100
    ideal = run_time(right, drafter / target, lookahead) * target / 1e3
    costs = (target / 1e3, drafter / 1e3, lookahead, protocol["servers"])
    return {"ours": measured_time([bool(r) for r in right], *costs) / ideal - 1, "lookahead": lookahead}


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
    return sum(_run_of(count, drafter, lookahead) for count in _runs(right))


def _runs(right: np.ndarray) -> list[int]:
    """Return the tokens of each run, which ends with a rejection or the text."""
    ends = {*(np.flatnonzero(~right) + 1).tolist(), len(right)}
    return np.diff([0, *sorted(ends)]).tolist()


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
        started = time.perf_counter()
        for count in _runs(np.array(right)):
            _generation(pool, count, (target, drafter, lookahead))
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


PAPER = Paper(
    "dsi",
    {
        "tokens at a moment": lambda c: _WAYS[c.row](
            Fraction(*_DATA["Figure 1"]["times"][c.table["columns"].index(c.column)])
        ),
        "DSI over SI": _over_si,
        "drafter latency": _latency,
        "least speed-up": lambda _: min(_printed_speed_ups()),
        "largest speed-up": lambda _: max(_printed_speed_ups()),
        "texts above the bound": lambda _: _above_the_bound(),
        "texts slower than non-SI": lambda _: _slower_texts(),
        "configurations slower than SI": lambda _: _slower_configurations(),
        "cells below 1": lambda c: int((_ratio(c) < 1 - 1e-9).sum()),
        "share above 1": lambda c: float((_ratio(c) > 1 + 1e-9).mean()),
        "pink cells": _pink_cells,
        "largest ratio": lambda c: float(_ratio(c).max()),
        "share of MP": lambda c: round(_share(c), 2),
        "speed-up of MP": lambda c: round(1 / _share(c), 2),
        "GPUs": lambda c: ceil(1 / _block(c)) + 1,
        "Amdahl": lambda c: round(1 / (1 - c.line["rate"]), 9),
        "perfect drafter": lambda c: (_block(c) + 1) / _block(c),
        "threads": _threads,
    },
    {item: partial(_pictures, item) for item in _LOOKAHEADS},
)
