"""DSI: Tables 1 and 2, the bounds, heat maps over 2,020,000 configurations, SP against MP."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from math import floor
from typing import NamedTuple

import numpy as np

from traces.papers.rows import Heat, Paper, Row, numbers, published_only, rows
from traces.papers.schedule import (
    DRAFTER,
    LOOKAHEAD,
    RATE,
    dsi_time,
    feasible,
    measured_time,
    run_time,
    si_run_time,
    si_time,
)

_DATA = numbers("dsi")
_MEASURED = ("Vicuna-7B CNN-DM", "Starcoder-15B MBPP")
"""Rows of Table 2 whose times real threads wait."""
_DRAWN = 100
"""Texts of 50 tokens drawn for a row of Table 2."""


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
    entries = (
        (f"{name}, {column}", number, way(time))
        for name, way in ways.items()
        for column, time, number in zip(table["columns"], times, table[name], strict=True)
    )
    return rows(entries, "exact", "Lookahead 1, drafter 1/7 of the target.")


class Times(NamedTuple):
    """Milliseconds of a run under the protocol of section 4."""

    dsi: float
    si: dict[int, float]
    """By lookahead."""


def table_2_times(name: str) -> Times:
    """Return mean times of drawn texts for a row of Table 2, prefill included."""
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
    return Times(prefill + own * target, {k: serial + time * target for k, time in other.items()})


def _table_2() -> Iterator[Row]:
    table, speeds = _DATA["Table 2"], list[float]()
    text = "Best feasible DSI over the mean of SI at lookahead 1, 5 and 10; 100 drawn texts of 50 tokens; Table 3's first tokens."
    reason = "the print is above the ratio over SI at each of the three lookaheads, so no choice among them explains it."
    for name, values in table.items():
        if name == "columns":
            continue
        times = table_2_times(name)
        ours = float(np.mean(list(times.si.values()))) / times.dsi
        speeds.append(values[4])
        yield Row(f"{name}, speedup", values[4], ours, "simulated", text, reason)
        for lookahead, time in times.si.items():
            also = f"The same over SI at lookahead {lookahead}, one of three readings; nothing is printed for it."
            yield Row(f"{name}, over SI at lookahead {lookahead}", None, time / times.dsi, "simulated", also)
        share = 100 * values[1] / values[0]
        text_2 = "The ratio of the two printed latencies, which are rounded to 0.1 ms."
        yield Row(f"{name}, drafter latency (%)", values[2], share, "arithmetic", text_2)
    extremes = {"least_speedup": min(speeds), "most_speedup": max(speeds)}
    entries = ((f"{name} of the abstract", _DATA["claims"][name], ours) for name, ours in extremes.items())
    yield from rows(entries, "arithmetic", "Extreme of the printed column.")


def _texts() -> Iterator[tuple[float, float, np.ndarray]]:
    """Yield drafter latencies and drawn texts of 50 tokens at rates over the whole grid."""
    generator = np.random.default_rng(0)
    for drafter in (0.05, 0.1, 0.25, 0.5, 0.75, 1.0):
        for rate in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
            yield drafter, rate, generator.random((20, 50)) < rate


def _proposition_1() -> Iterator[Row]:
    """Times of drawn texts against t1 p (N - 1) + t2 ((1 - p)(N - 1) + 1)."""
    above = 0
    for drafter, _, texts in _texts():
        for text in texts:
            share, more = float(text[:-1].mean()), len(text) - 1
            bound = drafter * share * more + (1 - share) * more + 1
            above += run_time(np.append(text[:-1], [True]), drafter, 1) > bound + 1e-9
    text = "720 drawn texts of 50 tokens, lookahead 1; p is each text's own share of right drafts."
    yield Row("drawn texts that take longer than the bound", 0, above, "exact", text)


def _theorems() -> Iterator[Row]:
    slower = sum(
        run_time(text, drafter, lookahead) > len(text) + 1e-9
        for drafter, _, texts in _texts()
        for text in texts
        for lookahead in (1, 2, 5, 20)
    )
    text = "Every text of Proposition 1 at lookahead 1, 2, 5 and 20: DSI at most a target forward per token."
    yield Row("Theorem 1: drawn texts on which DSI is slower than non-SI", 0, slower, "exact", text)
    worse = int((_maps().dsi > _maps().si + 1e-9)[_maps().feasible].sum())
    text = "Expected times, each lookahead for itself, over all feasible configurations."
    yield Row("Theorem 2: configurations in which DSI is slower than SI", 0, worse, "exact", text)


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
    """Ratios of times over (drafter latency, rate).

    Latencies for which seven servers do not suffice are left out.
    """

    si_over_plain: np.ndarray
    dsi_over_si: np.ndarray
    dsi_over_plain: np.ndarray
    dsi_over_best: np.ndarray
    """Speed-up of DSI over the faster of SI and non-SI."""


def heat_maps(lookahead: int = 0) -> Ratios:
    """Return Figure 2's four maps, or Figure 7's at one lookahead; plain decoding takes 1."""
    maps = _maps()
    if lookahead:
        fits = maps.feasible[:, 0, lookahead - 1]
        si, dsi = maps.si[fits, :, lookahead - 1], maps.dsi[fits, :, lookahead - 1]
    else:
        si = np.where(maps.feasible, maps.si, np.inf).min(2)
        dsi = np.where(maps.feasible, maps.dsi, np.inf).min(2)
    return Ratios(si, si / dsi, 1 / dsi, np.minimum(si, 1) / dsi)


def _figure(lookahead: int, name: str) -> Iterator[Row]:
    maps = heat_maps(lookahead)
    grid = f"{name}, exact expectations over 100 x 101 x 200 configurations; SP <= 7."
    for label, ratio in (("SI", maps.dsi_over_si), ("non-SI", maps.dsi_over_plain)):
        slower = int((ratio < 1 - 1e-9).sum())
        yield Row(f"cells in which DSI is slower than {label}", 0, slower, "exact", grid)
    slow = maps.si_over_plain > 1 + 1e-9
    if not lookahead:
        below = RATE[None, :] < DRAFTER[:, None] - 1e-9
        text = f"{grid} SI has a speed-up only where the rate is at least the drafter latency."
        wrong = int((below & ~slow).sum())
        yield Row("(a) cells below rate = latency in which SI is not slower", 0, wrong, "exact", text)
        best = float(maps.dsi_over_best.max())
        why = "the paper averages five drawn runs of SI in each cell, and the largest of 10,100 noisy ratios is higher."
        published = _DATA["claims"]["best_over_both"]
        yield Row("(d) largest speed-up over the better of both", published, best, "closed form", grid, why)
    else:
        share, text = float(slow.mean()), f"{grid} The figure prints no numbers"
        about = f"{text}: the share of its pink region."
        yield Row("(a) share of cells in which SI is slower than non-SI", None, share, "closed form", about)
        largest = (
            ("(b) largest speed-up over SI", None, float(maps.dsi_over_si.max())),
            ("(c) largest speed-up over non-SI", None, float(maps.dsi_over_plain.max())),
        )
        yield from rows(largest, "closed form", f"{text}.")


def _pictures(lookahead: int) -> list[Heat]:
    """Return the figure's maps as speed-ups: the first algorithm's time over the second one's."""
    maps = heat_maps(lookahead)
    titles = (
        "speed-up of SI over non-SI",
        "of DSI over SI",
        "of DSI over non-SI",
        "of DSI over the better of both",
    )
    values = (1 / maps.si_over_plain, maps.dsi_over_si, maps.dsi_over_plain, maps.dsi_over_best)
    count = 3 if lookahead else 4
    return [Heat(f"({'abcd'[i]}) {titles[i]}", values[i]) for i in range(count)]


