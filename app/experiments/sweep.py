"""The sweep of `specscope sweep`, `specscope.sweep` and the Lab: plan, cells and result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from specscope.app.experiments.compare import short_answers
from specscope.app.named import seeded
from specscope.app.render.html import text
from specscope.app.render.lab import page
from specscope.app.render.shown import framed, output
from specscope.app.render.table import Column, Table, frame
from specscope.engine.errors import UsageError
from specscope.engine.methods import find
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.facts.settings import models_text
from specscope.traces.lab.axes import Axis, axis, check_axis, value_text
from specscope.traces.lab.points import Point
from specscope.traces.lab.sweep import Runner, ScriptedRunner, Sweep, SweepCell, SweepRun

if TYPE_CHECKING:
    import pandas

BASE, ROW, LINE = 165, 46, 17
"""Pixels of a heat map's page without rows, of a row, and of a paper's point below it."""
Decode: TypeAlias = Callable[[Any, str, list[Any], dict[str, Any]], Trace]
"""Takes a cluster, a method's key, prompts, and arguments of `Cluster.run`."""
Over: TypeAlias = Iterable[tuple[str, "str | Sequence[Any]"]]
"""(field, values) of each axis: a list, or a text as the command line has it."""


def axes_of(method: str, over: Over) -> list[Axis]:
    """Return the checked axes: the columns, then perhaps the rows, which rates and drafters are."""
    known, axes = find(method), list[Axis]()
    for name, values in over:
        if isinstance(values, str):
            axes.append(axis(known, name, values))
        else:
            axes.append(Axis(name, tuple(values)))
            check_axis(known, axes[-1])
    if not 1 <= len(axes) <= 2:
        raise UsageError(f"the sweep is over {len(axes)} fields; choose one or two")
    return sorted(axes, key=lambda one: one.scripted or one.drafters)


def plan_of(
    method: str,
    axes: Sequence[Axis],
    config: Mapping[str, Any],
    prompts: int,
    *,
    measured: bool,
    passes: int | None = None,
    seeds: int = 2,
) -> Sweep:
    """Return the checked sweep of a method."""
    columns, rows = (*axes, None)[:2]
    assert columns is not None
    rates = any(one.scripted for one in axes)
    samples = seeds if rates else 1 if find(method).batched else prompts
    passes = passes if passes is not None else 2 if measured else 1
    plan = Sweep(method, columns, rows, config, samples, passes, measured)
    plan.check()
    return plan


def scripted(plan: Sweep, profile: str, pair: str | None, tokens: int) -> Runner:
    """Return a runner of drafts that are right at a rate; no model decodes."""
    runner = ScriptedRunner(profile, pair or "", tokens)
    runner.check(plan.samples)
    return runner


def decoder(
    plan: Sweep,
    prompts: Sequence[Any],
    sampling: Sampling,
    limits: Limits,
    opened: Callable[[str], AbstractContextManager[Any]],
    decode: Decode,
    stack: ExitStack,
) -> Runner:
    """Return a runner whose models are open with one drafter at a time, until the stack ends.

    `opened` opens a cluster with a drafter of `specscope.traces.lab.axes`.
    """
    models, clusters = stack.enter_context(ExitStack()), dict[str, Any]()
    batched = find(plan.method).batched

    def cluster(drafter: str) -> Any:
        if drafter not in clusters:
            models.close()
            clusters.clear()
            clusters[drafter] = models.enter_context(opened(drafter))
        return clusters[drafter]

    def run(job: SweepRun) -> Trace:
        mine = list(prompts) if batched else [prompts[job.sample]]
        given = {"config": job.config, "sampling": seeded(sampling, job.sample), "limits": limits}
        return decode(cluster(job.drafter), job.method, mine, {**given, "group": job.group})

    cluster(plan.job(*plan.places[0]).drafter)
    return run


@dataclass(frozen=True, slots=True, repr=False)
class Swept:
    """The cells of a sweep, and the papers' points beside them."""

    plan: Sweep
    cells: Sequence[SweepCell]
    points: Sequence[Point] = ()
    warning: str = ""

    def __post_init__(self) -> None:
        if not any(cell.speedups for cell in self.cells):
            raise UsageError(f"no cell has a speed-up: {self.cells[0].error}")

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
            "cells": [cell.facts() for cell in self.cells],
            "points": [
                {"value": p.value, "acceptance_rate": p.rate, "speedup": p.speedup, "source": p.label}
                for p in self.points
            ],
        }

    def frame(self) -> pandas.DataFrame:
        """Return a row per cell; docs/notebook.md has the columns."""
        axes = {"column": self.plan.columns.name, **({"row": self.plan.rows.name} if self.plan.rows else {})}
        names = (*axes, "speedup", "low", "high", "runs", "error")
        rows = [[cell.facts()[name] for name in names] for cell in self.cells]
        return frame([axes.get(name, name) for name in names], rows)

    def table(self, *, spread: bool) -> Table:
        """Return the speed-ups, a row for each value of the second axis."""
        plan = self.plan
        corner = " / ".join(one.title for one in (plan.rows, plan.columns) if one)
        columns = [Column("", corner, width=-24)]
        columns += [Column(str(v), value_text(v), width=20) for v in plan.columns.values]
        rows = dict[Any, dict[str, Any]]()
        for cell in self.cells:
            row = rows.setdefault(cell.row, {column.name: None for column in columns})
            row[""] = "speed-up" if cell.row is None else value_text(cell.row)
            if cell.speedups:
                row[str(cell.column)] = f"{cell.mean:.2f}×{f' {cell.spread}' if spread else ''}"
        return Table(columns, [*rows.values()])

    def lines(self) -> Iterable[str]:
        """Yield what `specscope sweep` prints."""
        plan = self.plan
        where = filter(None, [self.models, self.clock or "no run"])
        yield f"{plan.method} · {' · '.join(where)} · samples {plan.samples} · passes {plan.passes}"
        yield from self.table(spread=True).lines()
        for cell in (cell for cell in self.cells if cell.error):
            axes = [(plan.columns, cell.column), (plan.rows, cell.row)]
            at = [f"{one.title} {value_text(v)}" for one, v in axes if one is not None and v is not None]
            yield f"{', '.join(at)}: {cell.error}"
        yield from (f"paper: {point.label}" for point in self.points)

    def __repr__(self) -> str:
        return f"Swept({self.line})"

    @property
    def line(self) -> str:
        axes = " and ".join(one.title for one in (self.plan.columns, self.plan.rows) if one)
        title = f"{find(self.plan.method).title} over {axes}"
        return " · ".join(filter(None, [title, f"{len(self.cells)} cells", self.models, self.clock]))

    def _repr_html_(self) -> str:
        rows = len(self.plan.rows.values) if self.plan.rows else 1
        height = BASE + ROW * rows + LINE * len(self.points)
        notes = [f"<p>{text(note)}</p>" for note in (self.warning, self.short_answers) if note]
        drawn = page(self.plan, self.cells, self.points, drawn=False)
        table = self.table(spread=False).notebook()
        return output(self.line, "", *notes, framed(drawn, self.line, table, height))
