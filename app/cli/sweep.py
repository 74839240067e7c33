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
from functools import partial
from typing import TYPE_CHECKING, Any

from specscope.app.cli import common, options
from specscope.app.cli.inputs import checked_prompts, lacking
from specscope.engine.errors import UsageError, shown
from specscope.engine.methods import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.app.sweeping import Swept
    from specscope.engine.methods import Method
    from specscope.traces.lab.axes import Axis
    from specscope.traces.lab.sweep import Cell, Runner, Sweep
    from specscope.traces.store import Store

OVER = (
    "values of a numeric setting, as in gamma=1:8, width=1,2,4 or confidence=0.2:0.8:0.2 with its step; "
    "acceptance_rate=0.5,0.9; or drafter=usual,int4,int8 with paths, too; once or twice"
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
    from specscope.app.busy import read_load
    from specscope.app.sweeping import Swept
    from specscope.traces.lab.points import points_of
    from specscope.traces.lab.sweep import Sweep, sweep

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
    found = Swept(plan, cells, points, warning)
    if found.short_answers:
        common.note(found.short_answers)
    if args.output:
        from specscope.app.render.lab import page

        common.write_output(args.output, page(plan, cells, points))
    return common.answer(args, found.to_dict(), _lines(found))


def _axes(method: Method, texts: Sequence[str]) -> tuple[Axis, Axis | None]:
    from specscope.app.sweeping import in_order
    from specscope.traces.lab.axes import axis

    if len(texts) > 2:
        raise UsageError(f"--over is given {len(texts)} times; a sweep has one or two axes")
    found: list[Axis] = []
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--over {shown(text)} is not FIELD=VALUES")
        found.append(axis(method, name, values))
    return in_order(found)


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
    from specscope.traces.lab.sweep import Scripted

    runner = Scripted(args.profile, args.profile_pair or "", args.max_new_tokens)
    runner.check(args.seeds)
    return runner


def _decoder(
    args: argparse.Namespace, plan: Sweep, prompts: list[Any], store: Store, stack: contextlib.ExitStack
) -> Runner:
    from specscope.app.sweeping import decoder
    from specscope.traces.lab.axes import USUAL

    def opened(drafter: str) -> Any:
        named = {} if drafter == USUAL else {"drafter": [drafter]}
        return common.open_cluster(argparse.Namespace(**{**vars(args), **named}))

    limits, sampling = options.limits_of(args), options.sampling_of(args, len(prompts))
    return decoder(plan, prompts, sampling, limits, opened, partial(common.recorded, store), stack)


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


def _lines(found: Swept) -> Iterator[str]:
    from specscope.traces.lab.axes import value_text

    plan, cells = found.plan, found.cells
    rows = plan.rows.values if plan.rows else (None,)
    corner = " / ".join(one.title for one in (plan.rows, plan.columns) if one)
    where = filter(None, [found.models, found.clock or "no run"])
    yield f"{plan.method} · {' · '.join(where)} · samples {plan.samples} · passes {plan.passes}"
    yield f"{corner:24}" + "".join(f"{value_text(column):>20}" for column in plan.columns.values)
    for row in rows:
        texts = [f"{c.mean:.2f}× {c.spread}" if c.speedups else "-" for c in cells if c.row == row]
        yield f"{'speed-up' if row is None else value_text(row):24}{''.join(f'{t:>20}' for t in texts)}"
    for cell in (cell for cell in cells if cell.error):
        at = "" if cell.row is None or plan.rows is None else f", {plan.rows.title} {value_text(cell.row)}"
        yield f"{plan.columns.title} {value_text(cell.column)}{at}: {cell.error}"
    yield from (f"paper: {point.label}" for point in found.points)
