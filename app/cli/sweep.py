"""Sweep one or two settings of a method, in virtual time or measured on this machine.

A cell is the speed-up over plain decoding under the same conditions. Over `acceptance_rate`, drafts
are right at each rate and no model decodes: the samples of a cell are seeds. Otherwise the models
decode the prompts, which are the samples; a method for batches decodes them in one run. Measured
runs repeat in passes that alternate with plain decoding. Over `drafter`, each drafter has plain
decoding of its own, and the target stays the same.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from app.cli import common, options
from app.cli.inputs import checked_prompts, lacking
from engine.errors import UsageError, shown
from engine.methods import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.methods import Method
    from traces.lab.axes import Axis
    from traces.lab.points import Point
    from traces.lab.sweep import Cell, Job, Runner, Sweep
    from traces.store import Store

OVER = (
    "values of a numeric setting, as in gamma=1:8 or width=1,2,4; acceptance_rate=0.5,0.9; or "
    "drafter=usual,int4,int8 with paths, too; once or twice"
)
REPEATS: options.Options = {
    "--passes": (int, "N", "passes of each measured cell, 1 to 9 (2; virtual: 1)"),
    "--seeds": (2, "N", "with acceptance_rate: seeds of a cell, 1 to 5 (2)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_method(parser)
    parser.add_argument(
        "--over", action="append", required=True, metavar="FIELD=VALUES", dest="axes", help=OVER
    )
    options.add_settings(parser, "a setting for all cells; repeatable")
    options.add_options(parser, REPEATS)
    options.add_output(parser, "F.html", "write heat map and chart as a page")
    options.add_generation(parser, required=False)
    options.add_run(parser)


def run(args: argparse.Namespace) -> int:
    from app.busy import read_load
    from traces.lab.points import points_of
    from traces.lab.sweep import Sweep, sweep

    method = find(args.method)
    columns, rows = _axes(method, args.axes)
    scripted = columns.scripted or bool(rows and rows.scripted)
    _check(args, scripted=scripted)
    if not scripted and (reason := lacking(args, method.key, options.parse_fields(args.fields))):
        raise UsageError(reason)
    prompts = [] if scripted else checked_prompts(args)
    measured = options.is_measured(args)
    plan = Sweep(
        method.key,
        columns,
        rows,
        options.parse_fields(args.fields),
        samples=args.seeds if scripted else 1 if method.batched else len(prompts),
        passes=args.passes if args.passes is not None else 2 if measured else 1,
        measured=measured,
    )
    plan.check()
    points = points_of(plan, args.profile, args.profile_pair)
    cells: list[Cell] = []
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(common.open_store(args))
        runner = _scripted(args) if scripted else _decoder(args, plan, prompts, store, stack)
        before = read_load()
        for cell in sweep(plan, runner):
            cells.append(cell)
            _follow(plan, cells, store)
        warning = common.busy_warning(args, before)
    if not any(cell.speedups for cell in cells):
        raise UsageError(f"no cell has a speed-up: {cells[0].error}")
    if not scripted:
        plain = [run for cell in cells for _, run in cell.traces]
        common.short_warning(
            [len(run.token_ids(i)) for run in plain for i in range(len(run.header.prompt_ids))]
        )
    if args.output:
        from app.render.lab import page

        common.write_output(args.output, page(plan, cells, points))
    return common.answer(args, _result(plan, cells, points, warning), _lines(plan, cells, points))


def _axes(method: Method, texts: Sequence[str]) -> tuple[Axis, Axis | None]:
    """Return the columns and the rows; rates and drafters are the rows of a field."""
    from traces.lab.axes import axis

    if len(texts) > 2:
        raise UsageError(f"--over is given {len(texts)} times; a sweep has one or two axes")
    found: list[Axis] = []
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--over {shown(text)} is not FIELD=VALUES")
        found.append(axis(method, name, values))
    columns, *more = sorted(found, key=lambda one: one.scripted or one.drafters)
    return columns, more[0] if more else None


def _check(args: argparse.Namespace, *, scripted: bool) -> None:
    common.check_output(args.output)
    if not scripted:
        if args.prompt is None and args.prompt_file is None:
            raise UsageError(
                "the sweep has no prompt; give --prompt or --prompt-file, or sweep over acceptance_rate"
            )
        return
    given = ("prompt", "prompt_file", "limit", "system", "target", "drafter", "head")
    for name in (name for name in given if getattr(args, name) is not None):
        option = name.replace("_", "-")
        raise UsageError(f"--{option}: drafts of a given acceptance rate have no models; leave it out")
    if args.profile is None or args.runtime not in (None, "virtual"):
        raise UsageError(
            "drafts of a given acceptance rate have no models to measure; name a cluster with --profile"
        )


def _scripted(args: argparse.Namespace) -> Runner:
    from traces.lab.sweep import Scripted

    runner = Scripted(args.profile, args.profile_pair or "", args.max_new_tokens)
    runner.check(args.seeds)
    return runner


def _decoder(
    args: argparse.Namespace, plan: Sweep, prompts: list[Any], store: Store, stack: contextlib.ExitStack
) -> Runner:
    """Return a runner whose models are open with one drafter at a time."""
    from traces.lab.axes import USUAL

    limits, sampling = options.limits_of(args), options.sampling_of(args, len(prompts))
    models, opened = stack.enter_context(contextlib.ExitStack()), dict[str, Any]()
    batched = find(plan.method).batched

    def cluster(drafter: str) -> Any:
        if drafter not in opened:
            models.close()
            opened.clear()
            named = {} if drafter == USUAL else {"drafter": [drafter]}
            given = argparse.Namespace(**{**vars(args), **named})
            opened[drafter] = models.enter_context(common.open_cluster(given))
        return opened[drafter]

    def decode(job: Job) -> Any:
        mine = prompts if batched else [prompts[job.sample]]
        seeded = options.seeded(sampling, job.sample)
        given = {"config": job.config, "sampling": seeded, "limits": limits, "group": job.group}
        return common.recorded(store, cluster(job.drafter), job.method, mine, given)

    cluster(plan.job(*plan.places[0]).drafter)
    return decode


def _follow(plan: Sweep, cells: Sequence[Cell], store: Store) -> None:
    """Report progress after a cell; store the traces behind it that no recorder has stored."""
    *before, cell = cells
    if not cell.speedups:
        return
    common.note(f"{len(cells)} of {len(plan.places)} cells")
    if plan.scripted:
        stored = {trace.header.run_id for old in before for pair in old.traces for trace in pair}
        traces = [trace for pair in cell.traces for trace in pair]
        store.insert(*(trace for trace in traces if trace.header.run_id not in stored))


def _result(plan: Sweep, cells: Sequence[Cell], points: Sequence[Point], warning: str) -> dict[str, Any]:
    return {
        "method": plan.method,
        "columns": {"field": plan.columns.name, "values": plan.columns.values},
        "rows": {"field": plan.rows.name, "values": plan.rows.values} if plan.rows else None,
        "config": plan.config,
        "models": _models(plan, cells) or None,
        "clock": _clock(cells),
        "samples": plan.samples,
        "passes": plan.passes,
        "warning": warning or None,
        "cells": [_cell(cell) for cell in cells],
        "points": [
            {"value": p.value, "acceptance_rate": p.rate, "speedup": p.speedup, "source": p.label}
            for p in points
        ],
    }


def _cell(cell: Cell) -> dict[str, Any]:
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


def _clock(cells: Sequence[Cell]) -> str | None:
    return next((cell.clock for cell in cells if cell.clock), None)


def _models(plan: Sweep, cells: Sequence[Cell]) -> str:
    """Return the names of the models that decoded; of a sweep over drafters the first one's."""
    from traces.view.settings import models_text

    headers = [run.header for cell in cells for run, _ in cell.traces]
    return models_text(headers[0]) if headers and not plan.scripted else ""


def _lines(plan: Sweep, cells: Sequence[Cell], points: Sequence[Point]) -> Iterator[str]:
    from traces.lab.axes import value_text

    rows = plan.rows.values if plan.rows else (None,)
    corner = " / ".join(one.title for one in (plan.rows, plan.columns) if one)
    where = filter(None, [_models(plan, cells), _clock(cells) or "no run"])
    yield f"{plan.method} · {' · '.join(where)} · samples {plan.samples} · passes {plan.passes}"
    yield f"{corner:24}" + "".join(f"{value_text(column):>20}" for column in plan.columns.values)
    for row in rows:
        texts = [f"{c.mean:.2f}× {c.spread}" if c.speedups else "-" for c in cells if c.row == row]
        yield f"{'speed-up' if row is None else value_text(row):24}{''.join(f'{t:>20}' for t in texts)}"
    for cell in (cell for cell in cells if cell.error):
        at = "" if cell.row is None or plan.rows is None else f", {plan.rows.title} {value_text(cell.row)}"
        yield f"{plan.columns.title} {value_text(cell.column)}{at}: {cell.error}"
    yield from (f"paper: {point.label}" for point in points)
