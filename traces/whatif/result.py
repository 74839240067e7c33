"""The result of a what-if: its facts, and its figures beside the recorded ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.traces.facts.comparable import batch_size
from specscope.traces.facts.imported import origin
from specscope.traces.facts.metrics import measure, speedup
from specscope.traces.view.figures import acceptance, figure_rows, figure_texts

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.whatif.own_times import Error, OwnTimes
    from specscope.traces.whatif.replay import WhatIf

SHOWN = (
    "tokens_per_second",
    "speedup",
    "acceptance_rate",
    "acceptance_rate_tested",
    "mean_accepted_length",
    "tokens_per_target_forward",
    "target_forwards",
    "draft_forwards",
    "drafted",
    "discarded",
    "both",
    "target_waits",
    "drafter_waits",
    "decode_seconds",
    "wasted_device_seconds",
)


class FigureRow(NamedTuple):
    """One figure of the recorded run, of its replay, and of plain decoding on the same cluster."""

    label: str
    recorded: str
    replay: str
    plain: str


def facts(result: WhatIf) -> dict[str, Any]:
    recorded, replay, plain = measure(result.recorded), measure(result.replay), _plain(result)
    return {
        "run": result.recorded.header.run_id,
        "recorded": {**_heading(result.recorded), "metrics": recorded.to_dict()},
        "what_if": {**_heading(result.replay), "metrics": replay.to_dict()},
        "plain": {**_heading(plain), "metrics": measure(plain).to_dict()},
        "acceptance": {
            d.label: {"recorded": d.values[0], "what_if": d.values[1], "used_by": d.used_by}
            for d in acceptance([result.recorded, result.replay])
        },
        "speedup": speedup(replay, measure(plain)),
        "decided_by_recording": result.decided,
        "drawn": result.drawn,
        "text_differs_from": result.differs,
        "notes": list(result.notes),
        "same_clock": same_clock(result),
        "own_times": _own(result.own, result.error) if result.own else None,
        "replay_ms": round(1000 * result.seconds),
    }


def sentences(result: WhatIf) -> list[str]:
    """Return what decided the drafts, what was assumed, and whether the times can be compared."""
    if result.decided + result.drawn:
        first = (
            f"Tested drafts: {result.decided} decided by the recording, "
            f"{result.drawn} drawn from its probabilities or rates."
        )
    else:
        first = "No draft was tested; the recorded text decides every token."
    clock = "" if same_clock(result) else "Recorded times have another clock: compare the last two columns."
    return [first, *result.notes, *filter(None, [clock])]


def same_clock(result: WhatIf) -> bool:
    """Return whether the recorded times are those of the replay's cluster."""
    if result.own:
        return True
    ours, theirs = result.replay.header, result.recorded.header
    pairs = [h.environment.get("profile_pair") for h in (ours, theirs)]
    return theirs.virtual and ours.profile == theirs.profile and pairs[0] == pairs[1]


def rows(result: WhatIf) -> list[FigureRow]:
    plain = _plain(result)
    base = measure(plain)
    found = origin(result.recorded.header)
    columns = [
        figure_texts(measure(result.recorded), None, {}, found.figures if found else ()),
        figure_texts(measure(result.replay), speedup(measure(result.replay), base), {}),
        figure_texts(base, 1.0, {}),
    ]
    labels = {figure["key"]: figure["label"] for figure in figure_rows(batches=batch_size(result.replay) > 1)}
    return [FigureRow(labels[key], *(column[key] for column in columns)) for key in SHOWN]


def _own(own: OwnTimes, error: Error | None) -> dict[str, Any]:
    lines = {"target": own.target, "drafter": own.drafter}
    forwards = {
        model: {
            "ms": line.us / 1e3,
            "rows": line.rows,
            "ms_per_row": line.more / 1e3,
            "forwards": line.forwards,
        }
        for model, line in lines.items()
        if line
    }
    errors = (
        {"measured_s": error.measured, "predicted_s": error.predicted, "error": error.share} if error else {}
    )
    return {**forwards, "other_ms": own.after / 1e3, **errors}


def _plain(result: WhatIf) -> Trace:
    return result.plain or result.replay


def _heading(trace: Trace) -> dict[str, Any]:
    header = trace.header
    return {
        "run_id": header.run_id,
        "method": header.method,
        "title": header.title,
        "config": header.config,
        "profile": header.profile or None,
        "clock": header.clock,
        "tokens": len(trace.commits),
    }