def _sp_against_mp() -> Iterator[Row]:
    claims = _DATA["claims"]
    share = 1 - claims["mp_rate"] ** claims["mp_lookahead"]
    servers = int(np.ceil(1 / (claims["mp_lookahead"] * claims["mp_drafter"]))) + 1
    amdahl = round(1 / (1 - claims["amdahl_rate"]), 9)
    for name, claim, ours, text in (
        ("share of target forwards that count", "mp_share", round(share, 2), "1 - a^k."),
        ("speed-up that MP needs", "mp_speedup", round(1 / share, 2), "1 / (1 - a^k)."),
        ("GPUs at lookahead 2, drafter 10 %", "mp_gpus", servers, "ceil(T / (k d)) + 1."),
        ("Amdahl's speed-up at 80 %", "amdahl", amdahl, "1 / (1 - a)."),
    ):
        yield Row(name, claims[claim], ours, "arithmetic", text)
    for drafter, lookahead, published in claims["perfect"]:
        block = lookahead * drafter
        name = f"perfect drafter at {drafter:.0%}, lookahead {lookahead}: over SI"
        text = "(k d + 1) / (k d): every verification is hidden."
        reason = "the paper's other end counts the bonus token, (k d + 1) / ((k + 1) d) = 4.2; see its contradictions."
        yield Row(name, published, (block + 1) / block, "closed form", text, reason)


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
        text = f"Real threads wait the times of Table 2, lookahead {lookahead}; wall time over the schedule's, less 1."
        yield Row(f"{name}, overhead of threads", None, took / ideal - 1, "measured", text)


PAPER = Paper(
    "dsi",
    {
        "Table 1": _table_1,
        "Table 2": _table_2,
        "Table 3": lambda: published_only(
            _DATA["Table 3"], "An input of Table 2; measuring it needs the named models."
        ),
        "Proposition 1": _proposition_1,
        "Theorems 1 and 2": _theorems,
        "Figure 2": lambda: _figure(0, "Best feasible lookahead of each"),
        "Figure 7": lambda: _figure(
            5, "Lookahead 5 for SI as in the caption, and for DSI, which has none there"
        ),
        "SP against MP": _sp_against_mp,
        "Thread pool": _thread_pool,
    },
    maps={"Figure 2": lambda: _pictures(0), "Figure 7": lambda: _pictures(5)},
)
