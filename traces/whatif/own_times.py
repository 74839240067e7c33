"""A run's own times as the profile of its what-if: what its forwards took, by their rows.

A forward of a model takes the time of a line over its rows, through the run's mean forward. The
slope is that of least squares; or, with a plain run of the same target, that of the line through
its mean one-row forward. It lies between a forward that takes the same time for any rows and one
that takes the same time for each row. All other time of decoding belongs to the target's forwards,
in equal parts: decisions, messages, and when no model works. Gaps inside drafts are the drafter's.

The line of a mixture is over what its rows read (`traces/facts/experts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.errors import UsageError
from specscope.engine.layout import LayerParallel, Pipelined
from specscope.engine.simulate.latency import Latency
from specscope.engine.simulate.profile import Profile
from specscope.engine.simulate.roofline import Hardware, PublishedModel
from specscope.traces.facts import waiting
from specscope.traces.facts.experts import rows_read, share_chosen
from specscope.traces.facts.imported import origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specscope.engine.methods import Method
    from specscope.engine.trace.events import Span
    from specscope.engine.trace.trace import Trace

WITH_PLAIN = "Plain decoding of the same target, named with --plain, would tell what a row costs."
COMMAND = "name a cluster for the what-if with --profile, such as pearl-4xA100"

MOST_LAYERS = 1024
SHORTEST = 1e-3
"""Microseconds of a forward."""


@dataclass(frozen=True, slots=True)
class ForwardTime:
    """The time of a model's forward."""

    forwards: int
    """Those of the run."""
    rows: float
    """Of their mean, `us`."""
    us: float
    more: float
    """Microseconds of each further row; of a mixture, of one that shares no expert."""
    known: bool
    """Whether the run, or the plain run, tells what a row costs."""
    read: float
    """What the forwards read in the mean, in rows."""
    chosen: float = 0.0
    """Share of a mixture's experts that a row chooses; 0 for another model."""

    def __call__(self, rows: float, context: float, batch: float) -> float:  # noqa: ARG002 - as a `Grid`
        return max(SHORTEST, self.us + self.more * (rows_read(rows * batch, self.chosen) - self.read))


@dataclass(frozen=True, slots=True)
class OwnTimes:
    """What a run's forwards took."""

    run: str
    devices: tuple[str, ...]
    recorded: bool
    target: ForwardTime
    drafter: ForwardTime | None
    target_width: int
    """Devices of one forward."""
    drafter_width: int
    after: float
    """Microseconds of the other work for each target forward."""
    judged: float
    """Those of them that plain decoding does not take."""

    def profile(self) -> Profile:
        """Return the run as a profile with one pair."""
        name, kind = f"own times of {self.run}", "recorded" if self.recorded else "measured"
        hardware = Hardware(name, 1.0, name)
        plain = self.after - self.judged
        target = self._model("target", self.target, self.target_width, plain)
        drafter = self.drafter and self._model("drafter", self.drafter, self.drafter_width, 0.0)
        latency = Latency(kind, target, drafter, hardware, 0, round(self.judged))
        latencies = {kind: latency}
        return Profile(name, name, name, kind, self.devices, hardware, {}, {}, latencies)

    def _model(self, title: str, line: ForwardTime, width: int, after: float) -> PublishedModel:
        def us(rows: float, context: float, batch: float) -> float:
            return after + line(rows, context, batch)

        shape = {
            "layers": MOST_LAYERS,
            "dim": 1,
            "ffn": 1,
            "kv_heads": 1,
            "vocab": 1,
        }  # its times do not use them
        speed = 1e6 / us(1, 0, 1)
        more: dict[str, Any] = {"dtype": "float32", "gpus": width, "speed": speed, "source": self.run}
        return PublishedModel(title, **shape, **more, measured=us)

    def sentences(self) -> list[str]:
        found = [f"{_text('target', self.target)} and {self.after / 1e3:.1f} ms until the next work"]
        if self.drafter:
            found.append(_text("drafter", self.drafter))
        if not self.target.known:
            found.append("a target forward of other rows is taken to need the same time")
        tells = [WITH_PLAIN] if not self.target.known and self.target.rows > 1 else []
        return [f"From this run's own times: {', '.join(found)}.", *tells]


