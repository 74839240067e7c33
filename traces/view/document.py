"""The viewer's document: `view_model(traces)` makes a `ViewDocument`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, cast

from specscope.engine.errors import SpecScopeError
from specscope.traces.facts.comparable import batch_size
from specscope.traces.facts.imported import origin, with_unknown
from specscope.traces.facts.metrics import Metrics, measure, speedup
from specscope.traces.facts.places import has_trees
from specscope.traces.facts.waiting import Timeline, decoding_clock, timeline, working_devices
from specscope.traces.judge.race import Racer, Spread, race_line, racers_of, spread, winners
from specscope.traces.judge.verdict import RunVerdict, verdict
from specscope.traces.view import Rows, all_sections
from specscope.traces.view.aligned import AlignedView, aligned, equal_tokens
from specscope.traces.view.audit import AuditView
from specscope.traces.view.beginning import beginning, end_of
from specscope.traces.view.best import BestView, best_view
from specscope.traces.view.figures import FigureView, figure_rows, figure_texts
from specscope.traces.view.heading import Heading, heading, note, said
from specscope.traces.view.ngrams import CopyView
from specscope.traces.view.tokens import GhostView, TokenView, committed, ghosts
from specscope.traces.view.tracks import (
    RoundView,
    ShareOfTime,
    TrackView,
    band,
    headline,
    queue,
    rounds,
    tracks,
)

if TYPE_CHECKING:
    from specscope.engine.trace.events import Device
    from specscope.engine.trace.trace import Trace

VERSION = 1
"""Version of the document; the viewer refuses another one."""


class IdentityView(TypedDict):
    """How a run's token ids compare with the baseline's."""

    same: bool
    at: int | None
    """Index of the first difference; null if there is none."""
    length: int
    final: bool


Extent = TypedDict("Extent", {"from": float, "to": float})
"""The first and the last time of a run."""


class Sections(Extent):
    """What the viewer draws of a run, with one more key for each of `all_sections`."""

    tracks: list[TrackView]
    band: list[tuple[str, float, float]]
    """(kind, start, end), see `specscope.traces.view.tracks`."""
    headline: list[ShareOfTime]
    note: str
    """Why nothing was drafted, or what is unknown of an imported run; may be empty."""
    sequences: list[int]
    tokens: list[TokenView]
    ghosts: list[GhostView]
    pieces: dict[str, str]
    """Texts of the token ids in top lists and n-grams, by id."""
    rounds: list[RoundView]


class Compared(TypedDict):
    """A run's figures, and how it compares with its baseline."""

    baseline: bool
    """Whether it drafts nothing and runs are compared with it, see `traces.facts.comparable`."""
    fastest: bool
    """Whether its speed-up is set bold, see `traces.judge.race.winners`."""
    over: str | None
    """Id of the run's baseline; null without one."""
    reason: str
    """Why the run has no baseline; empty with one, and for a run that is shown alone."""
    batch: int
    """Sequences decoded at once, at most."""
    metrics: dict[str, Any]
    figures: dict[str, str]
    passes: Spread | None
    """The speeds of all passes; the other figures are the drawn pass's. Null for one pass."""
    verdict: RunVerdict
    """How fast the run is, why, and what would help. Redacted, it names no run to start."""
    identity: IdentityView | None
    best: BestView | None
    """What drafts of each length would bring; null without times, or where no formula holds."""


class RunView(Heading, Sections, Compared):
    """A run."""


class TimeAxis(TypedDict):
    """The first and the last time of all runs."""

    min: float
    max: float


class DocumentFrame(TypedDict):
    """What the runs of a document share."""

    model: int
    state: str
    """`empty` without runs, `live` while one of them is in progress, else `ready`."""
    axis: TimeAxis
    clocks: list[str]


class ViewDocument(DocumentFrame):
    """Everything that the viewer shows."""

    figures: list[FigureView]
    aligned: list[AlignedView]
    """For each sequence of the first run; empty for a single run."""
    race: str
    """Which run is the fastest, or that these times do not show it; empty for a single run."""
    runs: list[RunView]


