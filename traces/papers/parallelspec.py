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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specscope.engine.heads.work import Work
from specscope.engine.simulate.profile import Profile
from specscope.traces.facts.closed_forms import rate_of_tokens, speculative_tokens
from specscope.traces.papers.rows import Paper, TableCell, numbers

_DATA = numbers("parallelspec")
_TABLE, _CLAIMS = _DATA["Table 1"], _DATA["claims"]
_TAU, _AVERAGE = -1, -2
_BASE, _COLD = "V 7B ", ", temperature 0.0"
LEVELS = 5
"""Levels of a draft: the parallel group of section 5.1."""
CONTEXT = 500
"""Cached rows of a forward; a prompt of Spec-Bench with half of its answer."""
_ROUNDS = 20_000
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


def _speed_up(cell: TableCell) -> float:
    name = cell.row.partition(",")[0].replace("w/ ", "").removesuffix(" +self-distillation")
    return cell.table[cell.row][_TAU] / round_cost(name.split("B ", 1)[1], large="13B" in name)


def _improvement() -> float:
    own, base = (_TABLE[f"{_BASE}{name}{_COLD}"][_AVERAGE] for name in ("Medusa +ParallelSpec", "Medusa"))
    return round(100 * (own / base - 1), 1)


def _tau_by_masks(masks: int) -> float:
    """Return tau with acceptance that falls with the distance."""
    tau = _TABLE[f"{_BASE}EAGLE +ParallelSpec{_COLD}"][_TAU]
    return speculative_tokens(rate_of_tokens(tau, _CLAIMS["group"]), masks + 1)


def _time_by_lengths(cell: TableCell) -> float:
    base, own = cell.table["accepted"]
    return base / own * round_cost("Medusa +ParallelSpec") / round_cost("Medusa")


def accepted_length(rates: Sequence[float]) -> float:
    """Return the mean tokens of drawn rounds, the target's own included; rates by level."""
    right = np.random.default_rng(0).random((_ROUNDS, len(rates))) < np.asarray(rates)
    return 1 + float(np.logical_and.accumulate(right, 1).sum(1).mean())


def stub_round_cost(method: str, *, parallel: bool) -> float:
    latency, shapes = Profile.load("A100-40G").latency(), _HEADS[method]
    work, width, forwards = shapes[1] if parallel else shapes[0]
    drafting = forwards * latency.head(work, width, CONTEXT)
    verification = latency("target", shapes[2], CONTEXT) + latency.sample_us
    return (drafting + verification) / latency("target", 1, CONTEXT)


def _stub(cell: TableCell, kind: int, *, parallel: bool) -> Mapping[str, Any]:
    """Return tau or the speed-up of a row of Table 1, drawn and printed; a cell is a method's."""
    method = f"{cell.part} +ParallelSpec" if parallel else cell.part
    name = f"{cell.column} {method}, temperature {cell.row}"
    ours = accepted_length([rate_of_tokens(_TABLE[name][_TAU], LEVELS)] * LEVELS)
    if kind == _AVERAGE:
        ours /= stub_round_cost(cell.part, parallel=parallel)
    return {"full": name, "published": _TABLE[name][kind], "ours": ours, "rounds": _ROUNDS}


def _gain(cell: TableCell) -> Mapping[str, Any]:
    base, own = (_stub(cell, _AVERAGE, parallel=parallel) for parallel in (False, True))
    return {"full": base["full"]} | {key: own[key] / base[key] for key in ("published", "ours")}


PAPER = Paper(
    "parallelspec",
    {
        "speed-up": _speed_up,
        "improvement": lambda _: _improvement(),
        "group": lambda c: c.table["masks"] + 1,
        "overhead": lambda c: round_cost(c.row) - 1,
        "tau by masks": lambda c: _tau_by_masks(int(c.row)),
        "time by lengths": _time_by_lengths,
        "drawn tau": lambda c: _stub(c, _TAU, parallel="parallel" in c.line),
        "drawn speed-up": lambda c: _stub(c, _AVERAGE, parallel="parallel" in c.line),
        "gain": _gain,
    },
)
