"""Sweeps: the speed-up of a method over plain decoding for each value of one or two axes.

A cell has one comparison per sample (a prompt, or a seed of scripted drafts) and pass. Both runs
of a comparison have the same clock and the same conditions; else the cell has the reason instead of
a number. Passes alternate: every other one decodes plainly last, so that a machine that becomes
slower in the course of a sweep does not favour one side. Over acceptance rates, scripted drafts run
on a virtual cluster, without models.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from specscope.engine.drafting.pace import MISSES, Rate
from specscope.engine.errors import RunCancelled, UsageError
from specscope.engine.methods import BASELINE, find
from specscope.engine.simulate.profile import Profile
from specscope.engine.types import Limits, check_range
from specscope.traces.facts.comparable import conditions, differences
from specscope.traces.facts.metrics import measure, speedup
from specscope.traces.judge.race import alternating
from specscope.traces.lab.axes import MOST_CELLS, USUAL, Axis, Value, check_axis, drafts_at_once

if TYPE_CHECKING:
    from specscope.engine.checkpoints.pair import Pair
    from specscope.engine.methods import Method
    from specscope.engine.trace.trace import Trace

MOST_PASSES = 9
MOST_TOKENS = 512
MOST_SEEDS = 5
_VOCABULARY, _EOS = 512, 0
_WHOLE = 1 << 20
"""Prompt tokens of a forward under load: all prompts in one."""


class SweepRun(NamedTuple):
    """One run of a sweep."""

    method: str
    config: dict[str, Any]
    sample: int
    """Number of the prompt, or seed of the scripted drafts; a batch has one sample."""
    rate: Rate | None
    """Acceptance rate of scripted drafts, or those of their places; None if models draft."""
    group: str
    drafter: str = USUAL


Runner: TypeAlias = Callable[[SweepRun], "Trace"]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What to sweep over."""

    method: str
    columns: Axis
    rows: Axis | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings that are no axis; the others have their defaults."""
    samples: int = 2
    passes: int = 1
    measured: bool = False

    @property
    def places(self) -> list[tuple[Value | None, Value]]:
        rows = self.rows.values if self.rows else (None,)
        return [(row, column) for row in rows for column in self.columns.values]

    @property
    def scripted(self) -> bool:
        return self.columns.scripted or bool(self.rows and self.rows.scripted)

    def check(self) -> Method:
        """Return the method; UsageError for a wrong name or number, or too many cells."""
        method = find(self.method)
        axes = [self.columns, *([self.rows] if self.rows else [])]
        for one in axes:
            check_axis(method, one)
            if one.name in self.config:
                raise UsageError(f"{one.name} is an axis of the sweep and a setting; leave the setting out")
        if len({one.name for one in axes}) < len(axes):
            raise UsageError(
                f"{self.columns.name} is on both axes; choose another field for one of them", "rows"
            )
        method.configure(self.config)
        if self.scripted and self.measured:
            raise UsageError(
                "drafts at a given acceptance rate have no models to measure; choose a virtual cluster",
                "profile",
            )
        if not self.measured and any(one.drafters for one in axes):
            raise UsageError(
                "the times of a virtual cluster are the same for every drafter; measure on this machine",
                "profile",
            )
        check_range("the number of cells", len(self.places), 1, MOST_CELLS)
        check_range("passes", self.passes, 1, MOST_PASSES if self.measured else 1)
        return method

    def job(self, row: Value | None, column: Value) -> SweepRun:
        """Return the run of a cell, without its sample and group."""
        config, rate, drafter = dict(self.config), None, USUAL
        for one, value in ((self.columns, column), (self.rows, row)):
            if one is None:
                continue
            if isinstance(value, str):
                drafter = value
            elif one.scripted:
                rate = value
            else:
                config[one.name] = value
        return SweepRun(self.method, config, 0, rate, "", drafter)


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One value of each axis."""

    row: Value | None
    column: Value
    speedups: tuple[tuple[float, ...], ...]
    """Over plain decoding, by sample and pass; empty if the cell has no number."""
    traces: tuple[tuple[Trace, Trace], ...]
    """The first sample's run and plain decoding, by pass."""
    error: str = ""

    @property
    def mean(self) -> float:
        """The mean over the samples of the median over the passes (of two: their mean)."""
        return fmean(median(passes) for passes in self.speedups)

    @property
    def low(self) -> float:
        return min(map(min, self.speedups))

    @property
    def high(self) -> float:
        return max(map(max, self.speedups))

    @property
    def spread(self) -> str:
        """Half of the range as text; the range itself where passes have a median."""
        if sum(map(len, self.speedups)) == 1:
            return "1 run"
        if max(map(len, self.speedups)) > 1:
            return f"{self.low:.2f} to {self.high:.2f}"
        return f"±{(self.high - self.low) / 2:.2f}"

    @property
    def runs(self) -> list[str]:
        """Names of the first sample's run and plain decoding; `~` joins their passes."""
        sides = zip(*self.traces, strict=True)  # no side without a pass
        return ["~".join(dict.fromkeys(trace.header.run_id for trace in side)) for side in sides]

    @property
    def clock(self) -> str:
        return self.traces[0][0].header.clock if self.traces else ""

    def facts(self) -> dict[str, Any]:
        """Return the cell as `specscope sweep --json` has it."""
        known = bool(self.speedups)
        return {
            "column": self.column,
            "row": self.row,
            "speedup": self.mean if known else None,
            "low": self.low if known else None,
            "high": self.high if known else None,
            "speedups": self.speedups,
            "runs": [name.split("~") for name in self.runs],
            "error": self.error or None,
        }


