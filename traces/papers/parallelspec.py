"""ParallelSpec: speed-ups from accepted lengths and one round cost per method.

A speed-up is tau / r: tau tokens a round over r target forwards a round. r is fitted once per
method, to Vicuna 7B at temperature 0. A drafter's part of it, r - 1, is time that does not grow
with the target; in forwards of a 13B target it is smaller by T(7B) / T(13B) = 0.78, which DSI's
Table 2 prints for the same Vicuna models on an A100.

With a stub head: it is right at a level with that level's rate, if it was right at all levels
before. Drawn rounds give the accepted length. A round's time is that of the published shapes in the
profile A100-40G: five forwards of EAGLE's layer, one of Medusa's heads, or one of a layer over five
rows (ParallelSpec), then a verification. The rates are fitted to printed lengths; no speed-up is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specscope.engine.heads.work import Work
from specscope.engine.simulate.profile import Profile
from specscope.traces.closed_forms import speculative_tokens
from specscope.traces.papers.rows import Paper, Row, bisect, cells, numbers, per_cell

PAPER = Paper("parallelspec")
_DATA = PAPER.numbers
_TABLE = _DATA["Table 1"]
_TAU, _AVERAGE = -1, -2
_BASE, _COLD = "V 7B ", ", temperature 0.0"
LEVELS = 5
"""Levels of a draft: the parallel group of section 5.1."""
_ROUNDS, _CONTEXT = 20_000, 500
_PAIRS = {
    "V 7B EAGLE, temperature 0.0": "EAGLE",
    "L2 7B EAGLE, temperature 0.0": "EAGLE",
    "V 7B EAGLE, temperature 1.0": "EAGLE",
    "L2 7B EAGLE, temperature 1.0": "EAGLE",
    "V 7B Medusa, temperature 0.0": "Medusa",
}
"""Rows of Table 1 with a row of ParallelSpec below them, on 7B targets."""
_HEADS = {
    "EAGLE": ((Work(1, 2), 1, LEVELS), (Work(1, 2), LEVELS, 1), 26),
    "Medusa": ((Work(0, LEVELS, LEVELS), 1, 1), (Work(1, 0), LEVELS, 1), 64),
}
"""Work, rows and number of the head's forwards, without and with ParallelSpec; rows verified."""


def round_cost(method: str, *, large: bool = False) -> float:
    """Return the target forwards that a round takes, from Vicuna 7B at temperature 0.

    The method is named as in Table 1 (`EAGLE +ParallelSpec`); a `large` target has 13B weights.
    """
    row = _TABLE[f"{_BASE}{method}{_COLD}"]
    cost = row[_TAU] / row[_AVERAGE]
    return 1 + (cost - 1) * _scale() if large else cost


def _scale() -> float:
    """Return T(7B) / T(13B), the mean over DSI's two data sets."""
    table = numbers("dsi")["Table 2"]
    ratios = [table[f"Vicuna-7B {data}"][0] / table[f"Vicuna-13B {data}"][0] for data in ("CNN-DM", "Alpaca")]
    return sum(ratios) / len(ratios)


def _speeds(item: str) -> Iterator[Row]:
    table = _DATA[item]
    for name, column, number in cells(table):
        row = f"{name}, {column}"
        if item != "Table 1" and table[name] in _TABLE.values():
            yield PAPER.row(row, number, None, "repeats Table 1")
        elif column == "tau (tokens)":
            yield PAPER.row(row, number, None, "named models")
        elif column != "Avg.":
            yield PAPER.row(row, number, None, "average only")
        else:
            method = _method(name)
            ours = table[name][_TAU] / round_cost(method, large="13B" in name)
            why = "Vicuna's cost" if "LLaMA 3" in name else "Medusa on 13B"
            is_fit = name == f"{_BASE}{method}{_COLD}"
            yield PAPER.row(row, number, ours, "cost of a round", why, fitted=is_fit)


def _method(name: str) -> str:
    rest = name.partition(",")[0].replace("w/ ", "").removesuffix(" +self-distillation")
    return rest.split("B ", 1)[1]


