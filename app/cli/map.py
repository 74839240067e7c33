"""Map which method is the fastest by acceptance rate, the drafter's speed and devices.

Every cell is a race of the methods' own code in virtual time, beside their closed forms. Methods,
assumptions and default places are those of the documents' map, `docs/parallel.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specscope.app.cli import common, options
from specscope.engine.errors import UsageError, shown

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.lab.plan import MapPlan
    from specscope.traces.lab.winners import Result, Winner

PLACES: options.Options = {
    "--ratios": (str, "LIST", "c, how many times the drafter is as fast: of 2,3,5,8,12,20 (all)"),
    "--rates": (str, "LIST", "acceptance rates (0.4,0.5,0.6,0.7,0.8,0.9,0.95,0.98)"),
    "--devices": (str, "LIST", "devices, 2 to 8 for each of the target's (2,3,4,8)"),
    "--target-devices": (
        int,
        "N",
        "devices of a target, 1 to 8; c is that of the target as it lies there (1)",
    ),
    "--methods": (str, "A,B", "methods of the map; dflash only if it is named (all others)"),
    "--doubt": (
        float,
        "D",
        "how well the drafter knows where it is wrong: at 1 - (1 - D) a of its errors (0.5)",
    ),
    "--misses": (
        float,
        "R",
        "where it is wrong, the target's token is not among its next F in (1 + F)^-R (0.7)",
    ),
    "--later": (float, "L", "acceptance of a block's later places over that of its first one (0.93)"),
    "--max-new-tokens": (int, "N", "tokens of a run (192)"),
    "--recorded": ([], "RUN", "replay the drafts of a stored run in place of drafts at a rate; repeatable"),
    "--seeds": (int, "N", "runs of a method at a place, 1 to 5 (2)"),
}
OPTIONS = (
    PLACES,
    options.DATABASE,
    options.JSON,
    {"-o --output": (Path, "F", "draw the map: .svg, or .html with all numbers")},
)


def run(args: argparse.Namespace) -> int:
    from specscope.traces.lab.winners import draw, facts, rate_of

    plan = _plan(args)
    plan.check()
    common.check_output(args.output, "map", ".svg", ".html")
    results: list[Result] = []
    recorded = _recorded(args)
    plan = replace(plan, recorded=tuple(trace.header.run_id for trace in recorded))
    total = len(plan.ratios) * len({rate_of(trace) for trace in recorded} or plan.rates)
    with common.Status("racing the methods") as status:
        for i, found in enumerate(draw(plan, recorded), 1):
            results += found
            status.text = f"racing the methods: {i} of {total} places"
    if recorded:
        plan = replace(plan, rates=tuple(dict.fromkeys(map(rate_of, recorded))))
    if args.output is not None:
        from specscope.app.render.winners import map_svg, page

        drawing = map_svg(plan, results) if args.output.suffix == ".svg" else page(plan, results)
        common.write_output(args.output, drawing)
    return common.answer(args, facts(plan, results), _lines(plan, results))


def _plan(args: argparse.Namespace) -> MapPlan:
    from specscope.traces.lab.plan import default, whole

    plan = default()
    lists = {
        name: _numbers(name, text) for name in ("ratios", "rates", "devices") if (text := getattr(args, name))
    }
    named = {name: getattr(args, name) for name in ("target_devices", "doubt", "misses", "later", "seeds")}
    named["tokens"] = args.max_new_tokens
    if args.target_devices is not None and "devices" not in lists:
        lists["devices"] = tuple(count * args.target_devices for count in plan.devices)
    plan = replace(plan, **lists, **{name: value for name, value in named.items() if value is not None})
    if args.methods:
        keys, known = args.methods.split(","), {entrant.key: entrant for entrant in whole().methods}
        for key in keys:
            if key not in known:
                raise UsageError(f"the map has no method {shown(key)}; choose of {', '.join(known)}")
        plan = replace(plan, methods=tuple(known[key] for key in dict.fromkeys(keys)))
    return plan


def _recorded(args: argparse.Namespace) -> list[Trace]:
    if not args.recorded:
        return []
    if args.rates:
        raise UsageError("--recorded has the rates of its runs; leave out --rates")
    return [*common.load_runs(args, args.recorded).values()]


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        kind = float if name == "rates" else int
        return tuple(dict.fromkeys(kind(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--{name} is {shown(text)}; write numbers with commas, such as 2,5") from None


def _lines(plan: MapPlan, results: Sequence[Result]) -> Iterator[str]:
    from specscope.traces.lab.plan import assumptions
    from specscope.traces.lab.winners import winner

    target = f", {plan.target_devices} for a target" if plan.target_devices > 1 else ""
    for devices in plan.devices:
        yield f"\nup to {devices} devices{target} (virtual · {plan.profile}): fastest method, speed-up, lead over the second"
        yield "acceptance  " + "".join(f"{f'c = {ratio}':>24}" for ratio in plan.ratios)
        for rate in sorted(plan.rates, reverse=True):
            cells = [winner(results, ratio, rate, devices) for ratio in plan.ratios]
            yield f"{rate:<12g}" + "".join(f"{_cell(found):>24}" for found in cells)
    yield "\n≈: the lead is small, or not there in every run. This assumes:"
    yield from assumptions(plan)


def _cell(found: Winner | None) -> str:
    if found is None:
        return "–"
    lead = f"{found.lead:+.0%}" if found.clear else f"≈ {found.second.key}" if found.second else ""
    return f"{found.best.key} {found.best.speedup:.2f}x {lead}".rstrip()
