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
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from fractions import Fraction
from functools import cache, partial
from math import floor
from typing import NamedTuple

import numpy as np

from specscope.traces.papers.rows import Heat, Paper, Row, per_cell

PAPER = Paper("dsi")
_DATA = PAPER.numbers
_MEASURED = ("Vicuna-7B CNN-DM", "Starcoder-15B MBPP")
"""Rows of Table 2 whose times real threads wait."""
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


@PAPER.item("Table 1")
def _table_1() -> Iterator[Row]:
    table, drafter = _DATA["Table 1"], Fraction(1, 7)
    times = [Fraction(*time) for time in _DATA["Figure 1"]["times"]]
    ways = {
        "worst case: non-SI": floor,
        "worst case: SI": lambda t: floor(t / (1 + drafter)),
        "worst case: DSI": floor,
        "best case: non-SI": floor,
        "best case: SI": lambda t: 2 * floor(t / (1 + drafter)),
        "best case: DSI": lambda t: floor((t - 1) / drafter) + 1 if t >= 1 else 0,
    }
    for name, way in ways.items():
        for column, moment, number in zip(table["columns"], times, table[name], strict=True):
            yield PAPER.row(f"{name}, {column}", number, way(moment), "lookahead 1")


class Times(NamedTuple):
    """Milliseconds of a run under the protocol of section 4; of SI by lookahead."""

    dsi: float
    si: dict[int, float]


def table_2_times(name: str) -> Times:
    target, drafter, _, percent, _ = _DATA["Table 2"][name]
    protocol, first = _DATA["protocol"], _DATA["Table 3"].get(name, [1.0, 1.0])
    ratio = drafter / target
    texts = np.random.default_rng(0).random((_DRAWN, protocol["tokens"])) < percent / 100
    feasible_ones = [k for k in protocol["lookaheads"] if feasible(np.array(ratio), np.array(k))]
    own = min(float(np.mean([run_time(text, ratio, k) for text in texts])) for k in feasible_ones)
    prefill = (first[0] - 1) * target
    other = {
        k: float(np.mean([si_run_time(text, ratio, k) for text in texts])) for k in protocol["lookaheads"]
    }
    serial = prefill + (first[1] - 1) * drafter
    return Times(prefill + own * target, {k: serial + forwards * target for k, forwards in other.items()})


@PAPER.item("Table 2")
def _table_2() -> Iterator[Row]:
    table, speeds = _DATA["Table 2"], list[float]()
    for name, values in ((k, v) for k, v in table.items() if k != "columns"):
        times = table_2_times(name)
        ours = float(np.mean(list(times.si.values()))) / times.dsi
        speeds.append(values[4])
        yield PAPER.row(f"{name}, speedup", values[4], ours, "drawn texts")
        for lookahead, ms in times.si.items():
            row = f"{name}, over SI at lookahead {lookahead}"
            yield PAPER.row(row, None, ms / times.dsi, "one lookahead", lookahead=lookahead)
        yield PAPER.row(f"{name}, drafter latency (%)", values[2], 100 * values[1] / values[0], "latencies")
    for name, ours in (("least_speedup", min(speeds)), ("most_speedup", max(speeds))):
        yield PAPER.row(f"{name} of the abstract", _DATA["claims"][name], ours, "extreme")


@PAPER.item("Table 3")
def _table_3() -> Iterator[Row]:
    return PAPER.rows_of(per_cell(_DATA["Table 3"]), "named models")


def _texts() -> Iterator[tuple[float, float, np.ndarray]]:
    """Yield drafter latencies and drawn texts of 50 tokens at rates over the whole grid."""
    generator = np.random.default_rng(0)
    for drafter in (0.05, 0.1, 0.25, 0.5, 0.75, 1.0):
        for rate in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
            yield drafter, rate, generator.random((20, 50)) < rate


@PAPER.item("Proposition 1")
def _proposition_1() -> Iterator[Row]:
    """Times of drawn texts against t1 p (N - 1) + t2 ((1 - p)(N - 1) + 1)."""
    above = 0
    for drafter, _, texts in _texts():
        for text in texts:
            share, more = float(text[:-1].mean()), len(text) - 1
            bound = drafter * share * more + (1 - share) * more + 1
            above += run_time(np.append(text[:-1], [True]), drafter, 1) > bound + 1e-9
    yield PAPER.row("drawn texts that take longer than the bound", 0, above, "720 texts")


@PAPER.item("Theorems 1 and 2")
def _theorems() -> Iterator[Row]:
    slower = sum(
        run_time(text, drafter, lookahead) > len(text) + 1e-9
        for drafter, _, texts in _texts()
        for text in texts
        for lookahead in (1, 2, 5, 20)
    )
    yield PAPER.row("Theorem 1: drawn texts on which DSI is slower than non-SI", 0, slower, "theorem 1")
    worse = int((_maps().dsi > _maps().si + 1e-9)[_maps().feasible].sum())
    yield PAPER.row("Theorem 2: configurations in which DSI is slower than SI", 0, worse, "theorem 2")


class Maps(NamedTuple):
    """Times per token over (drafter latency, rate, lookahead), 100 x 101 x 200."""

    dsi: np.ndarray
    si: np.ndarray
    feasible: np.ndarray


