"""HTML of a sweep: heat map, papers' points, chart, and its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specscope.app.render.html import STYLES, app_page, badge, figure, line, run_address, scrolling, text
from specscope.engine.methods import METHODS
from specscope.traces.lab.axes import Value, value_text
from specscope.traces.lab.points import Point
from specscope.traces.lab.sweep import Sweep, SweepCell, best

SLOWEST, FASTEST = 0.5, 1.5
"""Speed-ups of the strongest colours; a larger one in the map replaces `FASTEST`."""
PITCH = 43
"""Pixels from one row of the map to the next (`.app-heat` in assets/app.css)."""
PAPER = ("#767676", "#8f8f8f", "solid")


def sweep_result(
    plan: Sweep,
    cells: Sequence[SweepCell],
    points: Sequence[Point],
    *,
    drawn: bool = False,
    links: bool = True,
) -> str:
    """Return caption, heat map and list of points, and the chart once the sweep has ended."""
    chart = spread_chart(plan, cells, points) if drawn else ""
    return caption(plan, cells) + heat_map(plan, cells, points, links=links) + chart


def caption(plan: Sweep, cells: Sequence[SweepCell]) -> str:
    clock = next((cell.clock for cell in cells if cell.clock), "")
    kind = "seed" if plan.scripted else "sample"
    counts = [f"{n} {name}{'' if n == 1 else 's'}" for n, name in ((plan.samples, kind),)]
    if plan.measured:
        counts.append(f"{plan.passes} pass{'' if plan.passes == 1 else 'es'}")
    facts = [METHODS[plan.method].title, *(f"{k}={v}" for k, v in plan.config.items()), *counts]
    return f'<p class="app-note">{badge(clock) if clock else ""} {text(" · ".join(facts))}</p>'


def heat_map(
    plan: Sweep, cells: Sequence[SweepCell], points: Sequence[Point] = (), *, links: bool = True
) -> str:
    """Return a table of speed-ups, a row per value of the second axis, with the papers' points."""
    rows = _rows(plan)
    done = {(cell.row, cell.column): cell for cell in cells}
    framed = [best([c for c in cells if c.row == row], measured=plan.measured) for row in rows]
    top = max([FASTEST, *(cell.mean for cell in cells if cell.speedups)])
    marks = _marks(plan, rows, points)
    head = "".join(
        f'<th scope="col">{_value(column)}{marks.get((None, column), "")}</th>'
        for column in plan.columns.values
    )
    body = "".join(
        f'<tr><th scope="row">{_value(row)}{marks.get((row, None), "")}</th>'
        + "".join(
            _cell(done.get((row, column)), framed, top, marks.get((row, column), ""), links=links)
            for column in plan.columns.values
        )
        + "</tr>"
        for row in rows
    )
    names = [one.title for one in (plan.rows, plan.columns) if one]
    label = f"Speed-up by {' and '.join(names[::-1])}"
    return (
        f'{scrolling(label)}<table class="app-heat" aria-label="{text(label)}">'
        f'<thead><tr><th scope="col">{text(" / ".join(names))}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{_listed(points, ''.join(marks.values()))}"
    )


def _rows(plan: Sweep) -> list[Value | None]:
    if plan.rows is None:
        return [None]
    return [*plan.rows.ordered[:: 1 if plan.rows.drafters else -1]]


def spread_chart(plan: Sweep, cells: Sequence[SweepCell], points: Sequence[Point]) -> str:
    """Return a chart of the speed-ups with bars from the lowest to the highest one."""
    known = [cell for cell in cells if cell.speedups]
    if len({cell.column for cell in known}) < 2:
        return ""
    lines, order = list[Any](), plan.columns.ordered
    kind = "markers" if plan.columns.drafters else "lines+markers"
    for i, row in enumerate(plan.rows.values if plan.rows else [None]):
        mine = sorted((c for c in known if c.row == row), key=lambda c: order.index(c.column))
        bars = {
            "array": [c.high - c.mean for c in mine],
            "arrayminus": [c.mean - c.low for c in mine],
            "width": 3,
            "thickness": 1,
        }
        named = plan.rows is not None and row is not None
        title = f"{plan.rows.title} {value_text(row)}" if named else METHODS[plan.method].title
        x, y = [c.column for c in mine], [c.mean for c in mine]
        lines.append(line(STYLES[i % len(STYLES)], title, x, y, mode=kind, error_y=bars))
    papers = [p for p in points if p.field == plan.columns.name and p.value is not None and p.speedup]
    if papers:
        x, y = [p.value or 0 for p in papers], [p.speedup or 0.0 for p in papers]
        sign = {"symbol": "diamond-open", "size": 9}
        hints = {"text": [p.label for p in papers], "hovertemplate": "%{text}<extra></extra>"}
        lines.append(line(PAPER, "papers", x, y, mode="markers", marker=sign, **hints))
    axes = {
        "xaxis": {"title": {"text": plan.columns.title}, "tickvals": [*plan.columns.values]},
        "yaxis": {"rangemode": "tozero", "ticksuffix": "×"},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}],
    }
    label = f"Speed-up over plain decoding by {plan.columns.title}, with the range of samples and passes"
    return figure(lines, label, 300, showlegend=True, **axes)


