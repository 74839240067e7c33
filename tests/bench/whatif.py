"""How far predictions of `specscope whatif` are from real runs in virtual time, by class.

`python -m tests.bench.whatif [--quick] [--json]`: predicted time over the real run's, less 1, on
the bundled pair; `--quick` has half of the texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean
from typing import Any

import specscope
from specscope.app.bench.figures import Measurement, Note
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts.metrics import measure as metrics
from specscope.traces.whatif.replay import Change, what_if
from tests.bench import script

PROFILE, OTHER = ("pearl-4xA100", ""), ("pearl-3xA100", "codellama-7-34")
PROMPTS = (
    *("Tell me a story.", "How do I cook rice?", "Explain gravity.", "Describe a city."),
    *("Write a poem.", "What is a bank?", "Why is the sky blue?", "List three animals."),
    *("Give me advice.", "What is love?", "Who was Einstein?", "Tell a joke."),
    *("Plan a trip to Rome.", "How does a car work?", "Summarize a book.", "What do bees eat?"),
)
TOKENS, EXACT = 64, 1
"""Tokens of each run, and texts of each pair of settings where nothing is drawn."""
FULL, QUICK = 8, 4
"""Texts of each class where something is drawn; above temperature 0, where texts differ more, twice
as many."""

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

    def seeds(self, texts: int) -> range:
        """Return the seeds of each pair of settings; at temperature 0 a seed is but a prompt."""
        if self.exact:
            return range(EXACT)
        each = ceil(texts * (2 if self.temperature else 1) / len(self.sides))
        return range(each if self.temperature else min(each, len(PROMPTS)))


def _to(recorded: tuple[Side, ...], *predicted: Side) -> tuple[tuple[Side, Side], ...]:
    return tuple((one, other) for one in recorded for other in predicted if one != other)


_S5, _S2, _P5 = ("speculative", {"gamma": 5}), ("speculative", {"gamma": 2}), ("pearl", {"gamma": 5})
_DSI, _S1, _S8 = ("dsi", {"lookahead": 8}), ("speculative", {"gamma": 1}), ("speculative", {"gamma": 8})
_SSD, _BRANCH, _HYBRID = ("ssd", {}), ("specbranch", {}), ("hybrid", {})
_TREE = ("tree", {"width": 3, "depth": 3})
_ADAPTED: tuple[Side, ...] = tuple(
    (method, {"gamma": 5, "schedule": schedule})
    for method in ("speculative", "pearl")
    for schedule in ("threshold", "average")
)
_ALL: tuple[Side, ...] = (*((key, {}) for key in METHODS), *_ADAPTED)
_COPIES: tuple[Side, ...] = (("llma", {}), ("prompt_lookup", {}), ("suffix", {}))
_OWN = tuple((side, side) for side in _ALL)
CLASSES = (
    Pairs("own settings, T 0", 0.0, _OWN, exact=True),
    Pairs("own settings, T 1", 1.0, _OWN, exact=True),
    Pairs("own settings, other profile, T 0", 0.0, _OWN, elsewhere=True, exact=True),
    Pairs("own settings, other profile, T 1", 1.0, _OWN, elsewhere=True, exact=True),
    Pairs("T 0, nothing drawn", 0.0, _to((_P5,), _S5, _DSI, *_COPIES) + _to((_S5,), _S2), exact=True),
    Pairs("T 0, some drawn", 0.0, _to((_S5,), _P5, _S8) + _to((_S1,), _P5)),
    Pairs("T 0, from hybrid", 0.0, _to((_HYBRID,), _S5, _P5)),
    Pairs("T 0, to hybrid", 0.0, _to((_S5, _P5), _HYBRID)),
    Pairs("T 0, from SSD", 0.0, _to((_SSD,), _S5, _P5)),
    Pairs("T 0, to SSD", 0.0, _to((_S5, _P5), _SSD)),
    Pairs("T 0, from SpecBranch", 0.0, _to((_BRANCH,), _S5, _P5)),
    Pairs("T 0, to SpecBranch", 0.0, _to((_S5, _P5), _BRANCH)),
    Pairs("T 0, to a tree", 0.0, _to((_S5, _P5), _TREE)),
    Pairs("T 0, to a schedule", 0.0, _to((_S5, _P5), *_ADAPTED)),
    Pairs("T 0, from a schedule", 0.0, _to(_ADAPTED, _S5, _P5)),
    Pairs("T 0, assisted constant", 0.0, _to((_S5,), ("assisted", {"schedule": "constant"}))),
    Pairs("T 1, other draft length or method", 1.0, _to((_S5,), _S2, _P5) + _to((_P5,), _S5)),
    Pairs("T 1, other rule: ratio to match", 1.0, _to((_S5,), _DSI)),
    Pairs("T 1, other rule: match to ratio", 1.0, _to((_DSI,), _S5)),
    Pairs("T 1, from hybrid", 1.0, _to((_HYBRID,), _S5, _DSI)),
    Pairs("T 1, to hybrid", 1.0, _to((_S5, _DSI), _HYBRID)),
    Pairs("T 1, from SSD", 1.0, _to((_SSD,), _S5, _P5)),
    Pairs("T 1, from SpecBranch", 1.0, _to((_BRANCH,), _S5, _P5)),
    Pairs("T 1, to SSD, SpecBranch or a tree", 1.0, _to((_S5,), _SSD, _BRANCH, _TREE)),
    Pairs("T 1, to a schedule", 1.0, _to((_S5, _P5), *_ADAPTED)),
    Pairs("T 1, from a schedule", 1.0, _to(_ADAPTED, _S5, _P5)),
)


def measure(
    texts: int, note: Note, classes: tuple[Pairs, ...] = CLASSES, tokens: int = TOKENS
) -> tuple[dict[str, Measurement], dict[str, list[str]]]:
    """Return the errors by class, and the methods of the what-ifs that were refused.

    The pair is the bundled one; its texts do not end early. The texts of a class are shared out
    among its pairs of settings; each has a seed and one of the prompts.
    """
    pair, figures, refused = replace(Pair.find(), eos=()), dict[str, Measurement](), dict[str, list[str]]()
    with _open(pair, *PROFILE) as here, _open(pair, *OTHER) as there:
        runs = _Runs((here, there), tokens)
        for c in classes:
            note(c.name)
            figure, left_out = _error(c, runs, texts, note)
            if figure.values:
                figures[c.name] = figure
            if left_out:
                refused[c.name] = left_out
    return figures, refused


class _Runs:
    """Real runs of both clusters; a run that several classes need is run once."""

    def __init__(self, clusters: tuple[Cluster, Cluster], tokens: int) -> None:
        self._clusters, self._tokens = clusters, tokens
        self._known: dict[str, Trace] = {}

    def run(self, side: Side, temperature: float, seed: int, *, elsewhere: bool = False) -> Trace:
        name = f"{side} {temperature} {seed} {elsewhere}"
        if name not in self._known:
            self._known[name] = self._clusters[elsewhere].run(
                side[0],
                PROMPTS[seed % len(PROMPTS)],
                config=side[1],
                sampling=Sampling(temperature, seed=seed),
                limits=Limits(self._tokens),
            )
        return self._known[name]


def _open(pair: Pair, profile: str, profile_pair: str) -> Cluster:
    return specscope.open(pair, runtime="virtual", profile=profile, profile_pair=profile_pair or None)


def _error(c: Pairs, runs: _Runs, texts: int, note: Note) -> tuple[Measurement, list[str]]:
    values, decided, drawn, refused = list[float](), 0, 0, dict[str, None]()
    for recorded, predicted in c.sides:
        settings = {} if recorded == predicted else predicted[1]
        change = Change(*(OTHER if c.elsewhere else PROFILE), method=predicted[0], config=settings)
        for seed in c.seeds(texts):
            note("")
            try:
                result = what_if(runs.run(recorded, c.temperature, seed), change)
            except UsageError:
                refused[predicted[0]] = None
                break
            real = runs.run(predicted, c.temperature, seed, elsewhere=c.elsewhere)
            values.append(_seconds(result.replay) / _seconds(real) - 1)
            decided, drawn = decided + result.decided, drawn + result.drawn
    facts: dict[str, Any] = {"decided": decided, "drawn": drawn}
    if values:
        facts |= {"mean": round(fmean(values), 4), "mean_absolute": round(fmean(map(abs, values)), 4)}
    unit = f"of the real time; {drawn / max(1, drawn + decided):.0%} drawn"
    return Measurement(tuple(values), unit, detail=facts), list(refused)


def _seconds(trace: Trace) -> float:
    seconds = metrics(trace).decode_seconds
    assert seconds, "the run decoded"
    return seconds


def from_options(args: argparse.Namespace, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    figures, refused = measure(QUICK if args.quick else FULL, note)
    lines = [f"refused in {name}: {', '.join(methods)}" for name, methods in refused.items()]
    return figures, {"device": f"virtual · {PROFILE[0]}", "refused": refused, "lines": lines}


if __name__ == "__main__":
    script.main(script.options(__doc__), from_options, {})
