"""The sweep of `specscope sweep`, `specscope.sweep` and the Lab: plan, cells and result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from specscope.app.busy import busy_since, read_load
from specscope.app.experiments.compare import short_answers
from specscope.app.experiments.table import Column, Table, frame
from specscope.app.named import seeded
from specscope.app.notebook.opening import arguments, bar, opened, texts
from specscope.app.notebook.shown import framed, output
from specscope.app.render.html import text
from specscope.app.render.lab import page
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError, named_arguments
from specscope.engine.methods import find
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.lab.axes import ACCEPTANCE, USUAL, Axis, axis, check_axis, value_text
from specscope.traces.lab.points import Point, points_of
from specscope.traces.lab.sweep import Cell, Job, Runner, Scripted, Sweep
from specscope.traces.lab.sweep import sweep as cells_of
from specscope.traces.view.settings import models_text

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
    runner = Scripted(profile, pair or "", tokens)
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

    def run(job: Job) -> Trace:
        mine = list(prompts) if batched else [prompts[job.sample]]
        given = {"config": job.config, "sampling": seeded(sampling, job.sample), "limits": limits}
        return decode(cluster(job.drafter), job.method, mine, {**given, "group": job.group})

    cluster(plan.job(*plan.places[0]).drafter)
    return run


@dataclass(frozen=True, slots=True, repr=False)
class Swept:
    """The cells of a sweep, and the papers' points beside them."""

    plan: Sweep
    cells: Sequence[Cell]
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


@named_arguments
def sweep(
    method: str,
    over: Mapping[str, str | Sequence[Any]],
    prompts: str | Sequence[Any] = (),
    *,
    cluster: Cluster | None = None,
    config: Mapping[str, Any] | None = None,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    passes: int | None = None,
    seeds: int = 2,
    progress: bool = True,
    **others: Any,
) -> Swept:
    """Return the speed-up of a method over plain decoding for each value of one or two fields.

    Args:
        method: Key of the method.
        over: Field -> values, as a list or as the command line has them (`1:8`). A field is a
            numeric setting, `drafter` (in measured runs, without `cluster`), or `acceptance_rate`:
            drafts are then right at each rate, no model decodes, and `others` name a profile.
        prompts: The samples of each cell; none with `acceptance_rate`.
        cluster: As in `compare`.
        config: Settings of all cells.
        sampling: As in `compare`.
        limits: When to stop; with `acceptance_rate` 64 tokens if it is not given.
        passes: Of each measured cell, 1 to 9 (2; virtual: 1).
        seeds: With `acceptance_rate`: samples of a cell, 1 to 5.
        progress: Whether to show a bar.
        others: As in `compare`.

    Raises:
        UsageError: A name or a value is wrong, or no cell has a speed-up.
    """
    brief = limits is None and "max_new_tokens" not in others
    sampling, limits, models = arguments(sweep, sampling, limits, others)
    profile, pair = models.get("profile"), models.get("profile_pair")
    profile = getattr(profile, "name", profile)
    if cluster is not None:
        profile, pair = cluster.placement.profile or None, cluster.placement.details.get("profile_pair")
    rates = ACCEPTANCE in over
    samples = [] if rates else texts(prompts)
    measured = not profile and not rates
    asked: dict[str, Any] = {"measured": measured, "passes": passes, "seeds": seeds}
    plan = plan_of(method, axes_of(method, over.items()), config or {}, len(samples), **asked)
    with ExitStack() as stack:
        if rates:
            if cluster is not None or not profile or set(models) - {"profile", "profile_pair", "runtime"}:
                raise UsageError(
                    "drafts of a given acceptance rate have no models: give profile, profile_pair or neither a "
                    "cluster nor models"
                )
            runner = scripted(plan, models["profile"], pair, 64 if brief else limits.max_new_tokens)
        else:
            opener = _opener(cluster, models)
            runner = decoder(plan, samples, sampling, limits, opener, _decode, stack)
        before, cells = read_load(), list[Cell]()
        step = stack.enter_context(bar(len(plan.places), "cell", progress))
        for cell in cells_of(plan, runner):
            cells.append(cell)
            step()
        warning = busy_since(before) if measured else ""
    return Swept(plan, cells, points_of(plan, profile, pair), warning)


def _opener(
    cluster: Cluster | None, models: Mapping[str, Any]
) -> Callable[[str], AbstractContextManager[Cluster]]:
    """Return a function that opens the models with a drafter."""

    def open_with(drafter: str) -> AbstractContextManager[Cluster]:
        if drafter == USUAL:
            return opened(cluster, models)
        if cluster is not None:
            raise UsageError("a sweep over drafters opens each drafter; give models in place of the cluster")
        return opened(None, {**models, "drafter": [drafter]})

    return open_with


def _decode(cluster: Any, method: str, prompts: list[Any], given: dict[str, Any]) -> Trace:
    return cluster.run(method, *prompts, **given)