def view_model(
    traces: Sequence[Trace],
    passes: Sequence[Sequence[Trace]] = (),
    *,
    redact_prompt: bool = False,
    spans: int | None = None,
) -> ViewDocument:
    """Return the document of these runs, as plain JSON values.

    Args:
        traces: The runs compared, in the order shown. A run without a footer is in progress.
        passes: For each run, all passes of it (see `traces/judge/race.py`); empty if no run was
            repeated.
        redact_prompt: Leave out the prompts, the texts in settings, and lost drafts that were
            copied from either.
        spans: Draw only the beginning of the runs, which has about so many spans; the figures stay
            those of whole runs.
    """
    traces = [with_unknown(trace) for trace in traces]
    timelines = [timeline(t) for t in traces]
    measured = [measure(t, known.band) for t, known in zip(traces, timelines, strict=True)]
    racers = racers_of(traces, measured, passes)
    measured = [_mean_speed(m, racer) for m, racer in zip(measured, racers, strict=True)]
    spreads = [spread(passes[i]) if passes else None for i in range(len(traces))]
    drawn = [sections(trace, known, redact_prompt) for trace, known in zip(traces, timelines, strict=True)]
    shown = traces
    if spans is not None:
        end = end_of(traces, spans)
        shown = [beginning(trace, end) for trace in traces]
        drawn = [_begun(*run, redact_prompt) for run in zip(drawn, traces, shown, strict=True)]
    runs: list[RunView] = [
        {
            **heading(trace, redact_prompt),
            **drawn[i],
            **_compared(
                i,
                racers,
                measured,
                spreads[i],
                cast("dict[str, Any]", drawn[i])["audit"],
                redact_prompt=redact_prompt,
            ),
        }
        for i, trace in enumerate(traces)
    ]
    return {
        **frame(runs, _state(traces)),
        "figures": figure_rows(batches=any(run["batch"] > 1 for run in runs)),
        "aligned": aligned(shown),
        "race": race_line(racers),
        "runs": runs,
    }


def _begun(whole: Sections, trace: Trace, cut: Trace, redact_prompt: bool) -> Sections:
    """Return the sections of a run's beginning, with what the whole one sums up."""
    sums = [name for name, section in all_sections().items() if section.need == "sums"]
    kept = {name: cast("dict[str, Any]", whole)[name] for name in ("headline", "note", *sums)}
    begun = sections(cut, timeline(cut), redact_prompt, working_devices(trace))
    return cast("Sections", {**begun, **kept})


def frame(runs: Sequence[Mapping[str, Any]], state: str) -> DocumentFrame:
    return {
        "model": VERSION,
        "state": state,
        "axis": {
            "min": min((r["from"] for r in runs), default=0.0),
            "max": max((r["to"] for r in runs), default=0.0),
        },
        "clocks": sorted({r["badge"] for r in runs}),
    }


def _state(traces: Sequence[Trace]) -> str:
    if not traces:
        return "empty"
    return "live" if any(t.status == "running" for t in traces) else "ready"


