"""Compares what-if predictions with virtual runs of the predicted settings, by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import specscope
from specscope.app.bench.figures import Note
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.metrics import measure as metrics
from specscope.traces.whatif.replay import Change, WhatIf, what_if

PROFILE, OTHER = ("pearl-4xA100", ""), ("pearl-3xA100", "codellama-7-34")
PROMPTS = ("Tell me a story.", "How do I cook rice?", "Explain gravity.", "Describe a city.")
TOKENS, EXACT = 64, 2
"""Tokens of each run, and texts of each pair of settings where nothing is drawn."""

Side = tuple[str, Mapping[str, Any]]
"""A method and its settings."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Recorded runs, and the other runs that a what-if predicts from them."""

    name: str
    temperature: float
    sides: tuple[tuple[Side, Side], ...]
    """(recorded, predicted)."""
    elsewhere: bool = False
    """Whether the predicted run is on the profile `OTHER`."""
    exact: bool = False
    """Whether nothing is drawn: few seeds show it."""


_S5, _S2, _P5 = ("speculative", {"gamma": 5}), ("speculative", {"gamma": 2}), ("pearl", {"gamma": 5})
_DSI, _S1 = ("dsi", {"lookahead": 8}), ("speculative", {"gamma": 1})
_PEARL, _DSI0 = ("pearl", {}), ("dsi", {})
CLASSES = (
    Pairs("same settings, T 0", 0.0, ((_S5, _S5), (_P5, _P5), (_DSI, _DSI)), exact=True),
    Pairs("same settings, T 1", 1.0, ((_S5, _S5), (_P5, _P5), (_DSI, _DSI)), exact=True),
    Pairs("T 0, nothing drawn", 0.0, ((_P5, _S5), (_P5, _DSI), (_S5, _S2)), exact=True),
    Pairs("T 0, some drawn", 0.0, ((_S5, _P5), (_S1, _P5), (_S5, ("speculative", {"gamma": 8})))),
    Pairs("T 1, same rule, other profile", 1.0, ((_S5, _S5), (_P5, _P5), (_DSI, _DSI)), True, True),
    Pairs("T 1, other draft length or method", 1.0, ((_S5, _S2), (_S5, _P5), (_P5, _S5))),
    Pairs("T 1, other rule: ratio to match", 1.0, ((_S5, _DSI),)),
    Pairs("T 1, other rule: match to ratio", 1.0, ((_DSI, _S5),)),
    Pairs("planned settings, other profile", 0.0, ((_PEARL, _PEARL), (_DSI0, _DSI0)), True, True),
    Pairs("T 0, assisted constant", 0.0, ((_S5, ("assisted", {"schedule": "constant"})),)),
)


@dataclass(frozen=True, slots=True)
class Error:
    """Errors of one class: predicted seconds per token over really run ones, less 1."""

    name: str
    values: tuple[float, ...]
    decided: int
    drawn: int

    def to_dict(self) -> dict[str, Any]:
        rounded = {
            "mean": fmean(self.values),
            "median": median(self.values),
            "mean_absolute": fmean(map(abs, self.values)),
            "least": min(self.values),
            "most": max(self.values),
        }
        counts = {"n": len(self.values), "decided": self.decided, "drawn": self.drawn}
        return {"class": self.name, **counts, **{key: round(value, 4) for key, value in rounded.items()}}


def measure(
    texts: int, note: Note, classes: tuple[Pairs, ...] = CLASSES, tokens: int = TOKENS
) -> list[Error]:
    """Return the errors of all classes on the bundled pair, whose texts do not end early.

    The texts of a class are shared out among its pairs of settings; each has a seed and one of the
    prompts.
    """
    pair, errors = replace(Pair.find(), eos=()), list[Error]()
    with _open(pair, *PROFILE) as here, _open(pair, *OTHER) as there:
        for c in classes:
            note(c.name)
            runs = min(texts, EXACT) if c.exact else -(-texts // len(c.sides))
            values, decided, drawn = list[float](), 0, 0
            for recorded, predicted in c.sides:
                for seed in range(runs):
                    result, real = _replayed(c, recorded, predicted, (here, there), seed, tokens)
                    values.append(_seconds(result.replay) / _seconds(real) - 1)
                    decided, drawn = decided + result.decided, drawn + result.drawn
                    note("")
            errors.append(Error(c.name, tuple(values), decided, drawn))
    return errors


def _open(pair: Pair, profile: str, profile_pair: str) -> specscope.Cluster:
    return specscope.open(pair, runtime="virtual", profile=profile, profile_pair=profile_pair or None)


def _replayed(
    c: Pairs, recorded: Side, predicted: Side, clusters: tuple[Any, Any], seed: int, tokens: int
) -> tuple[WhatIf, Trace]:
    """Record one run, predict the other one, and run that."""
    options = {"sampling": Sampling(c.temperature, seed=seed), "limits": Limits(tokens)}
    prompt, where = PROMPTS[seed % len(PROMPTS)], OTHER if c.elsewhere else PROFILE
    trace = clusters[0].run(recorded[0], prompt, config=recorded[1], **options)
    settings = {} if recorded == predicted else predicted[1]
    result = what_if(trace, Change(*where, method=predicted[0], config=settings))
    return result, clusters[c.elsewhere].run(predicted[0], prompt, config=predicted[1], **options)


def _seconds(trace: Trace) -> float:
    seconds = metrics(trace).decode_seconds
    assert seconds, "the run decoded"
    return seconds


def lines(errors: list[Error]) -> list[str]:
    head = f"{'class':36}{'n':>4}{'mean':>9}{'median':>9}{'mean abs':>10}{'least':>9}{'most':>9}{'drawn':>8}"
    rows = [
        f"What-if: predicted time over the real run's, less 1; bundled pair, virtual ({PROFILE[0]})",
        head,
    ]
    for row in (error.to_dict() for error in errors):
        numbers = "".join(
            f"{row[k]:>+{w}.1%}"
            for k, w in (("mean", 9), ("median", 9), ("mean_absolute", 10), ("least", 9), ("most", 9))
        )
        share = row["drawn"] / max(1, row["drawn"] + row["decided"])
        rows.append(f"{row['class']:36}{row['n']:>4}{numbers}{share:>8.0%}")
    return rows
