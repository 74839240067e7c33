"""Why a run is not faster than plain decoding: one sentence of measured figures."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from traces import spans, waiting
from traces.metrics import speedup
from traces.view.branches import has_trees

if TYPE_CHECKING:
    from engine.trace.trace import Trace
    from traces.metrics import Metrics


def slowness(trace: Trace, metrics: Metrics, reference: Metrics) -> str:
    """Return why a run is not faster than its baseline; empty if it is faster or not done.

    A target forward brings k tokens. With the time of a baseline token as the unit, R = k /
    speed-up is the time per target forward. The shares of decoding in which the target works, only
    the drafter works, and neither works split R.

    Args:
        trace: The run.
        metrics: Its metrics.
        reference: The metrics of the run's baseline, which `traces.comparable` chooses.
    """
    faster, brings = speedup(metrics, reference), metrics.tokens_per_target_forward
    if trace.status != "done" or faster is None or brings is None or round(faster, 2) > 1:
        return ""
    time, shares = brings / faster, waiting.overlap(trace)
    rows = fmean(s.rows for s in spans.forwards(trace) if spans.side(s) == "target")
    parts = [f"{time * (shares['both'] + shares['target']):.2f} for its {rows:.1f} rows"]
    if metrics.draft_forwards:
        ratio = f" (c = {metrics.c:.1f})" if metrics.c else ""
        parts.append(f"{time * shares['draft']:.2f} waiting for drafts{ratio}")
    parts.append(f"{time * shares['none']:.2f} for the rest")
    accepted = _accepted(trace, metrics)
    return (
        f"Not faster than plain decoding: a target forward brings {brings:.2f} tokens{accepted} but takes the time "
        f"of {time:.2f} plain tokens: {', '.join(parts)}."
    )


def _accepted(trace: Trace, metrics: Metrics) -> str:
    """Return the acceptance of the drafts in brackets: per round for trees, else as a share."""
    rate, per_round = metrics.acceptance_rate, metrics.mean_accepted_length
    if has_trees(trace.decisions) and per_round is not None:
        return f" ({per_round:.2f} tokens of each tree accepted)"
    return "" if rate is None else f" ({100 * rate:.0f} % of the drafts accepted)"
