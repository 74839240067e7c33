"""The sweep behind `specscope sweep`: its runner, its result, and the facts of that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from specscope.app.comparison import short_answers
from specscope.app.named import seeded
from specscope.app.notebook.frames import frame
from specscope.app.notebook.shown import figures_table, framed, output
from specscope.app.render.html import text
from specscope.app.render.lab import page
from specscope.engine.methods import find
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.lab.axes import Axis, Value, value_text
from specscope.traces.lab.points import Point
from specscope.traces.lab.sweep import Cell, Job, Runner, Sweep
from specscope.traces.view.settings import models_text

if TYPE_CHECKING:
    import pandas

BASE, ROW, LINE = 165, 46, 17
"""Pixels of a heat map's page without rows, of a row, and of a paper's point below it."""
Decode: TypeAlias = Callable[[Any, str, list[Any], dict[str, Any]], Trace]
"""Takes a cluster, a method's key, prompts, and arguments of `Cluster.run`."""


@dataclass(frozen=True, slots=True, repr=False)
class Swept:
    """The cells of a sweep, and the papers' points beside them."""

    plan: Sweep
    cells: Sequence[Cell]
    points: Sequence[Point] = ()
    warning: str = ""

    @property
    def clock(self) -> str:
        return next((cell.clock for cell in self.cells if cell.clock), "")

    @property
    def models(self) -> str:
        """The models that decoded; of a sweep over drafters the first one's."""
        headers = [run.header for cell in self.cells for run, _ in cell.traces]
        return models_text(headers[0]) if headers and not self.plan.scripted else ""

    @property
    def short_answers(self) -> str:
        plain = [run for cell in self.cells for _, run in cell.traces]
        answers = [len(run.token_ids(i)) for run in plain for i in range(len(run.header.prompt_ids))]
        return short_answers(answers) if answers and not self.plan.scripted else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `specscope sweep`."""
        plan = self.plan
        return {
            "method": plan.method,
            "columns": {"field": plan.columns.name, "values": plan.columns.values},
            "rows": {"field": plan.rows.name, "values": plan.rows.values} if plan.rows else None,
            "config": plan.config,
            "models": self.models or None,
            "clock": self.clock or None,
            "samples": plan.samples,
            "passes": plan.passes,
            "warning": self.warning or None,
            "cells": [facts(cell) for cell in self.cells],
            "points": [
                {"value": p.value, "acceptance_rate": p.rate, "speedup": p.speedup, "source": p.label}
                for p in self.points
            ],
        }

    def frame(self) -> pandas.DataFrame:
        """Return a row per cell; docs/notebook.md has the columns."""
        plan, given = self.plan, ("speedup", "low", "high", "runs", "error")
        axes = [plan.columns.name, *([plan.rows.name] if plan.rows else [])]
        rows = list[list[Any]]()
        for cell in self.cells:
            found = facts(cell)
            place = [cell.column, *([cell.row] if plan.rows else [])]
            rows.append([*place, *(found[name] for name in given)])
        return frame([*axes, *given], rows)

    def __repr__(self) -> str:
        return f"Swept({self.line})"

    @property
    def line(self) -> str:
        plan = self.plan
        axes = " and ".join(one.title for one in (plan.columns, plan.rows) if one)
        facts = [
            f"{find(plan.method).title} over {axes}",
            f"{len(self.cells)} cells",
            self.models,
            self.clock,
        ]
        return " · ".join(filter(None, facts))

    def _repr_html_(self) -> str:
        plan = self.plan
        rows = plan.rows.values if plan.rows else (None,)
        head = [" / ".join(one.title for one in (plan.rows, plan.columns) if one)]
        head += [value_text(column) for column in plan.columns.values]
        cells = [["speed-up" if row is None else value_text(row), *self._texts(row)] for row in rows]
        notes = [f"<p>{text(note)}</p>" for note in (self.warning, self.short_answers) if note]
        height = BASE + ROW * len(rows) + LINE * len(self.points)
        table = figures_table(head, cells)
        return output(
            self.line,
            "",
            *notes,
            framed(page(plan, self.cells, self.points, drawn=False), self.line, table, height),
        )

    def _texts(self, row: Value | None) -> list[str]:
        mine = [cell for cell in self.cells if cell.row == row]
        return [f"{cell.mean:.2f}×" if cell.speedups else "–" for cell in mine]


def facts(cell: Cell) -> dict[str, Any]:
    known = bool(cell.speedups)
    return {
        "column": cell.column,
        "row": cell.row,
        "speedup": cell.mean if known else None,
        "low": cell.low if known else None,
        "high": cell.high if known else None,
        "speedups": cell.speedups,
        "runs": [name.split("~") for name in cell.runs],
        "error": cell.error or None,
    }


def in_order(axes: Sequence[Axis]) -> tuple[Axis, Axis | None]:
    """Return the columns and the rows; rates and drafters are the rows of a field."""
    columns, *more = sorted(axes, key=lambda one: one.scripted or one.drafters)
    return columns, more[0] if more else None


def decoder(
    plan: Sweep,
    prompts: Sequence[Any],
    sampling: Sampling,
    limits: Limits,
    opened: Callable[[str], Any],
    decode: Decode,
    stack: contextlib.ExitStack,
) -> Runner:
    """Return a runner whose models are open with one drafter at a time, until the stack ends.

    `opened` opens a cluster with a drafter of `specscope.traces.lab.axes`.
    """
    models, clusters = stack.enter_context(contextlib.ExitStack()), dict[str, Any]()
    batched = find(plan.method).batched

    def cluster(drafter: str) -> Any:
        if drafter not in clusters:
            models.close()
            clusters.clear()
            clusters[drafter] = models.enter_context(opened(drafter))
        return clusters[drafter]

    def run(job: Job) -> Trace:
        mine = list(prompts) if batched else [prompts[job.sample]]
        given = {"config": job.config, "sampling": seeded(sampling, job.sample), "limits": limits}
        return decode(cluster(job.drafter), job.method, mine, {**given, "group": job.group})

    cluster(plan.job(*plan.places[0]).drafter)
    return run