def sweep(plan: Sweep, run: Runner, cancel: threading.Event | None = None) -> Iterator[SweepCell]:
    """Yield the cells as they are done, row by row; a set `cancel` ends the sweep."""
    method, cancel = plan.check(), cancel or threading.Event()
    work = _Work(plan, method, run, cancel)
    for row, column in plan.places:
        if cancel.is_set():
            return
        try:
            yield work.cell(row, column)
        except RunCancelled:
            return
        except UsageError as error:
            yield SweepCell(row, column, (), (), str(error))


def best(cells: Sequence[SweepCell], *, measured: bool) -> SweepCell | None:
    """Return the fastest cell of a row; None without one.

    Among measured cells it must be faster in all its passes than the others in any of theirs.
    """
    known = sorted((cell for cell in cells if cell.speedups), key=lambda cell: cell.mean)
    if not known:
        return None
    *others, first = known
    if measured:
        once = sum(map(len, first.speedups)) < 2
        if once or any(other.high >= first.low for other in others):
            return None
    return first


class _Work:
    """The runs of a sweep in progress."""

    def __init__(self, plan: Sweep, method: Method, run: Runner, cancel: threading.Event) -> None:
        self._plan, self._method, self._run, self._cancel = plan, method, run, cancel
        self._plain: dict[str, Trace] = {}
        """Plain decoding in virtual time, which is the same for all cells of a row."""
        self._groups: dict[tuple[Value | None, Rate | None, str, int], str] = {}

    def cell(self, row: Value | None, column: Value) -> SweepCell:
        job = self._plan.job(row, column)
        self._method.configure(job.config)  # two values may not go together
        samples = [self._sample(job._replace(sample=i), row) for i in range(self._plan.samples)]
        speedups = tuple(tuple(_ratio(run, plain) for run, plain in passes) for passes in samples)
        return SweepCell(row, column, speedups, samples[0])

    def _sample(self, job: SweepRun, row: Value | None) -> tuple[tuple[Trace, Trace], ...]:
        place = (row, job.rate, job.drafter, job.sample)
        job = job._replace(group=self._groups.setdefault(place, uuid.uuid4().hex[:12]))
        sides: dict[bool, list[Trace]] = {True: [], False: []}
        for _, plainly in alternating((True, False), self._plan.passes):
            sides[plainly].append(self._decode_plainly(job) if plainly else self._execute(job))
        return tuple(zip(sides[False], sides[True], strict=True))

    def _decode_plainly(self, job: SweepRun) -> Trace:
        plain = job._replace(method=BASELINE, config={})
        if self._method.plain:
            plain = job._replace(config={**job.config, **self._method.plain})
        if self._plan.measured:
            return self._execute(plain)
        key = f"{plain.group} {sorted(plain.config.items())}"
        if key not in self._plain:
            self._plain[key] = self._execute(plain)
        return self._plain[key]

    def _execute(self, job: SweepRun) -> Trace:
        if self._cancel.is_set():
            raise RunCancelled("the sweep was stopped")
        trace = self._run(job)
        if self._cancel.is_set() or trace.status == "cancelled":
            raise RunCancelled("the sweep was stopped")
        return trace


