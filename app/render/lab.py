"""The heat map of a sweep as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.render.html import text
from app.routes import run_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from traces.lab import Cell, Sweep

SLOWEST, FASTEST = 0.5, 1.5
"""Speed-ups of the strongest colours; a larger one in the map replaces `FASTEST`."""


def heat_map(plan: Sweep, cells: Sequence[Cell]) -> str:
    """Return a table of speed-ups: a row per acceptance rate, a column per value; cells are links.

    Args:
        plan: The sweep.
        cells: The cells that are done.
    """
    done = {(cell.rate, cell.value): cell for cell in cells}
    best = {rate: _best(rate, done) for rate in plan.rates}
    top = max(FASTEST, *best.values())
    head = "".join(f'<th scope="col">{value}</th>' for value in plan.values)
    rows = "".join(
        f'<tr><th scope="row">{rate:g}</th>'
        + "".join(_cell(done.get((rate, value)), best[rate], top) for value in plan.values)
        + "</tr>"
        for rate in sorted(plan.rates, reverse=True)
    )
    return (
        f'<div class="app-scroll"><table class="app-heat" aria-label="Speed-up by {text(plan.field)} and acceptance">'
        f'<thead><tr><th scope="col">acceptance / {text(plan.field)}</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def progress(plan: Sweep, cells: Sequence[Cell]) -> str:
    """Return how far a sweep is."""
    total = len(plan.values) * len(plan.rates)
    return (
        f'<p class="app-note" role="status" data-done="{len(cells)}" data-total="{total}">'
        f'<progress max="{total}" value="{len(cells)}"></progress> {len(cells)} of {total} cells</p>'
    )


def _best(rate: float, done: Mapping[tuple[float, int], Cell]) -> float:
    """Return the largest mean speed-up at a rate; 0 without a cell."""
    return max((cell.mean for (r, _), cell in done.items() if r == rate and cell.speedups), default=0.0)


def _cell(cell: Cell | None, best: float, top: float) -> str:
    if cell is None:
        return "<td></td>"
    if not cell.speedups:
        return f'<td title="{text(cell.error)}">–</td>'
    mean = cell.mean
    edge = top if mean >= 1 else SLOWEST
    weight = min(1.0, abs(mean - 1) / abs(edge - 1))
    kind = "faster" if mean >= 1 else "slower"
    mark = " app-best" if mean == best else ""
    runs = run_address([trace.header.run_id for trace in cell.traces])
    hint = f"{mean:.2f} ± {cell.spread:.2f} times as fast as plain decoding; open the trace of the first seed"
    return (
        f'<td class="app-{kind}{mark}" style="--weight:{100 * weight:.0f}%">'
        f'<a href="{runs}" title="{text(hint)}">{mean:.2f}×<small>±{cell.spread:.2f}</small></a></td>'
    )