class Error(NamedTuple):
    """Seconds of decoding under the settings of a run."""

    measured: float
    predicted: float

    @classmethod
    def of(cls, trace: Trace, replay: Trace) -> Error:
        return cls(*((high - low) / 1e9 for low, high in map(waiting.decode_window, (trace, replay))))

    @property
    def share(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def sentence(self) -> str:
        return (
            f"Under the run's own settings these times give {self.predicted:.3f} s of decoding, and "
            f"{self.measured:.3f} s were measured: an error of {self.share:+.1%}."
        )


def own_times(trace: Trace, plain: Trace | None = None) -> OwnTimes:
    """Return what the forwards of a run with times took; `plain` is plain decoding of its target.

    Raises:
        UsageError: The run does not say it.
    """
    what = f"run {trace.header.run_id}"
    if trace.header.environment.get("head"):
        raise UsageError(f"{what} drafts with a head, whose times are no drafter's: {COMMAND}")
    if "load" in trace.header.environment:
        raise UsageError(f"{what} is under load, and prefills take other times than its forwards: {COMMAND}")
    work = [s for s in waiting.forwards(trace) if s.outcome == "done" and s.end > s.start]
    sides = {side: [s for s in work if waiting.side(s) == side] for side in ("target", "drafter")}
    targets, drafts = sides.values()
    begin, end = waiting.decode_window(trace)
    if not targets or begin == end:
        raise UsageError(f"{what} has no times of its target's forwards: {COMMAND}")
    drafted = sum(r.drafted for r in trace.rounds)
    judging = sum(r.drafted > 0 for r in trace.rounds)
    if drafts and len(drafts) <= judging < drafted:
        raise UsageError(
            f"{what} drafts several tokens in one forward, which tells no time of other drafts: {COMMAND}"
        )
    gap, after = waiting.unworked(trace).inside / 1e3 / max(1, len(drafts)), _after(trace, targets)
    singles = [s for s in waiting.forwards(plain) if waiting.side(s) == "target"] if plain else []
    beside = min(after, _after(plain, singles)) if plain and singles else after
    return OwnTimes(
        trace.header.run_id,
        tuple(dict.fromkeys(device.name for device in trace.header.devices)),
        origin(trace.header) is not None,
        _line(targets, 0.0, singles, share_chosen(trace, targets)),
        _line(drafts, gap) if drafts else None,
        _width(trace, "target"),
        _width(trace, "drafter"),
        after,
        after - beside,
    )


def check_method(own: OwnTimes, method: Method, config: Mapping[str, Any]) -> None:
    """Raise UsageError for a method whose work a run's forwards do not time."""
    layout = method.layout(method.configure(config))
    if isinstance(layout.arrangement, LayerParallel | Pipelined):
        raise UsageError(
            f"run {own.run} has times of whole forwards, and {method.key} with these settings splits a model over devices: "
            f"{COMMAND}"
        )
    if layout.needs_drafter and own.drafter is None:
        raise UsageError(
            f"run {own.run} has no times of a drafter's forwards, which {method.key} needs: record a method with a "
            f"drafter, or {COMMAND}"
        )


def _text(model: str, line: ForwardTime) -> str:
    further = "further row that shares no expert" if line.chosen else "further row"
    row = f", {line.more / 1e3:.2f} ms each {further}" if line.more >= 5 else ""
    rows = f"{line.rows:.3g} row{'s' * (line.rows != 1)}"
    return f"{line.us / 1e3:.1f} ms per {model} forward (the mean of {line.forwards}; {rows}{row})"


def _line(
    spans: Sequence[Span], more_us: float, singles: Sequence[Span] = (), chosen: float = 0.0
) -> ForwardTime:
    """Return the line of a model's forwards; `singles` are one-row forwards of another run."""
    rows, us = [max(1, s.rows) for s in spans], [(s.end - s.start) / 1e3 + more_us for s in spans]
    sizes = [rows_read(count, chosen) for count in rows]
    read, us_mean, slope = fmean(sizes), fmean(us), 0.0
    known = all(s.rows > 0 for s in spans)
    if known and singles and read > 1:
        single = fmean((s.end - s.start) / 1e3 for s in singles)
        slope = (us_mean - single) / (read - 1)
    elif known and len({*sizes}) > 1:
        slope = linear_regression(sizes, us).slope
    else:
        known = False
    more = min(max(0.0, slope), us_mean / read)
    return ForwardTime(len(spans), fmean(rows), us_mean, more, known, read, chosen)


def _width(trace: Trace, side: str) -> int:
    return 1 + max((s.rank for s in trace.spans if waiting.side(s) == side), default=0)


def _after(trace: Trace, targets: Sequence[Span]) -> float:
    """Return the microseconds of other work for each of the target's forwards."""
    return waiting.unworked(trace).outside / 1e3 / len(targets)
