"""The map of the fastest methods as SVG, and as a page with all numbers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil
from textwrap import wrap
from typing import Any

from specscope.app.render.html import app_page, run_address, scrolling, text
from specscope.app.render.table import Column, Table
from specscope.traces.lab.plan import MapPlan, assumptions
from specscope.traces.lab.winners import EQUAL, VALUES, Result, Winner, winner

COLOURS = ("#4d5866", "#0b62b0", "#0f7a4f", "#8f3f71", "#a4480c", "#6a51c0", "#00666e")
"""White text on each has a contrast of more than 4.5."""
_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP, _GAP, _LEAST = 88, 34, 46, 54, 26, 380
_LINE = 6.2
"""Width of a letter of a line, about."""
_STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#333}.t{font-weight:600;font-size:13px}"
    ".c text{fill:#fff;font-size:10px}.c .n{font-weight:600;font-size:11.5px}"
    "@media(prefers-color-scheme:dark){.l{fill:#ddd}}"
)


def map_svg(plan: MapPlan, results: Sequence[Result], by: str = "runs", columns: int = 2) -> str:
    """Return a panel for each number of devices: a cell per acceptance rate and c.

    A cell has the fastest method's colour, name and speed-up, its lead over the second method, and
    the devices that it uses; `by` is one of `VALUES`. Below are the assumptions.
    """
    width = max(_LEAST, _LEFT + _CELL_WIDTH * len(plan.ratios) + _GAP)
    height = _TOP + _CELL_HEIGHT * len(plan.rates) + _GAP
    rows = ceil(len(plan.devices) / columns)
    panels = [
        f'<g transform="translate({i % columns * width},{i // columns * height})">'
        f"{_panel(plan, results, devices, by)}</g>"
        for i, devices in enumerate(plan.devices)
    ]
    total, down = max(2 * _LEAST, width * min(columns, len(plan.devices))), height * rows
    lines = wrap(" ".join(assumptions(plan)), int((total - 2 * _LEFT) / (0.87 * _LINE)))
    words = [
        f'<text class="l" x="{_LEFT}" y="{down + 36 + 15 * i}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    ]
    tall = down + 34 + 15 * len(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {tall}" width="{total}" '
        f'height="{tall}" role="img" aria-label="Fastest method by acceptance rate and drafter speed: {by}">'
        f"<style>{_STYLE}</style>{''.join(panels)}{_key(plan, down + 6)}{''.join(words)}</svg>\n"
    )


def _panel(plan: MapPlan, results: Sequence[Result], devices: int, by: str) -> str:
    parts = [
        f'<text class="t l" x="{_LEFT}" y="16">Up to {devices} devices{_target(plan)}: fastest, {by}</text>',
        f'<text class="l" x="{_LEFT}" y="32">across: c = T(target) / T(drafter); down: acceptance rate</text>',
    ]
    parts += [
        f'<text class="l" x="{_LEFT + (i + 0.5) * _CELL_WIDTH}" y="{_TOP - 6}" text-anchor="middle">{ratio}</text>'
        for i, ratio in enumerate(plan.ratios)
    ]
    rates = sorted(plan.rates, reverse=True)
    for j, rate in enumerate(rates):
        y = _TOP + j * _CELL_HEIGHT
        parts.append(f'<text class="l" x="{_LEFT - 8}" y="{y + 21}" text-anchor="end">{rate:g}</text>')
        parts += [
            _cell(plan, winner(results, ratio, rate, devices, by), _LEFT + i * _CELL_WIDTH, y)
            for i, ratio in enumerate(plan.ratios)
        ]
    return "".join(parts)


def _target(plan: MapPlan) -> str:
    return f", {plan.target_devices} for a target" if plan.target_devices > 1 else ""


def _cell(plan: MapPlan, found: Winner | None, x: int, y: int) -> str:
    if found is None:
        return f'<text class="l" x="{x + _CELL_WIDTH / 2}" y="{y + 21}" text-anchor="middle">–</text>'
    keys = [entrant.key for entrant in plan.methods]
    best, entrant = found.best, plan.methods[keys.index(found.best.key)]
    over = f", {found.lead:+.0%} over {found.second.key}" if found.second else ""
    if found.leads:
        over += f" ({min(found.leads):+.0%} to {max(found.leads):+.0%} by run)"
    hint = f"c {best.c}, acceptance {best.rate:g}: {best.key} {spread_text(best)}{over}; {best.devices} devices; closed form {best.form:.2f}×"
    middle = x + _CELL_WIDTH / 2
    second = plan.methods[keys.index(found.second.key)].short if found.second else ""
    lead = f"{found.lead:+.0%} · " if found.clear else f"≈ {second} · " if second else ""
    return (
        f'<g class="c"><title>{escape(hint)}</title><rect x="{x}" y="{y}" width="{_CELL_WIDTH - 2}" '
        f'height="{_CELL_HEIGHT - 2}" rx="4" fill="{COLOURS[keys.index(best.key) % len(COLOURS)]}"/>'
        f'<text class="n" x="{middle}" y="{y + 14}" text-anchor="middle">{escape(entrant.short)} {found.value:.2f}×</text>'
        f'<text x="{middle}" y="{y + 26}" text-anchor="middle">{escape(lead)}{best.devices} dev.</text></g>'
    )


def _key(plan: MapPlan, y: int) -> str:
    parts, x = list[str](), _LEFT
    for entrant, colour in zip(plan.methods, COLOURS, strict=False):
        words = entrant.title if entrant.title == entrant.short else f"{entrant.short}: {entrant.title}"
        parts.append(
            f'<rect x="{x}" y="{y}" width="12" height="12" rx="3" fill="{colour}"/>'
            f'<text class="l" x="{x + 17}" y="{y + 10}">{escape(words)}</text>'
        )
        x += 34 + round(_LINE * len(words))
    parts.append(
        f'<text class="l" x="{x}" y="{y + 10}">+5%: lead over the second; ≈: less than {EQUAL:.0%}, or not by every run</text>'
    )
    return "".join(parts)


def spread_text(one: Result) -> str:
    """Return the mean speed-up, with the lowest and the highest one of several runs."""
    ranged = f" ({min(one.speedups):.2f} to {max(one.speedups):.2f})" if len(one.speedups) > 1 else ""
    return f"{one.speedup:.2f}×{ranged}"


PLACE = (Column("c", "c"), Column("rate", "acceptance", "g"))
COLUMNS = (
    Column("key", "method"),
    Column("devices", "devices"),
    Column("spread", "speed-up"),
    Column("form", "closed form", ".2f"),
    Column("each", "per device", ".2f"),
    Column("settings", "settings"),
)


def _row(one: Result) -> dict[str, Any]:
    settings = ", ".join(f"{name} {value:g}" for name, value in one.config.items())
    figures = {"form": one.form or None, "each": one.speedup / one.devices}
    return {**one.facts(), **figures, "spread": spread_text(one), "settings": settings}


def map_html(plan: MapPlan, results: Sequence[Result], by: str) -> str:
    return f"{scrolling(f'Fastest method: {by}')}{map_svg(plan, results, by)}</div>"


def race_html(results: Sequence[Result]) -> str:
    """Return the results of a place, the fastest first, with links to their traces."""
    ranked = sorted(results, key=lambda one: one.speedup, reverse=True)
    links = [
        f'<a href="{run_address([t.header.run_id for t in one.traces])}">{text(one.key)}</a>'
        for one in ranked
    ]
    return Table(COLUMNS, [*map(_row, ranked)]).html("Race at this place", links)


def page(plan: MapPlan, results: Sequence[Result]) -> str:
    """Return both maps and all numbers as a page of its own, which needs no server."""
    maps = "".join(map_html(plan, results, by) for by in VALUES)
    body = f"{maps}{Table([*PLACE, *COLUMNS], [*map(_row, results)]).html('All results')}"
    return app_page(f"Which method is the fastest · virtual · {plan.profile}", body)
