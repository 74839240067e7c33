"""Sweeps: a method over draft lengths and acceptance rates, on a virtual cluster without models.

Each cell of a sweep is one run per seed with drafts that are right at a given rate, and the plain
decoding of the same tokens. Speed-ups of several seeds show how much chance decides.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from engine.errors import UsageError, shown
from engine.methods import BASELINE, METHODS, find
from engine.types import Limits, check_range
from traces.metrics import measure, speedup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.methods import Method
    from engine.trace.trace import Trace

FIELDS = ("gamma", "lookahead")
"""Settings that are the length of a chain of drafts."""
MOST_CELLS = 60
MOST_SEEDS = 5
MOST_TOKENS = 512
_VOCABULARY, _EOS = 512, 0
_PROMPT = tuple(range(1, 33))


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to sweep over."""

    method: str
    field: str
    """A setting of the method, one of `FIELDS`."""
    values: tuple[int, ...]
    rates: tuple[float, ...]
    """Acceptance rates of a tested token, 0 to 1."""
    profile: str
    profile_pair: str = ""
    tokens: int = 64
    """Tokens of each run."""
    seeds: int = 2

    def check(self) -> Method:
        """Return the method.

        Raises:
            UsageError: A name or a number is wrong, or the sweep is too large.
        """
        method = find(self.method)
        if self.field not in fields_of(method):
            able = ", ".join(sweepable())
            raise UsageError(
                f"{self.method} has no sweep over {shown(self.field)}; choose a method among {able}"
            )
        if not self.values or not self.rates:
            raise UsageError("a sweep needs at least one value and one acceptance rate")
        for value in self.values:
            method.configure({self.field: value})
        for rate in self.rates:
            check_range("acceptance rate", rate, 0, 1)
        check_range("tokens", self.tokens, 1, MOST_TOKENS)
        check_range("seeds", self.seeds, 1, MOST_SEEDS)
        check_range("the number of cells", len(self.values) * len(self.rates), 1, MOST_CELLS)
        return method


@dataclass(frozen=True, slots=True)
class Cell:
    """One value at one acceptance rate."""

    value: int
    rate: float
    speedups: tuple[float, ...]
    """Over plain decoding, one per seed; empty if the method refused the value."""
    traces: tuple[Trace, ...]
    """The run of the first seed, and its plain decoding."""
    error: str = ""
    """Why the method refused the value."""

    @property
    def mean(self) -> float:
        """The mean speed-up."""
        return fmean(self.speedups)

    @property
    def spread(self) -> float:
        """Half of the largest difference between two seeds."""
        return (max(self.speedups) - min(self.speedups)) / 2


def fields_of(method: Method) -> list[str]:
    """Return the settings of a method that a sweep can vary."""
    layout = method.layout(method.configure({}))
    if not layout.needs_drafter or layout.head or method.batched:
        return []
    return [s.name for s in method.settings() if s.name in FIELDS]


def sweepable() -> list[str]:
    """Return the keys of the methods that have a sweep."""
    return [key for key, method in METHODS.items() if fields_of(method)]


def sweep(plan: Sweep, cancel: threading.Event | None = None) -> Iterator[Cell]:
    """Yield the cells as they are done, rate by rate; stop early if `cancel` is set.

    Raises:
        UsageError: The sweep is wrong, or its method drafts more than a drafter's chain.
    """
    plan.check()
    cancel = cancel or threading.Event()
    for rate in plan.rates:
        for value in plan.values:
            if cancel.is_set():
                return
            try:
                pairs = [_runs(plan, rate, value, seed) for seed in range(plan.seeds)]
            except UsageError as error:
                yield Cell(value, rate, (), (), str(error))
                continue
            ratios = [speedup(measure(run), measure(plain)) or 0.0 for run, plain in pairs]
            yield Cell(value, rate, tuple(ratios), pairs[0])


def _runs(plan: Sweep, rate: float, value: int, seed: int) -> tuple[Trace, Trace]:
    """Return a run and its plain decoding, as one comparison."""
    import engine
    from engine.pairs.pair import Pair  # imports torch, which takes seconds
    from engine.simulate.oracle import Source, bernoulli_models
    from traces.whatif.script import CONTEXT, NO_TEXTS

    pair = Pair("scripted", Path("scripted"), Path("scripted"), NO_TEXTS, _VOCABULARY, CONTEXT, (_EOS,))
    models = bernoulli_models((rate,), _VOCABULARY, len(_PROMPT), seed, avoid=[_EOS])
    source = Source(models, f"bernoulli:{rate:g}, seed {seed}")
    limits, group = Limits(plan.tokens), uuid.uuid4().hex[:12]
    with engine.open(
        pair,
        runtime="virtual",
        profile=plan.profile,
        profile_pair=plan.profile_pair or None,
        tokens=source,
    ) as cluster:
        run = cluster.run(plan.method, _PROMPT, config={plan.field: value}, limits=limits, group=group)
        plain = cluster.run(BASELINE, _PROMPT, limits=limits, group=group)
    if run.pooled:
        raise UsageError(f"{run.header.title} drafts n-grams of a real text; a sweep has none")
    for trace in (run, plain):
        trace.commits = [replace(c, text=f"{c.token} ") for c in trace.commits]
        trace.header = replace(trace.header, prompts=(f"{len(_PROMPT)} scripted tokens",))
    return run, plain


def numbers(text: str) -> tuple[int, ...]:
    """Return the whole numbers of `1-4, 8`.

    Raises:
        UsageError: A part is neither a number nor a range of numbers.
    """
    found = list[int]()
    for part in filter(None, map(str.strip, text.split(","))):
        low, dash, high = part.partition("-")
        try:
            first, last = int(low), int(high if dash else low)
        except ValueError:
            raise UsageError(f"{shown(part)} is no whole number or range; write for example 1-4, 8") from None
        check_range("the last number of a range", last, first, first + MOST_CELLS)
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def shares(text: str) -> tuple[float, ...]:
    """Return the acceptance rates of `0.5, 0.8`.

    Raises:
        UsageError: A part is no number.
    """
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",") if part.strip()))
    except ValueError:
        raise UsageError(f"{shown(text)} is no list of rates; write for example 0.5, 0.7, 0.9") from None