def _ratio(run: Trace, plain: Trace) -> float:
    if different := differences(conditions([run]), conditions([plain])):
        raise UsageError(f"no speed-up over plain decoding: different {', '.join(different)}")
    found = speedup(measure(run), measure(plain))
    if found is None:
        raise UsageError("no speed-up over plain decoding: the run committed too few tokens")
    return found


def scripted_pair() -> Pair:
    """Return the pair of models whose tokens a script gives; it has no files."""
    from specscope.engine.checkpoints.pair import Pair  # imports torch, which takes seconds
    from specscope.traces.whatif.script import CONTEXT, NO_TEXTS

    return Pair("scripted", Path("scripted"), Path("scripted"), NO_TEXTS, _VOCABULARY, CONTEXT, (_EOS,))


@dataclass(frozen=True, slots=True)
class ScriptedRunner:
    """A `Runner` of jobs with an acceptance rate; the sample of a job is its seed."""

    profile: str | Profile
    profile_pair: str = ""
    tokens: int = 64
    doubt: float = 0.0
    misses: float = MISSES
    """As doubt, see `specscope.engine.simulate.oracle.bernoulli_models`."""
    prompt: int = 32
    """Tokens of the prompt."""
    batch: int = 0
    """Sequences that are decoded at once, under load; 0 for a single one."""

    def check(self, seeds: int) -> None:
        check_range("tokens", self.tokens, 1, MOST_TOKENS)
        check_range("seeds", seeds, 1, MOST_SEEDS)
        profile = Profile.load(self.profile) if isinstance(self.profile, str) else self.profile
        profile.latency(self.profile_pair or None)

    def __call__(self, job: SweepRun) -> Trace:
        """Without doubt, second choices have no probability, so a tree is as good as its chain."""
        import specscope
        from specscope.engine.run.serving import Load
        from specscope.engine.simulate.oracle import Source, bernoulli_models  # imports torch

        assert job.rate is not None
        law = {"doubt": self.doubt, "misses": self.misses}
        models = bernoulli_models((job.rate,), _VOCABULARY, self.prompt, job.sample, avoid=[_EOS], **law)
        prompt = tuple(1 + i % (_VOCABULARY - 1) for i in range(self.prompt))
        prompts = [prompt] * max(1, self.batch)
        load = Load((0.0,) * self.batch, self.batch, _WHOLE) if self.batch else None
        doubt = f":doubt={self.doubt:g}" if self.doubt else ""
        misses = f":misses={self.misses:g}" if self.misses != MISSES else ""
        rates = "/".join(f"{rate:g}" for rate in (job.rate if isinstance(job.rate, tuple) else (job.rate,)))
        name = f"bernoulli:{rates}{doubt}{misses}, seed {job.sample}"
        source = Source(models, name, block=drafts_at_once(find(job.method)))
        with specscope.open(
            scripted_pair(),
            runtime="virtual",
            profile=self.profile,
            profile_pair=self.profile_pair or None,
            tokens=source,
        ) as cluster:
            limits = Limits(self.tokens)
            trace = cluster.run(
                job.method, *prompts, config=job.config, limits=limits, group=job.group, load=load
            )
        if trace.pooled:
            raise UsageError(f"{trace.header.title} drafts n-grams of a real text; a script has none")
        trace.commits = [replace(c, text=f"{c.token} ") for c in trace.commits]
        shown = (f"{self.prompt} scripted tokens",) * len(trace.header.prompts)
        trace.header = replace(trace.header, prompts=shown)
        return trace