@cache
def _maps() -> Maps:
    drafter, rate, lookahead = np.meshgrid(DRAFTER, RATE, LOOKAHEAD, indexing="ij", sparse=True)
    allowed = np.broadcast_to(feasible(drafter, lookahead), (len(DRAFTER), len(RATE), len(LOOKAHEAD)))
    return Maps(dsi_time(drafter, rate, lookahead), si_time(drafter, rate, lookahead), allowed)


class Ratios(NamedTuple):
    """Ratios of times over (drafter latency, rate); "best" is the faster of SI and non-SI.

    Latencies for which seven servers do not suffice are left out.
    """

    si_over_plain: np.ndarray
    dsi_over_si: np.ndarray
    dsi_over_plain: np.ndarray
    dsi_over_best: np.ndarray


def heat_maps(lookahead: int = 0) -> Ratios:
    maps = _maps()
    if lookahead:
        fits = maps.feasible[:, 0, lookahead - 1]
        si, dsi = maps.si[fits, :, lookahead - 1], maps.dsi[fits, :, lookahead - 1]
    else:
        si = np.where(maps.feasible, maps.si, np.inf).min(2)
        dsi = np.where(maps.feasible, maps.dsi, np.inf).min(2)
    return Ratios(si, si / dsi, 1 / dsi, np.minimum(si, 1) / dsi)


@PAPER.item("Figure 2", "Figure 7")
def _figure(item: str) -> Iterator[Row]:
    lookahead = _LOOKAHEADS[item]
    maps, how = heat_maps(lookahead), item
    for label, ratio in (("SI", maps.dsi_over_si), ("non-SI", maps.dsi_over_plain)):
        slower = int((ratio < 1 - 1e-9).sum())
        yield PAPER.row(f"cells in which DSI is slower than {label}", 0, slower, how)
    slow = maps.si_over_plain > 1 + 1e-9
    if not lookahead:
        below = RATE[None, :] < DRAFTER[:, None] - 1e-9
        wrong = int((below & ~slow).sum())
        yield PAPER.row("(a) cells below rate = latency in which SI is not slower", 0, wrong, "pink cells")
        best, published = float(maps.dsi_over_best.max()), _DATA["claims"]["best_over_both"]
        yield PAPER.row("(d) largest speed-up over the better of both", published, best, "largest ratio")
    else:
        yield PAPER.row(
            "(a) share of cells in which SI is slower than non-SI", None, float(slow.mean()), "share"
        )
        for name, ratio in (("(b)", maps.dsi_over_si), ("(c)", maps.dsi_over_plain)):
            over = "SI" if name == "(b)" else "non-SI"
            yield PAPER.row(f"{name} largest speed-up over {over}", None, float(ratio.max()), "no numbers")


def _pictures(item: str) -> list[Heat]:
    """Return the figure's maps as speed-ups: the first algorithm's time over the second one's."""
    maps = heat_maps(_LOOKAHEADS[item])
    pictures = (
        Heat("(a) speed-up of SI over non-SI", 1 / maps.si_over_plain),
        Heat("(b) of DSI over SI", maps.dsi_over_si),
        Heat("(c) of DSI over non-SI", maps.dsi_over_plain),
        Heat("(d) of DSI over the better of both", maps.dsi_over_best),
    )
    return [*pictures[: 3 if _LOOKAHEADS[item] else 4]]


PAPER.maps.update({item: partial(_pictures, item) for item in _LOOKAHEADS})


@PAPER.item("SP against MP")
def _sp_against_mp() -> Iterator[Row]:
    claims = _DATA["claims"]
    share = 1 - claims["mp_rate"] ** claims["mp_lookahead"]
    servers = int(np.ceil(1 / (claims["mp_lookahead"] * claims["mp_drafter"]))) + 1
    amdahl = round(1 / (1 - claims["amdahl_rate"]), 9)
    yield PAPER.row("share of target forwards that count", claims["mp_share"], round(share, 2), "share of MP")
    yield PAPER.row("speed-up that MP needs", claims["mp_speedup"], round(1 / share, 2), "speed-up of MP")
    yield PAPER.row("GPUs at lookahead 2, drafter 10 %", claims["mp_gpus"], servers, "GPUs")
    yield PAPER.row("Amdahl's speed-up at 80 %", claims["amdahl"], amdahl, "Amdahl")
    for drafter, lookahead, published in claims["perfect"]:
        block = lookahead * drafter
        name = f"perfect drafter at {drafter:.0%}, lookahead {lookahead}: over SI"
        yield PAPER.row(name, published, (block + 1) / block, "perfect drafter")


@PAPER.item("Thread pool")
def _thread_pool() -> Iterator[Row]:
    generator = np.random.default_rng(1)
    for name in _MEASURED:
        target, drafter, _, percent, _ = _DATA["Table 2"][name]
        lookahead = next(
            k for k in _DATA["protocol"]["lookaheads"] if feasible(np.array(drafter / target), np.array(k))
        )
        right = generator.random(_DATA["protocol"]["tokens"]) < percent / 100
        ideal = run_time(right, drafter / target, lookahead) * target / 1e3
        costs = (target / 1e3, drafter / 1e3, lookahead, _DATA["protocol"]["servers"])
        took = measured_time([bool(r) for r in right], *costs)
        row = f"{name}, overhead of threads"
        yield PAPER.row(row, None, took / ideal - 1, "threads", lookahead=lookahead)


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
