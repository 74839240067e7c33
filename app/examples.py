"""The finished examples of the Lab and of the Load tab.

`python -m specscope.app.examples` makes them again. `assets/examples/lab.json` and `load.json` have
the settings with which the tabs open, and what a press of their button gives. Both are of virtual
clusters, so every machine gets the same figures.
They are files because making them takes a minute.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from specscope.app.loaded import Line, result_of
from specscope.app.render.html import badge, text
from specscope.app.render.lab import load_result, sweep_result
from specscope.app.tabs.experiments import LoadSettings, SweepSettings, load_plan, serve
from specscope.engine.methods import METHODS
from specscope.traces.lab.axes import axis
from specscope.traces.lab.points import points_of
from specscope.traces.lab.sweep import Cell, Scripted, Sweep, sweep

FOLDER = Path(__file__).parents[1] / "assets" / "examples"


def lab_settings() -> SweepSettings:
    return SweepSettings(**_read("lab")["settings"])


def load_settings() -> LoadSettings:
    return LoadSettings(**_read("load")["settings"])


def lab_example() -> str:
    """Return heat map and chart of the Lab's example; its cells have no traces to open."""
    found, given = _read("lab"), lab_settings()
    plan = _plan(given)
    cells = [Cell(row, column, tuple(map(tuple, speeds)), ()) for row, column, speeds in found["cells"]]
    points = points_of(plan, given.profile, given.pair)
    return _marked("Sweep", found["clock"]) + sweep_result(plan, cells, points, drawn=True, links=False)


def load_example() -> str:
    """Return verdicts, charts and table of the Load tab's example; its runs cannot be opened."""
    return _marked("Serve") + load_result(_read("load")["result"], links=False)


def _read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _marked(button: str, clock: str = "") -> str:
    source = badge(clock) if clock else ""
    line = text(
        f"A finished example with the settings above. {button} runs it here, and then its traces open."
    )
    return f'<p class="app-note" data-state="example">{badge("example", "warn")} {source} {line}</p>'


def _plan(given: SweepSettings) -> Sweep:
    method = METHODS[given.method]
    columns, rows = axis(method, given.field, given.values), axis(method, given.rows, given.row_values)
    return Sweep(given.method, columns, rows, samples=int(given.seeds or 1))


def _make_lab() -> dict[str, Any]:
    given = lab_settings()
    run = Scripted(given.profile, given.pair, int(given.tokens or 0))
    cells = list(sweep(_plan(given), run))
    return {
        "settings": given._asdict(),
        "clock": cells[0].clock,
        "cells": [[cell.row, cell.column, cell.speedups] for cell in cells],
    }


def _make_load() -> dict[str, Any]:
    from specscope.app.service import Service

    given, service = load_settings(), Service(None)
    plan, cells = load_plan(given), dict[Line, dict[int, Any]]()
    try:
        for cell, _, trace in serve(plan, service, threading.Event()):
            if trace is not None:
                cells.setdefault(cell.line, {})[cell.batch] = trace
    finally:
        service.close()
    return {"settings": given._asdict(), "result": result_of(cells, {}, plan.ttft_ms, plan.tpot_ms, "")}


def record() -> None:
    for name, make in (("lab", _make_lab), ("load", _make_load)):
        file = FOLDER / f"{name}.json"
        file.write_text(json.dumps(make(), indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{file.name}: {file.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    record()