def sections(
    trace: Trace,
    known: Timeline,
    redact_prompt: bool,
    devices: Sequence[Device] | None = None,
    rows: Rows = "all",
) -> Sections:
    """Return what the viewer draws of a run of which the trace has these rows.

    Without `devices`, `working_devices(trace)` get a track.
    """
    tokens, lost, judged = list(committed(trace)), list(ghosts(trace)), rounds(trace)
    views, failed = dict[str, Any](), list[str]()
    for name, section in all_sections().items():
        try:
            views[name] = section.of(trace, rows, redacted=redact_prompt)
        except SpecScopeError:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of one view leaves out this view only
            views[name] = section.empty()
            failed.append(f"{section.title} ({type(error).__name__})")
    if redact_prompt:
        lost = _without_copies(lost, views["copies"])
    clock = decoding_clock(trace)
    times = [clock(time) for s in trace.spans for time in (s.start, s.end)]
    times += [row["t"] for row in (*tokens, *lost, *judged)]
    drawn: Sections = {
        "from": min(times, default=0.0),
        "to": max(times, default=0.0),
        "tracks": [*tracks(trace, known.waits, devices), *(queue(trace) if devices is None else ())],
        "band": band(trace, known.band),
        "headline": headline(trace, known.band),
        "sequences": list(range(len(trace.header.prompts))),
        "tokens": tokens,
        "ghosts": lost,
        "pieces": _pieces(trace, [*tokens, *lost], views),
        "rounds": judged,
        "note": " ".join(filter(None, (note(trace), _faults(failed), said(trace)))),
    }
    return cast("Sections", {**drawn, **views})


def _faults(failed: Sequence[str]) -> str:
    missing = ", ".join(failed)
    return f"Not shown, because of a fault of SpecScope: {missing}. Please report it." if missing else ""


def _without_copies(lost: Sequence[GhostView], copied: Sequence[CopyView]) -> list[GhostView]:
    """Blank the ghosts of copying rounds: their texts may be the prompt's."""
    copying = {(c["sequence"], c["step"]) for c in copied}
    return [
        {**ghost, "id": None, "text": "▒"} if (ghost["sequence"], ghost["step"]) in copying else ghost
        for ghost in lost
    ]


def _pieces(trace: Trace, rows: Iterable[TokenView | GhostView], views: Mapping[str, Any]) -> dict[str, str]:
    ids = {token for row in rows for top in (row.get("top_p", ()), row.get("top_q", ())) for token, _ in top}
    ids.update(*(section.tokens(views[name]) for name, section in all_sections().items()))
    return {str(i): trace.pieces[i] for i in sorted(ids) if i in trace.pieces}


def _mean_speed(metrics: Metrics, racer: Racer) -> Metrics:
    """Return the metrics with the speed of a race, which is the mean of two passes."""
    return metrics if racer.speed is None else replace(metrics, tokens_per_second=racer.speed.value)


def _compared(
    i: int,
    racers: Sequence[Racer],
    measured: Sequence[Metrics],
    passes: Spread | None,
    audited: AuditView | None,
    *,
    redact_prompt: bool,
) -> Compared:
    trace, metrics, k = racers[i].trace, measured[i], racers[i].baseline
    reference = None if k is None else measured[k]
    faster = speedup(metrics, reference) if reference else racers[i].reason or None
    labels = {d.name: d.label for d in working_devices(trace)}
    imported = origin(trace.header)
    unknown = imported.figures if imported else frozenset[str]()
    other = None if k in (None, i) else k
    found = verdict(i, racers, metrics, audited["sentence"] if audited else "")
    of = "nodes" if has_trees(trace.decisions) else "drafts and branches" if trace.forks else ""
    return {
        "baseline": k == i,
        "fastest": i in winners(racers),
        "over": None if k is None else racers[k].trace.header.run_id,
        "reason": racers[i].reason,
        "batch": batch_size(trace),
        "metrics": metrics.to_dict(),
        "figures": figure_texts(metrics, faster, labels, unknown, of=of, passes=passes),
        "passes": passes,
        "verdict": {**found, "run": None, "other": None} if redact_prompt else found,
        "identity": None if other is None else _identity(trace, racers[other].trace),
        "best": best_view(trace, metrics, None if other is None else racers[other].trace),
    }


def _identity(trace: Trace, baseline: Trace) -> IdentityView:
    ours, theirs = trace.token_ids(), baseline.token_ids()
    length = min(len(ours), len(theirs))
    same = equal_tokens(ours, theirs)
    ended = trace.status == baseline.status == "done"
    differs = same < length or (ended and len(ours) != len(theirs))
    return {"same": not differs, "at": same if differs else None, "length": length, "final": ended}