def page(plan: Sweep, cells: Sequence[SweepCell], points: Sequence[Point], *, drawn: bool = True) -> str:
    """Return heat map and (if `drawn`) chart as a page; it names the runs and needs no server."""
    axes = " and ".join(one.title for one in (plan.columns, plan.rows) if one)
    body = sweep_result(plan, cells, points, drawn=drawn, links=False)
    return app_page(f"{METHODS[plan.method].title}: {axes}", body, drawn="data-figure" in body)


def progress(done: int, total: int, what: str, *more: str) -> str:
    words = " · ".join([f"{done} of {total} {what}", *more])
    return (
        f'<p class="app-note" role="status" data-done="{done}" data-total="{total}">'
        f'<progress max="{total}" value="{done}" aria-label="{what}"></progress> {text(words)}</p>'
    )


def _value(value: Value | None) -> str:
    return "speed-up" if value is None else text(value_text(value))


def _marks(
    plan: Sweep, rows: Sequence[Value | None], points: Sequence[Point]
) -> Mapping[tuple[Value | None, Value | None], str]:
    """Return the marks of the points by (row, column) of the table; None is a heading.

    A point lies at its acceptance rate between two rows; one outside of the map has no mark.
    """
    marks: dict[tuple[Value | None, Value | None], str] = {}
    for number, point in enumerate(points, 1):
        if point.field != plan.columns.name or point.value not in (None, *plan.columns.values):
            continue
        row, shift = _between(rows, point.rate) if point.rate is not None else (None, 0.0)
        if point.rate is not None and row is None:
            continue
        key = (row, None if point.value is None else float(point.value))
        before = marks.get(key, "").count("<i ")
        place = f"--down: {shift * PITCH:.1f}px; --aside: {13 * (before // 2)}px"
        kind = f"app-point{' app-right' if before % 2 else ''}"
        mark = f'<i class="{kind}" style="{place}" title="{text(point.label)}">{number}</i>'
        marks[key] = marks.get(key, "") + mark
    return marks


def _between(rows: Sequence[Value | None], rate: float) -> tuple[float | None, float]:
    """Return the row nearest to a rate, and how many rows below it the rate lies, -0.5 to 0.5."""
    known = [row for row in rows if isinstance(row, int | float)]
    if not known or not min(known) <= rate <= max(known):
        return None, 0.0
    for high, low in zip(known, [*known[1:], known[-1]], strict=True):
        if high == rate:
            return high, 0.0
        if low <= rate < high:
            below = (high - rate) / (high - low)
            return (high, below) if below <= 0.5 else (low, below - 1)
    return None, 0.0


def _listed(points: Sequence[Point], marks: str) -> str:
    if not points:
        return ""
    items = "".join(
        f"<li>{text(point.label)}{'' if f'>{n}</i>' in marks else ' (outside of the map)'}</li>"
        for n, point in enumerate(points, 1)
    )
    return f'<details class="app-points" open><summary>Points of papers</summary><ol>{items}</ol></details>'


def _cell(
    cell: SweepCell | None, framed: Sequence[SweepCell | None], top: float, marks: str, *, links: bool
) -> str:
    if cell is None:
        return f"<td>{marks}</td>"
    if not cell.speedups:
        return f'<td title="{text(cell.error)}">–{marks}</td>'
    mean = cell.mean
    edge = top if mean >= 1 else SLOWEST
    weight = min(1.0, abs(mean - 1) / abs(edge - 1))
    kind = "faster" if mean >= 1 else "slower"
    mark = " app-best" if any(cell is one for one in framed) else ""
    count = sum(map(len, cell.speedups))
    spread = f", {cell.low:.2f} to {cell.high:.2f} in {count} runs" if count > 1 else ""
    range_ = f"{mean:.2f} times as fast as plain decoding{spread}"
    hint = "; ".join(filter(None, (range_, cell.clock)))
    unlinked = "; run ".join(filter(None, (hint, " ".join(cell.runs))))
    number = f"{mean:.2f}×<small>{cell.spread}</small>"
    opened = f"{hint}; open the trace of the first sample"
    body = (
        f'<a href="{run_address(cell.runs)}" title="{text(opened)}">{number}</a>'
        if links
        else f'<span title="{text(unlinked)}">{number}</span>'
    )
    return f'<td class="app-{kind}{mark}" style="--weight:{100 * weight:.0f}%">{body}{marks}</td>'
