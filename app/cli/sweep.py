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
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.app.cli import common, options
from specscope.app.cli.inputs import checked_prompts, lacking
from specscope.engine.errors import UsageError

if TYPE_CHECKING:
    from specscope.traces.database.store import Store
    from specscope.traces.lab.sweep import Sweep, SweepCell

OVER = (
    "values of a numeric setting, as in gamma=1:8, width=1,2,4 or confidence=0.2:0.8:0.2 with its step; "
    "acceptance_rate=0.5,0.9; or drafter=usual,int4,int8 with paths, too; once or twice"
)
SWEEP: options.Options = {
    "--over": ({"action": "append", "required": True}, "FIELD=VALUES", OVER),
    "--set": ([], "FIELD=VALUE", "a setting for all cells; repeatable"),
    "--passes": (int, "N", "passes of each measured cell, 1 to 9 (2; virtual: 1)"),
    "--seeds": (2, "N", "with acceptance_rate: seeds of a cell, 1 to 5 (2)"),
    "-o --output": (Path, "F.html", "write heat map and chart as a page"),
}
OPTIONS = (
    *(*options.METHOD, SWEEP, options.one_of(options.PROMPT), options.GENERATION),
    *options.RUN,
)


def run(args: argparse.Namespace) -> int:
    from specscope.app.busy import read_load
    from specscope.app.experiments.sweep import Swept, axes_of, decoder, plan_of, scripted
    from specscope.app.render.lab import page
    from specscope.traces.lab.axes import USUAL
    from specscope.traces.lab.points import points_of
    from specscope.traces.lab.sweep import sweep

    axes = axes_of(args.method, map(options.parse_over, args.over))
    rates, config = any(one.scripted for one in axes), options.parse_fields(args.set)
    _check(args, scripted=rates)
    if not rates and (reason := lacking(args, args.method, config)):
        raise UsageError(reason)
    prompts = [] if rates else checked_prompts(args)
    asked = {"measured": options.is_measured(args), "passes": args.passes, "seeds": args.seeds}
    plan = plan_of(args.method, axes, config, len(prompts), **asked)
    points, cells = points_of(plan, args.profile, args.profile_pair), list["SweepCell"]()

    def opened(drafter: str) -> Any:
        named = {} if drafter == USUAL else {"drafter": [drafter]}
        return common.open_cluster(argparse.Namespace(**{**vars(args), **named}))

    with contextlib.ExitStack() as stack:
        store = stack.enter_context(common.open_store(args))
        if rates:
            runner = scripted(plan, args.profile, args.profile_pair, args.max_new_tokens)
        else:
            given = (options.sampling_of(args, len(prompts)), options.limits_of(args), opened)
            runner = decoder(plan, prompts, *given, partial(common.recorded, store), stack)
        before = read_load()
        for cell in sweep(plan, runner):
            cells.append(cell)
            _follow(plan, cells, store)
        found = Swept(plan, cells, points, common.busy_warning(args, before))
    if found.short_answers:
        common.note(found.short_answers)
    if args.output:
        common.write_output(args.output, page(plan, cells, points))
    return common.answer(args, found.to_dict(), found.lines())


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


def _follow(plan: Sweep, cells: Sequence[SweepCell], store: Store) -> None:
    """Report progress after a cell; store the traces behind it that no recorder has stored."""
    *before, cell = cells
    if not cell.speedups:
        return
    common.note(f"{len(cells)} of {len(plan.places)} cells")
    if plan.scripted:
        stored = {trace.header.run_id for old in before for pair in old.traces for trace in pair}
        traces = [trace for pair in cell.traces for trace in pair]
        store.insert(*(trace for trace in traces if trace.header.run_id not in stored))
