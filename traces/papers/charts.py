"""Charts of the papers' page: published and computed numbers as SVG, heat maps as PNG."""

from __future__ import annotations

import math
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from traces.papers.rows import Heat, Row

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000, 250, 56, 16, 14, 26
_FEWEST = 3
"""Rows that make a chart."""
_NUMBERS = 25
"""Most row numbers below a chart."""
_LOG_FROM = 30
"""Ratio of the largest number to the smallest from which on the axis is logarithmic."""


def charted(row: Row) -> bool:
    """Return whether a row is in its item's chart: computed, neither exact nor repeated."""
    return row.ours is not None and row.group not in ("exact", "repeated")


def words(row: Row) -> str:
    """Return a row's kind, and whether it is fitted, easy or missed, for the page's filters."""
    state = (
        "missed" if row.predicted and not row.hit else row.group if row.group in ("fitted", "easy") else ""
    )
    return f"{row.kind} {state}".strip()


def chart(name: str, rows: Sequence[Row]) -> str:
    """Return an SVG with a numbered column for each charted row; nothing for fewer than three."""
    shown = [row for row in rows if charted(row)]
    if len(shown) < _FEWEST:
        return ""
    points = [(row.published, row.ours) for row in shown if row.ours is not None]
    unit = _mixed(points)
    if unit:
        points = [(1.0, ours / published) for published, ours in points if published]
    place, ticks = _scale([n for point in points for n in point if n is not None])
    width = (_WIDTH - _LEFT - _RIGHT) / len(shown)
    lines = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{place(tick):.1f}" y2="{place(tick):.1f}"/>'
        f'<text class="label" x="{_LEFT - 6}" y="{place(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in ticks
    ]
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100) if len(shown) / n <= _NUMBERS)
    lines += [
        f'<text class="label" x="{_LEFT + (i - 0.5) * width:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{i}</text>'
        for i in range(every, len(shown) + 1, every)
    ]
    marks = [
        _mark(row, point, (_LEFT + (i + 0.5) * width, min(5.0, width * 0.42)), place)
        for i, (row, point) in enumerate(zip(shown, points, strict=True))
    ]
    label = escape(f"{name}: {len(shown)} rows, published and computed; the table below has the numbers")
    note = '<p class="muted">Units differ, so the chart has ours over published.</p>' if unit else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}, chart">'
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(lines)}{''.join(marks)}</svg></div>{note}"
    )


def _mixed(points: Sequence[tuple[float | None, float]]) -> bool:
    """Return whether the published numbers, all above 0, differ as much as different units do."""
    published = [number for number, _ in points if number]
    return len(published) == len(points) and min(published) * _LOG_FROM < max(published)


def _mark(
    row: Row, point: tuple[float | None, float], where: tuple[float, float], place: Callable[[float], float]
) -> str:
    """Return a row's two circles and their line, at an abscissa and with a radius."""
    assert row.ours is not None
    (published, ours), (x, radius) = point, where
    printed = "nothing" if row.published is None else f"{row.published:.5g}"
    title = escape(f"{row.row}: published {printed}, ours {row.ours:.5g}")
    state = "missed" if row.predicted and not row.hit else "ours"
    dot = f'<circle class="{state}" cx="{x:.1f}" cy="{place(ours):.1f}" r="{radius * 0.7:.1f}"/>'
    if published is None:
        return f'<g data-is="{words(row)}"><title>{title}</title>{dot}</g>'
    top = place(published)
    return (
        f'<g data-is="{words(row)}"><title>{title}</title><line class="link" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" '
        f'y2="{place(ours):.1f}"/><circle class="published" cx="{x:.1f}" cy="{top:.1f}" r="{radius:.1f}"/>{dot}</g>'
    )


def _scale(numbers: Sequence[float]) -> tuple[Callable[[float], float], list[float]]:
    """Return the height of a number, and the ticks; logarithmic if the numbers differ much."""
    low, high = min(numbers), max(numbers)
    room = _HEIGHT - _TOP - _BOTTOM
    if low > 0 and high / low > _LOG_FROM:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        ticks = [10.0**power for power in range(first, last + 1)]
        return lambda n: _TOP + room * (1 - (math.log10(n) - first) / (last - first)), ticks
    low = min(0.0, low)
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9)))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if (high - low) / (step * part) <= 6)
    bottom, top = step * math.floor(low / step), step * math.ceil(high / step + 1e-9)
    ticks = [round(bottom + i * step, 10) for i in range(round((top - bottom) / step) + 1)]
    return lambda n: _TOP + room * (1 - (n - bottom) / ((top - bottom) or 1)), ticks


def heat_map(heat: Heat) -> str:
    """Return a heat map as a figure: pink below 1, white at 1, blue above, by the logarithm."""
    level = np.clip(np.log2(heat.values.T[::-1]), -2, 2) / 2
    up, down = np.clip(level, 0, 1)[..., None], np.clip(-level, 0, 1)[..., None]
    white, blue, pink = np.array([248, 248, 250]), np.array([0, 84, 150]), np.array([222, 60, 130])
    pixels = (white + up * (blue - white) + down * (pink - white)).astype(np.uint8)
    text = escape(heat.title)
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{b64encode(_png(pixels)).decode()}">'
        f"<figcaption>{text}: {heat.values.min():.2f} to {heat.values.max():.2f}</figcaption></figure>"
    )


def _png(pixels: np.ndarray) -> bytes:
    """Return an RGB picture as PNG."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", header)
        + part(b"IDAT", zlib.compress(rows, 9))
        + part(b"IEND", b"")
    )
