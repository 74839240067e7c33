"""ParallelSpec with a stub head: accepted lengths and speed-ups on the latencies of an A100 40 GB.

A stub head is right at a level with that level's rate, if it was right at all levels before. Drawn
rounds give the accepted length. A round's time is that of the published shapes in the profile
A100-40G: five forwards of EAGLE's layer, one of Medusa's heads, or one of a layer over five rows
(ParallelSpec), then a verification. The rates are fitted to the printed lengths; no speed-up is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.heads.work import Work
from engine.simulate.profile import Profile
from traces.closed_forms import speculative_tokens
from traces.papers.rows import Row, bisect, numbers

_TABLE = numbers("parallelspec")["Table 1"]
_TAU, _AVERAGE = -1, -2
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
_WORK = (
    "the profile has forwards and judging only; the measured program also builds trees and masks in Python in each "
    "round, which the ratio of the two rows does not contain."
)


def rows() -> Iterator[Row]:
    """Yield lengths and speed-ups without and with ParallelSpec, and the gain between them."""
    fit = f"Drawn lengths of {_ROUNDS} rounds; one rate for all five levels, fitted to tau."
    text = "The drawn length over the time of a round on the profile A100-40G."
    for name, method in _PAIRS.items():
        speeds, printed = list[float](), list[float]()
        for parallel in (False, True):
            row = name.replace(method, f"{method} +ParallelSpec") if parallel else name
            tau, speed = _TABLE[row][_TAU], _TABLE[row][_AVERAGE]
            drawn = accepted_length([rate_for(tau)] * LEVELS)
            speeds.append(drawn / round_cost(method, parallel=parallel))
            printed.append(speed)
            yield Row(f"{row}, tau", tau, drawn, "simulated", fit, fitted=True)
            yield Row(f"{row}, speed-up", speed, speeds[-1], "simulated", text, _WORK)
        about = "The ratio of the two rows above: work that both ways have cancels out."
        gain, ours = printed[1] / printed[0], speeds[1] / speeds[0]
        yield Row(f"{name}, gain by ParallelSpec", gain, ours, "simulated", about, _WORK)


def rate_for(tau: float) -> float:
    """Return the rate of all levels at which a round has so many tokens on average."""
    return bisect(lambda rate: speculative_tokens(rate, LEVELS), tau, 0, 1)


def accepted_length(rates: Sequence[float]) -> float:
    """Return the mean tokens of drawn rounds, the target's own included; rates by level."""
    right = np.random.default_rng(0).random((_ROUNDS, len(rates))) < np.asarray(rates)
    return 1 + float(np.logical_and.accumulate(right, 1).sum(1).mean())


def round_cost(method: str, *, parallel: bool) -> float:
    """Return a round's time in plain steps on the profile A100-40G."""
    latency, shapes = Profile.load("A100-40G").latency(), _HEADS[method]
    work, width, forwards = shapes[1] if parallel else shapes[0]
    drafting = forwards * latency.head(work, width, _CONTEXT)
    verification = latency("target", shapes[2], _CONTEXT) + latency.sample_us
    return (drafting + verification) / latency("target", 1, _CONTEXT)
