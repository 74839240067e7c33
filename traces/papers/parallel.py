"""SSD and SpecBranch: SSD's speeds from those of speculative decoding, and its cliff over gamma.

A round of SSD lasts as long as the verification, or the glue and gamma steps of the branches; a
miss is followed by gamma steps more. Where the branches no longer fit beside a verification, each
further step makes every round longer: that is the cliff.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import fmean
from typing import Any

from specscope.engine.drafting.pace import MISSES
from specscope.traces.closed_forms import speculative_tokens, ssd_hit_rate
from specscope.traces.papers import pearl_speeds
from specscope.traces.papers.rows import Paper, Row, bisect, cells

PAPER = Paper("parallel")
_DATA = PAPER.numbers
_SPEEDS, _AGAIN, _VIRTUAL = (_DATA[f"SSD, {name}"] for name in ("speeds", "reproduction", "virtual cluster"))
_TIMES = _AGAIN["times"]
_FORKS = _SPEEDS["forks"]
_FITTED = 4
"""The reproduction's gamma whose speed gives the acceptance rate."""


def ssd_speed(rate: float, gamma: int, verification: float) -> float:
    """Return tokens per second; the verification's time is in milliseconds."""
    busy = _TIMES["glue"] + gamma * _TIMES["step"]
    missed = (1 - ssd_hit_rate(rate, gamma, _FORKS, MISSES)) * gamma * _TIMES["step"]
    return 1e3 * speculative_tokens(rate, gamma) / (max(verification, busy) + _TIMES["service"] + missed)


def rate_of_sd(speed: float) -> float:
    """Return the acceptance rate at which speculative decoding has a speed on the authors' GPUs."""
    gamma = _SPEEDS["gammas"]["SD"]
    ms = _authors_verification() + gamma * _TIMES["step"] + _TIMES["service"]
    return bisect(lambda rate: 1e3 * speculative_tokens(rate, gamma) / ms, speed, 0, 1)


@cache
def rate_of_reproduction() -> float:
    speed = _AGAIN["tokens/s"][_AGAIN["columns"].index(str(_FITTED))]
    return bisect(lambda rate: ssd_speed(rate, _FITTED, _TIMES["verification"]), speed, 0, 1)


def _authors_verification() -> float:
    return 1e3 / _SPEEDS["plain"] * _TIMES["verification"] / _TIMES["plain"]


@PAPER.item("SSD, speeds")
def _speeds() -> Iterator[Row]:
    yield PAPER.row("plain decoding, tokens/s", _SPEEDS["plain"], None, "input")
    for name, data, speed in cells(_SPEEDS, "SD"):
        yield PAPER.row(f"{name}, {data}, tokens/s", speed, None, "input")
    for (name, data, speed), given in zip(cells(_SPEEDS, "SSD"), _SPEEDS["SD"], strict=True):
        rate = rate_of_sd(given)
        ours = ssd_speed(rate, _SPEEDS["gammas"][name], _authors_verification())
        words: dict[str, Any] = {"rate": rate, "other": rate_of_reproduction()}
        words["tokens"] = speculative_tokens(rate, _SPEEDS["gammas"]["SD"])
        yield PAPER.row(f"{name}, {data}, tokens/s", speed, ours, "rate of SD", **words)


@PAPER.item("SSD, reproduction")
def _reproduction() -> Iterator[Row]:
    for name, ms in _TIMES.items():
        yield PAPER.row(f"{name}, ms", ms, None, "input")
    for _, gamma, speed in cells(_AGAIN):
        ours = ssd_speed(rate_of_reproduction(), int(gamma), _TIMES["verification"])
        how = "fitted at 4" if int(gamma) == _FITTED else "rate of 4"
        yield PAPER.row(f"gamma {gamma}, tokens/s", speed, ours, how)


@PAPER.item("SSD, virtual cluster")
def _virtual() -> Iterator[Row]:
    """Yield speeds over that of gamma 4: both runs draw the same acceptance."""
    printed = {gamma: speed for _, gamma, speed in cells(_AGAIN)}
    fitted = _VIRTUAL["speeds"][str(_FITTED)]
    for gamma, speeds in _VIRTUAL["speeds"].items():
        if speeds is not fitted:
            published = printed[gamma] / printed[str(_FITTED)] if gamma in printed else None
            single = [speed / base for speed, base in zip(speeds, fitted, strict=True)]
            words = {
                "seeds": len(speeds),
                "tokens": _VIRTUAL["tokens"],
                "low": min(single),
                "high": max(single),
            }
            ours = fmean(speeds) / fmean(fitted)
            yield PAPER.row(f"gamma {gamma}, speed over gamma {_FITTED}", published, ours, "run", **words)


@PAPER.item("SpecBranch, speed-ups")
def _specbranch() -> Iterator[Row]:
    known = pearl_speeds.pearl(pearl_speeds.pair_of("deepseek-1.3-33"))
    for name, data, number in cells(_DATA["SpecBranch, speed-ups"]):
        if name.startswith("DeepSeek") and name.endswith("PEARL") and data == "HumanEval":
            yield PAPER.row(f"{name}, {data}", number, known, "PEARL, Table 7")
        else:
            yield PAPER.row(f"{name}, {data}", number, None, "no acceptance")


@PAPER.item("SpecBranch, rollback")
def _rollback() -> Iterator[Row]:
    for _, method, number in cells(_DATA["SpecBranch, rollback"]):
        yield PAPER.row(f"rollback rate of {method}, HumanEval", number, None, "rollback")
