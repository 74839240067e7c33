"""SSD and SpecBranch: SSD's speeds from those of speculative decoding, and its cliff over gamma.

A round of SSD lasts as long as the verification, or the glue and gamma steps of the branches; a
miss is followed by gamma steps more. Where the branches no longer fit beside a verification, each
further step makes every round longer: that is the cliff.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from statistics import fmean
from typing import Any

from specscope.engine.drafting.pace import MISSES
from specscope.traces.facts.closed_forms import bisect, rate_of_tokens, speculative_tokens, ssd_hit_rate
from specscope.traces.papers import pearl_speeds
from specscope.traces.papers.rows import Paper, TableCell, numbers, row_of

_DATA = numbers("parallel")
_TIMES, _SETTINGS = _DATA["times"], _DATA["settings"]
_FITTED = "4"
"""The reproduction's gamma whose speed gives the acceptance rate."""


def ssd_speed(rate: float, gamma: int, verification: float) -> float:
    """Return tokens per second; the verification's time is in milliseconds."""
    busy = _TIMES["glue"] + gamma * _TIMES["step"]
    missed = (1 - ssd_hit_rate(rate, gamma, _SETTINGS["forks"], MISSES)) * gamma * _TIMES["step"]
    return 1e3 * speculative_tokens(rate, gamma) / (max(verification, busy) + _TIMES["service"] + missed)


def rate_of_sd(speed: float, verification: float) -> float:
    """Return the rate at which speculative decoding has a speed; the time is in milliseconds."""
    gamma = _SETTINGS["SD"]
    ms = verification + gamma * _TIMES["step"] + _TIMES["service"]
    return rate_of_tokens(speed * ms / 1e3, gamma)


@cache
def rate_of_reproduction() -> float:
    return bisect(
        lambda rate: ssd_speed(rate, int(_FITTED), _TIMES["verification"]), _reproduced()[_FITTED], 0, 1
    )


def _reproduced() -> dict[str, float]:
    return row_of(_DATA["SSD, reproduction"], "tokens/s")


def authors_verification() -> float:
    return 1e3 / _DATA["SSD, speeds"]["plain"] * _TIMES["verification"] / _TIMES["plain"]


def _ssd(cell: TableCell, gamma: int, verification: float) -> Mapping[str, Any]:
    rate = rate_of_sd(cell.column_of("SD"), verification)
    return {
        "ours": ssd_speed(rate, gamma, verification),
        "rate": rate,
        "tokens": speculative_tokens(rate, _SETTINGS["SD"]),
    }


def _recorded(cell: TableCell) -> Mapping[str, Any]:
    """Return the speed over that of gamma 4: both runs draw the same acceptance."""
    recorded, printed = _DATA["SSD, virtual cluster"], _reproduced()
    speeds, fitted = (recorded["speeds"][gamma] for gamma in (cell.row, _FITTED))
    single = [speed / base for speed, base in zip(speeds, fitted, strict=True)]
    return {
        "published": printed[cell.row] / printed[_FITTED] if cell.row in printed else None,
        "ours": fmean(speeds) / fmean(fitted),
        "seeds": len(speeds),
        "tokens": recorded["tokens"],
        "low": min(single),
        "high": max(single),
    }


PAPER = Paper(
    "parallel",
    {
        "SSD": lambda c: _ssd(c, _SETTINGS["SSD"], authors_verification()),
        "SSD, reproduced": lambda c: _ssd(c, int(_FITTED), _TIMES["verification"]),
        "SSD, rate of gamma 4": lambda c: ssd_speed(
            rate_of_reproduction(), int(c.column), _TIMES["verification"]
        ),
        "recorded runs": _recorded,
        "PEARL": lambda _: pearl_speeds.pearl(pearl_speeds.pair_of("deepseek-1.3-33")),
    },
)