@PAPER.item("Table 1")
def _table_1() -> Iterator[Row]:
    yield from _speeds("Table 1")
    claims = _DATA["claims"]
    own, base = (_TABLE[f"{_BASE}{name}{_COLD}"][_AVERAGE] for name in ("Medusa +ParallelSpec", "Medusa"))
    percent = round(100 * (own / base - 1), 1)
    yield PAPER.row("improvement of Vicuna 7B Medusa, %", claims["improvement"], percent, "Medusa's averages")
    yield PAPER.row("size of the parallel group", claims["group"], claims["masks"] + 1, "masks")


@PAPER.item("Table 2")
def _table_2() -> Iterator[Row]:
    return _speeds("Table 2")


@PAPER.item("Table 3")
def _table_3() -> Iterator[Row]:
    return PAPER.rows_of(per_cell(_DATA["Table 3"]), "training")


@PAPER.item("Figure 1")
def _figure_1() -> Iterator[Row]:
    for base in ("Medusa", "EAGLE"):
        for method in (base, f"{base} +ParallelSpec"):
            yield PAPER.row(f"{method}, drafting and overhead", None, round_cost(method) - 1, "overhead")


@PAPER.item("Figure 4")
def _figure_4() -> Iterator[Row]:
    """Speed-up over the number of masks, with acceptance that falls with the distance."""
    tau = _TABLE[f"{_BASE}EAGLE +ParallelSpec{_COLD}"][_TAU]
    rate = bisect(lambda a: speculative_tokens(a, _DATA["claims"]["group"]), tau, 0, 1)
    for masks in range(1, 9):
        yield PAPER.row(f"tau with {masks} masks", None, speculative_tokens(rate, masks + 1), "one rate")


@PAPER.item("Figure 5")
def _figure_5() -> Iterator[Row]:
    base, own = _DATA["Figure 5"]["accepted"]
    ours = base / own * round_cost("Medusa +ParallelSpec") / round_cost("Medusa")
    name = "time of the text, with over without ParallelSpec"
    yield PAPER.row(name, _DATA["Figure 5"]["time"], ours, "accepted lengths")


@PAPER.item("Stub head")
def _stub_head() -> Iterator[Row]:
    for name, method in _PAIRS.items():
        speeds, printed = list[float](), list[float]()
        for parallel in (False, True):
            row = name.replace(method, f"{method} +ParallelSpec") if parallel else name
            tau, speed = _TABLE[row][_TAU], _TABLE[row][_AVERAGE]
            drawn = accepted_length([rate_for(tau)] * LEVELS)
            speeds.append(drawn / stub_round_cost(method, parallel=parallel))
            printed.append(speed)
            yield PAPER.row(f"{row}, tau", tau, drawn, "drawn lengths", rounds=_ROUNDS)
            yield PAPER.row(f"{row}, speed-up", speed, speeds[-1], "drawn speed-up", "programs")
        gain, ours = printed[1] / printed[0], speeds[1] / speeds[0]
        yield PAPER.row(f"{name}, gain by ParallelSpec", gain, ours, "gain", "programs")


def rate_for(tau: float) -> float:
    return bisect(lambda rate: speculative_tokens(rate, LEVELS), tau, 0, 1)


def accepted_length(rates: Sequence[float]) -> float:
    """Return the mean tokens of drawn rounds, the target's own included; rates by level."""
    right = np.random.default_rng(0).random((_ROUNDS, len(rates))) < np.asarray(rates)
    return 1 + float(np.logical_and.accumulate(right, 1).sum(1).mean())


def stub_round_cost(method: str, *, parallel: bool) -> float:
    latency, shapes = Profile.load("A100-40G").latency(), _HEADS[method]
    work, width, forwards = shapes[1] if parallel else shapes[0]
    drafting = forwards * latency.head(work, width, _CONTEXT)
    verification = latency("target", shapes[2], _CONTEXT) + latency.sample_us
    return (drafting + verification) / latency("target", 1, _CONTEXT)
