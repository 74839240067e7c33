"""The page of `specscope papers -o`: all rows and charts in one HTML file without requests."""

from __future__ import annotations

import math
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import get_args

import numpy as np

from specscope.engine.plot import ticks
from specscope.traces.export.assets import file_page, page_asset
from specscope.traces.papers.rows import WITHIN, Heat, Kind, Paper, PaperRow, anchor
from specscope.traces.papers.summary import RowCounts
from specscope.traces.papers.trust_table import trust_table

_FILTERS = {kind: kind for kind in get_args(Kind)} | {
    "fitted": "fitted",
    "easy": "can hardly miss",
    "missed": f"off by more than {WITHIN:.0%}",
}
_STATES = {"fitted": "fitted", "easy": "can hardly miss"}
_KEY = (
    '<p class="key"><span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="published" cx="6" cy="6" r="5"/>'
    '</svg>published</span><span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="ours" cx="6" cy="6" r="4"/>'
    '</svg>ours</span><span><svg viewBox="0 0 12 12" aria-hidden="true"><circle class="missed" cx="6" cy="6" r="4"/>'
    f"</svg>ours, predicted, and off by more than {WITHIN:.0%}</span></p>"
)


def render_page(papers: Sequence[Paper], rows: Sequence[PaperRow]) -> str:
    return file_page("The papers, row by row", render_body(papers, rows), page_asset("papers/papers.css"))


def render_body(papers: Sequence[Paper], rows: Sequence[PaperRow]) -> str:
    """Return the page's content as HTML; its filters need `assets/papers/papers.css`, no script."""
    summary = RowCounts.of(rows)
    tiles = "".join(f'<div class="tile"><b>{n}</b>{text}</div>' for n, text in summary.tiles())
    parts = [
        trust_table(papers, rows),
        f'<h2>All rows</h2><p class="muted">{escape(_INTRODUCTION)}</p><div class="tiles">{tiles}</div>',
        f'<p class="muted">{escape(summary.remark())}</p>' if summary.largest else "",
        _filters(papers),
        _KEY,
        *(_paper(paper, [row for row in rows if row.paper == paper.key]) for paper in papers),
    ]
    return f'<div class="papers">{"".join(parts)}</div>'


def _filters(papers: Sequence[Paper]) -> str:
    titles = {paper.key: paper.name for paper in papers}
    rules = [
        f'.papers:has([name="papers-paper"][value="{key}"]:checked) .paper:not([data-paper="{key}"])'
        for key in titles
    ]
    for kind in _FILTERS:
        chosen, has = f'.papers:has([name="papers-kind"][value="{kind}"]:checked)', f'[data-is*="{kind}"]'
        rules += [
            f"{chosen} :is(.item, .paper):not(:has({has}))",
            f"{chosen} [data-is]:not({has})",
            f"{chosen} .chart:not(:has({has}))",
        ]
    one = _choice("Paper", titles) if len(titles) > 1 else ""
    return f"<style>{','.join(rules)}{{display:none}}</style>{one}{_choice('Rows', _FILTERS, 'kind')}"


def _choice(legend: str, values: Mapping[str, str], name: str = "") -> str:
    boxes = "".join(
        f'<label><input type="radio" name="papers-{name or legend.lower()}" value="{escape(value)}"'
        f"{'' if value else ' checked'}>{escape(title)}</label>"
        for value, title in {"": "all", **values}.items()
    )
    return f"<fieldset><legend>{legend}</legend>{boxes}</fieldset>"


_INTRODUCTION = (
    "Each number of the papers that can be computed, beside the computed one. A parameter without a source is fitted "
    "once, on rows that are marked. Numbers that repeat the print, and predictions that can hardly miss, count apart; all "
    "other computed rows are predictions. Rows beyond the limit have their reason."
)


def _paper(paper: Paper, rows: Sequence[PaperRow]) -> str:
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in paper.inconsistencies)
    parts = [
        f"<h2>{escape(paper.title)}</h2>",
        f'<p class="muted">{escape(RowCounts.of(rows).sentence())}.</p>',
        f"<details><summary>Numbers of the paper that contradict each other</summary><ul>{sentences}</ul></details>",
    ]
    for item, group in groupby(rows, lambda row: row.item):
        parts.append(_item(paper, item, list(group)))
    return f'<section class="paper" data-paper="{paper.key}">{"".join(parts)}</section>'


