"""What the rows of a forward read: those of a mixture of experts share experts.

If a row chooses a share s of the experts, n rows read 1 - (1 - s)^n of them, as in
`engine/simulate/roofline.py`. s follows from the experts that a run's forwards read.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specscope.engine.trace.events import Span
    from specscope.engine.trace.trace import Trace


def rows_read(rows: float, chosen: float) -> float:
    """Return how many times as much as one row so many rows read; `chosen` 0 is no mixture."""
    return (1 - (1 - chosen) ** rows) / chosen if chosen else rows


def share_chosen(trace: Trace, spans: Iterable[Span]) -> float:
    """Return the share of a mixture's experts that a row chooses.

    0 for another model, and where forwards read all experts, from which no share follows.
    """
    rows = {span.id: span.rows for span in spans if span.rows > 0}
    reads = [read for read in trace.routed if read.span in rows]
    read, held = sum(r.experts for r in reads), sum(r.held for r in reads)
    if read >= held:
        return 0.0
    return 1 - (1 - read / held) ** (1 / fmean(rows[r.span] for r in reads))
