"""Draw the rooms and their imports, from the code: `python -m tests.docs.picture` writes the SVG.

The rows are the rooms of `tests/engine/test_rooms.py`, the highest first, with the first sentence
of each package's docstring. Arrows are imports, without those that follow from other arrows.
"""

from __future__ import annotations

import ast
from html import escape
from itertools import takewhile
from pathlib import Path

from tests.engine.test_rooms import ROOMS, graph

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"


def grounds(package: str) -> list[str]:
    """Return the modules of a package below all of its folders."""
    return list(takewhile(lambda room: not (ROOT / package / room).is_dir(), ROOMS[package].split()))


def rows_of(package: str) -> list[str]:
    ground = grounds(package)
    above = [f"{package}/{room}" for room in reversed(ROOMS[package].split()) if room not in ground]
    return [*above, package] if ground else above


ROWS = [row for package in ("app", "traces", "engine") for row in rows_of(package)]
"""From top to bottom; the row of a package's name is the modules below its folders."""
WIDTH, HEIGHT, GAP, LANE, LEFT = 1040, 28, 8, 11, 190
"""Of the picture and a box; between boxes, between lanes of arrows, left of the boxes (pixels)."""
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1d2433 }
  .name { font-weight: 650 }
  .box { fill: #fbfcfe; stroke: #c9d0db }
  .app { fill: #e69f00 } .traces { fill: #009e73 } .engine { fill: #0072b2 }
  .arrow { fill: none; stroke: #5b6579; stroke-width: 1.3; marker-end: url(#head) }
  .head { fill: #5b6579 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9f0 }
    .box { fill: #111827; stroke: #33415e }
    .arrow { stroke: #9aa4b5 } .head { fill: #9aa4b5 }
  }
"""


def row_of(module: str) -> str:
    """Return the row of a module."""
    package, room, *_ = *module.split("."), ""
    return f"{package}/{room}" if f"{package}/{room}" in ROWS else package


def arrows() -> list[tuple[str, str]]:
    """Return the imports between rows as (upper, lower), without those that follow from others."""
    direct: dict[str, set[str]] = {name: set() for name in ROWS}
    for module, imported in filter(lambda item: "." in item[0], graph().items()):
        direct[row_of(module)] |= {row_of(other) for other in imported} - {row_of(module)}
    below: dict[str, set[str]] = {}
    for name in reversed(ROWS):  # the lowest first, so that `below` is known for all imports
        below[name] = set().union(*(below[other] | {other} for other in direct[name]))
    implied = {name: set().union(*(below[other] for other in direct[name])) for name in ROWS}
    return [(name, other) for name in ROWS for other in ROWS if other in direct[name] - implied[name]]


def purpose(name: str) -> str:
    """Return the first sentence of a room's docstring; for a package, the modules below."""
    if "/" not in name:
        return f"{', '.join(grounds(name))}."
    file = ROOT / name / "__init__.py" if (ROOT / name).is_dir() else ROOT / f"{name}.py"
    doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return doc.splitlines()[0].split(". ")[0].rstrip(".") + "."


def lanes(edges: list[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return a lane for each arrow, the short ones first; arrows in one lane do not overlap."""
    chosen: dict[tuple[str, str], int] = {}
    for edge in sorted(edges, key=lambda e: (ROWS.index(e[1]) - ROWS.index(e[0]), ROWS.index(e[0]))):
        top, bottom = map(ROWS.index, edge)
        taken = {
            lane
            for other, lane in chosen.items()
            if ROWS.index(other[0]) < bottom and top < ROWS.index(other[1])
        }
        chosen[edge] = min(set(range(len(edges))) - taken)
    return chosen


def draw() -> str:
    """Return the picture as SVG."""
    height = len(ROWS) * (HEIGHT + GAP) + GAP
    boxes, lines = [], []
    for i, name in enumerate(ROWS):
        y, kind = GAP + i * (HEIGHT + GAP), name.partition("/")[0]
        boxes += [
            f'<rect class="box" x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 1}" height="{HEIGHT}" rx="5"/>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="5" height="{HEIGHT}" rx="2"/>',
            f'<text class="name" x="{LEFT + 16}" y="{y + 19}">{name}</text>',
            f'<text x="{LEFT + 170}" y="{y + 19}">{escape(purpose(name))}</text>',
        ]
    for (upper, lower), lane in lanes(arrows()).items():
        start = GAP + ROWS.index(upper) * (HEIGHT + GAP) + HEIGHT * 0.7
        end = GAP + ROWS.index(lower) * (HEIGHT + GAP) + HEIGHT * 0.3
        x = LEFT - 14 - lane * LANE
        lines.append(
            f'<path class="arrow" d="M{LEFT} {start:.0f}H{x + 5}Q{x} {start:.0f} {x} {start + 5:.0f}'
            f'V{end - 5:.0f}Q{x} {end:.0f} {x + 5} {end:.0f}H{LEFT - 2}"/>'
        )
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="head" d="M0 0 8 4 0 8z"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>The rooms of the code and their imports</title>\n<style>{STYLE}</style>\n"
        f"<defs>{head}</defs>\n" + "\n".join([*lines, *boxes]) + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
