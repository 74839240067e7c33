"""Why a run is not faster than plain decoding, or cannot be as fast as it seems, from its rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from statistics import fmean, median
from typing import TYPE_CHECKING

from specscope.engine.trace.events import DRAFTS
from specscope.traces.facts import waiting
from specscope.traces.facts.imported import is_timed, origin
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import FATES, has_trees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.events import Span
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics

ENOUGH = 1.05
"""Time per target forward in plain ones up to which the forward itself is not the cause."""
FASTER = 0.8
"""Time of a target forward / that of a plain one below which more than noise is the reason."""
_OTHERS = {
    "communicate": "moving data",
    "sample": "deciding on tokens after the forward",
    "prefill": "prefill during decoding",
}
"""The work beside forwards, by kind of span."""


def impossible(trace: Trace, plain: Trace) -> str:
    """Return that target forwards are faster than plain ones, which no method can bring about."""
    mine, theirs = _target_forwards(trace), _target_forwards(plain)
    time, least = _milliseconds(mine), _milliseconds(theirs)
    rows, few = _rows(mine), _rows(theirs)
    if not 0 < time < FASTER * least or (rows or 1) < (few or 1):
        return ""
    wide, narrow = (f" of {n:.1f} rows" if rows and few else "" for n in (rows or 0, few or 0))
    return (
        f"This cannot be an effect of the method: a target forward{wide} took {time:.2f} ms, a plain one{narrow} "
        f"{least:.2f} ms. Check that both runs have the same model, precision and context, that their spans end when "
        "the device has finished, and that nothing was kept from an earlier run."
    )


def slow(trace: Trace, metrics: Metrics, plain: Trace, speedup: float, most: float) -> str:
    """Return why a run is not faster: where the time of a target forward goes.

    `speedup` is measured; its passes leave open up to `most`.

    A target forward brings k tokens, a plain one b: 1, of a batch more. With the time of a plain
    forward as the unit, R = k / b / speed-up is the time per target forward. The shares of decoding
    (`waiting.time_by_part`) split R. A cause is named if its part is larger than what the passes
    leave open of R.
    """
    brings = metrics.tokens_per_target_forward
    if brings is None:
        return ""
    unit = measure(plain).tokens_per_target_forward or 1.0
    time = brings / unit / speedup
    noise = max(ENOUGH - 1, time - brings / unit / most)
    parts = {part: time * share for part, share in waiting.time_by_part(trace).items()}
    target, draft, rest = (parts.pop(part, 0.0) for part in ("target", "drafter", "none"))
    rows, few = _rows(_target_forwards(trace)), _rows(_target_forwards(plain))
    named = [f"{target:.2f} for {f'its {rows:.1f} rows' if rows else 'itself'}"]
    if metrics.draft_forwards or draft >= 0.005:
        named.append(f"{draft:.2f} waiting for drafts")
    others = {_OTHERS.get(part, f"work of the kind {part}"): value for part, value in sorted(parts.items())}
    named += [f"{value:.2f} for {name}" for name, value in others.items() if value >= 0.005]
    named.append(f"{rest:.2f} in which no model works")
    c = metrics.c
    ratio = f", whose forward takes 1/{c:.1f} of a target forward (c = {c:.1f})" if c else ""
    wide = rows is not None and few is not None and rows > few + 0.05
    width = f"the width of the target's forwards, {rows:.1f} rows instead of {few:.1f}" if wide else ""
    causes = {
        width or "the target's forwards": target - 1,
        f"waiting for the drafter{ratio}": draft,
        "the time between forwards": rest,
        **others,
    }
    largest, loss = max(causes.items(), key=lambda found: found[1])
    sentences = (
        f"A target forward takes the time of {time:.2f} plain {'tokens' if unit == 1 else 'forwards'}: {', '.join(named)}.",
        f"Most of the loss is {largest}." if loss > noise else "",
        _places(trace, metrics),
    )
    return " ".join(filter(None, sentences))


def by_drafter(trace: Trace) -> str:
    """Return the acceptance and the drafting time of each device of a recorded loop that drafted.

    Empty unless several did: only their names tell the drafters apart.
    """
    busy, fates = Counter[str](), defaultdict[str, Counter[str]](Counter)
    places = {span.id: span.device for span in trace.spans if span.model == "drafter"}
    for span in trace.spans:
        if span.kind in DRAFTS:
            busy[places.get(span.id, "")] += span.end - span.start
    for d in trace.decisions:
        if d.outcome in FATES and d.draft_span in places:
            fates[places[d.draft_span]][d.outcome] += 1
    if origin(trace.header) is None or len(fates) < 2:
        return ""
    found = list[str]()
    for device, counts in sorted(fates.items()):
        tested, drafted = counts.total() - counts["discarded"], counts.total()
        share = f" ({100 * counts['accepted'] / tested:.0f} %)" if tested else ""
        time = f", {busy[device] / 1e6 / drafted:,.3g} ms of drafting each" if is_timed(trace.header) else ""
        found.append(f"{device} {counts['accepted']:,} of {tested:,} tested tokens{share}{time}")
    return f"Accepted by drafter: {'; '.join(found)}."


def _places(trace: Trace, metrics: Metrics) -> str:
    if has_trees(trace.decisions):
        return ""
    tested = [s.conditional for s in metrics.per_position if s.conditional is not None][:6]
    shares = ", ".join(f"{100 * share:.0f} %" for share in tested)
    return f"Accepted by place in the draft: {shares}." if tested else ""


def _target_forwards(trace: Trace) -> list[Span]:
    return [s for s in waiting.forwards(trace) if waiting.side(s) == "target" and s.outcome == "done"]


def _milliseconds(forwards: Sequence[Span]) -> float:
    return median(s.end - s.start for s in forwards) / 1e6 if forwards else 0.0


def _rows(forwards: Sequence[Span]) -> float | None:
    """Return the mean rows; None if they are not known of all."""
    return fmean(s.rows for s in forwards) if forwards and all(s.rows > 0 for s in forwards) else None
