"""Line charts as one SVG file, readable on light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any, NamedTuple

_COLOURS = ("#2f6fde", "#d9541e", "#1f9d61", "#b03a9b", "#b8860b", "#00808a", "#7a5af5", "#d1335b", "#5f6b7a")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _KEY = 460, 280, 52, 34, 40, 96
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.t{font-weight:600;font-size:13px}"
    ".g{stroke:#8884;stroke-width:1}path{fill:none;stroke-width:1.8}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


class PlotLine(NamedTuple):
    """One curve."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One diagram."""

    title: str
    x: str
    lines: Sequence[PlotLine]


def draw(panels: Sequence[Panel], columns: int = 0) -> str:
    """Return the diagrams as SVG; a panel without points stays empty."""
    columns = columns or len(panels)
    longest = max((len(line.name) for panel in panels for line in panel.lines), default=0)
    each = _WIDTH + max(_KEY, 40 + 7 * longest)
    width, height, body = columns * each, ceil(len(panels) / columns) * _HEIGHT, list[str]()
    for i, panel in enumerate(panels):
        place = f"{i % columns * each},{i // columns * _HEIGHT}"
        body.append(f'<g transform="translate({place})">{_panel(panel)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<style>{_STYLE}</style>{''.join(body)}</svg>\n"
    )


def _panel(panel: Panel) -> str:
    points = [point for line in panel.lines for point in line.points]
    head = f'<text class="t" x="{_LEFT}" y="18">{escape(panel.title)}</text>'
    if not points:
        return head
    x_ticks, y_ticks = (ticks([float(p[axis]) for p in points]) for axis in (0, 1))

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (point[1] - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _BOTTOM - _TOP)

    parts = [head]
    for tick in y_ticks:
        _, y = place((x_ticks[0], tick))
        parts.append(f'<line class="g" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x, _ = place((tick, y_ticks[0]))
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{_WIDTH}" y="{_HEIGHT - 6}" text-anchor="end">{escape(panel.x)}</text>')
    for i, line in enumerate(panel.lines):
        colour = _COLOURS[i % len(_COLOURS)]
        line_path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, line.points))
        parts.append(f'<path stroke="{colour}" d="M{line_path}"/>')
        parts.append(f'<path stroke="{colour}" d="M{_WIDTH + 8},{_TOP + 8 + 18 * i}h14"/>')
        parts.append(f'<text x="{_WIDTH + 26}" y="{_TOP + 12 + 18 * i}">{escape(line.name)}</text>')
    return "".join(parts)


def ticks(values: Sequence[float]) -> list[float]:
    """Return four to ten round numbers around the values."""
    low, high = min(values), max(values)
    rough: Any = (high - low or abs(high) or 1.0) / 5
    unit = 10.0 ** floor(log10(rough))
    step = unit * next(m for m in (1, 2, 5, 10) if m * unit >= rough)
    first, last = floor(low / step), max(floor(low / step) + 1, ceil(high / step))
    return [round(i * step, 10) for i in range(first, last + 1)]