def _item(paper: Paper, item: str, rows: Sequence[PaperRow]) -> str:
    summary, name = RowCounts.of(rows), escape(item)
    n = summary.counts
    counts = [
        f"{summary.exact_equal} of {n['exact']} exact" if n["exact"] else "",
        f"{summary.within} of {n['predicted']} predicted within {WITHIN:.0%}" if n["predicted"] else "",
        f"{n['easy']} can hardly miss" if n["easy"] else "",
        f"{n['repeated']} repeat the print" if n["repeated"] else "",
        f"{n['published only']} as published" if n["published only"] else "",
    ]
    about = ", ".join(filter(None, counts)) or "no published number"
    heats = "".join(map(heat_map, paper.maps[item]())) if item in paper.maps else ""
    maps = (
        f'<div class="maps">{heats}</div><p class="muted">Across: drafter latency from 0.01 to 1 target forwards. '
        "Up: acceptance rate from 0 to 1. White is 1, blue is faster (darkest from 4), pink is slower.</p>"
        if heats
        else ""
    )
    missed = n["predicted"] - summary.within
    badge = f' <span class="bad">{missed} missed</span>' if missed else ""
    return (
        f'<details class="item"><summary><h3>{name}</h3> <span class="muted">{about}</span>{badge}</summary>'
        f'<div id="{anchor(paper.key, item)}">{maps}{chart(f"{paper.key}, {item}", rows)}'
        f'<div class="scroll rows" tabindex="0" role="region" aria-label="{escape(paper.key)}, {name}">{_table(rows)}</div>'
        f"{_assumptions(name, rows)}</div></details>"
    )


def _table(rows: Sequence[PaperRow]) -> str:
    head = '<th class="number">in chart</th><th>row</th><th class="number">published</th><th class="number">ours</th><th class="number">difference</th><th>kind</th>'
    numbers = iter(range(1, len(rows) + 1))
    lines = [_line(row, str(next(numbers)) if charted(row) else "") for row in rows]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _line(row: PaperRow, number: str) -> str:
    missed = " bad" if row.missed else ""
    difference = "" if row.difference is None else f"{row.difference:+.1%}"
    kind = f"{row.kind}, {_STATES[row.group]}" if row.group in _STATES else row.kind
    return (
        f'<tr data-is="{words(row)}"><td class="number">{number}</td><td>{escape(row.row)}</td><td class="number">{_number(row.published)}</td>'
        f'<td class="number">{_number(row.ours)}</td><td class="number{missed}">{difference}</td><td>{kind}</td></tr>'
    )


def _assumptions(name: str, rows: Sequence[PaperRow]) -> str:
    texts = dict.fromkeys(str(row.to_dict()["assumption"]) for row in rows)
    lines = "".join(f"<li>{escape(text)}</li>" for text in texts if text)
    return f"<details><summary>{name}: assumptions and reasons</summary><ul>{lines}</ul></details>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000, 250, 56, 16, 14, 26
_FEWEST = 3
_NUMBERS = 25
_LOG_FROM = 30
"""Ratio of the largest number to the smallest from which on the axis is logarithmic."""


def charted(row: PaperRow) -> bool:
    """Return whether a row is in its item's chart: computed, neither exact nor repeated."""
    return row.ours is not None and row.group not in ("exact", "repeated")


def words(row: PaperRow) -> str:
    """Return a row's kind, and whether it is fitted, easy or missed, for the page's filters."""
    state = "missed" if row.missed else row.group if row.group in _STATES else ""
    return f"{row.kind} {state}".strip()


def chart(name: str, rows: Sequence[PaperRow]) -> str:
    """Return an SVG with a numbered column for each charted row; nothing for fewer than three."""
    shown = [row for row in rows if charted(row)]
    if len(shown) < _FEWEST:
        return ""
    points = [(row.published, row.ours) for row in shown if row.ours is not None]
    unit = _mixed(points)
    if unit:
        points = [(1.0, ours / published) for published, ours in points if published]
    place, marks_at = _scale([n for point in points for n in point if n is not None])
    width = (_WIDTH - _LEFT - _RIGHT) / len(shown)
    lines = [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{place(tick):.1f}" y2="{place(tick):.1f}"/>'
        f'<text class="label" x="{_LEFT - 6}" y="{place(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in marks_at
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
    row: PaperRow,
    point: tuple[float | None, float],
    where: tuple[float, float],
    place: Callable[[float], float],
) -> str:
    assert row.ours is not None
    (published, ours), (x, radius) = point, where
    printed = "nothing" if row.published is None else f"{row.published:.5g}"
    title = escape(f"{row.row}: published {printed}, ours {row.ours:.5g}")
    state = "missed" if row.missed else "ours"
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
    height = _HEIGHT - _TOP - _BOTTOM
    if low > 0 and high / low > _LOG_FROM:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        powers = [10.0**power for power in range(first, last + 1)]
        return lambda n: _TOP + height * (1 - (math.log10(n) - first) / (last - first)), powers
    marks = ticks([min(0.0, low), high])
    return lambda n: _TOP + height * (1 - (n - marks[0]) / (marks[-1] - marks[0])), marks


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
