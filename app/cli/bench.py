"""Measure speed, tracing and memory on the bundled pair, and compare with transformers.

With --pair or --target, measure all methods of that pair over autoregressive decoding. With
--viewer, measure the viewer in a browser; with --cuda, forwards on a GPU; with --attention, ways to
compute attention over sequences of different lengths.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import common
from app.cli.prompts import prompts_of
from engine.errors import UsageError
from engine.files import replacing

if TYPE_CHECKING:
    from app.bench.figures import Figure
    from app.bench.plan import Plan


RUNS, CLIENTS = 200, 8
"""Of --soak."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--quick", action="store_true", help="fewer prompts and rounds: under five minutes")
    parser.add_argument(
        "--placements",
        action="store_true",
        help="measure PEARL's placements only: drafter and target on separate or shared devices",
    )
    parser.add_argument(
        "--soak",
        action="store_true",
        help="measure the server only: 200 runs through the page's requests, 8 clients at once",
    )
    parser.add_argument(
        "--heads",
        metavar="DIR",
        type=Path,
        help="measure ParallelSpec's group size only, with the heads in the folders of DIR, one for each K",
    )
    parser.add_argument(
        "--viewer",
        action="store_true",
        help="measure the viewer only, in headless Chromium: opening, panning, zooming, live growth, Stop",
    )
    parser.add_argument(
        "--cuda",
        action="store_true",
        help="measure forwards only, over the time of reading the weights: static, eager and transformers'",
    )
    parser.add_argument(
        "--attention",
        action="store_true",
        help="measure attention over sequences of different lengths only: the ways that exist here",
    )
    parser.add_argument(
        "--pair",
        metavar="NAME",
        help="measure all methods of this pair over autoregressive decoding: bundled, or a model of `specscope models`",
    )
    parser.add_argument("--target", metavar="PATH", help="the same for a target, instead of --pair")
    parser.add_argument(
        "--drafter", action="append", metavar="PATH", help="with --target: its drafter; repeatable"
    )
    parser.add_argument(
        "--head", action="append", metavar="PATH", help="with --pair or --target: a drafting head; repeatable"
    )
    parser.add_argument(
        "--methods", metavar="A,B|all", default="all", help="with --pair or --target: methods (all)"
    )
    parser.add_argument(
        "--prompt-file",
        type=Path,
        metavar="F",
        help="with --pair or --target: prompts by category, as for `specscope compare`",
    )
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="with --prompt-file: use N rows, taken evenly from its categories",
    )
    parser.add_argument(
        "--runtime",
        metavar="NAME",
        help="with --pair or --target: local-process, local-thread or ray (local-process)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="with --runtime ray: head of a Ray cluster, or auto for the one this machine is in (this machine alone)",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="with --placements or --heads: use virtual time with this latency profile",
    )
    parser.add_argument("-o", "--output", metavar="F.svg", type=Path, help="with --heads: draw a chart, too")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, with progress on stderr."""
    from app.bench import figures, plan, soak, suite
    from engine.environment import environment

    _check(args)
    begun, chosen = time.perf_counter(), plan.QUICK if args.quick else plan.FULL
    if args.placements:
        return _placements(args, chosen)
    if args.heads:
        return _heads(args, chosen)
    facts = dict[str, Any]()
    if args.viewer:
        measured = _viewer(args.quick)
    elif args.cuda:
        measured, facts = _cuda(args.quick)
    elif args.attention:
        measured, facts = _attention(args.quick)
    elif args.pair or args.target:
        measured, facts = _methods(args, plan.METHODS_QUICK if args.quick else plan.METHODS)
    else:
        with _progress() as note:
            measured = soak.measure(RUNS, CLIENTS, note) if args.soak else suite.measure(chosen, note)
    usual = facts.get("runtime", "local-process") == "local-process"
    judged = usual and facts.get("on_gpu", True)
    bars = figures.judged(measured) if judged else {}
    result = {key: figure.to_dict() for key, figure in measured.items()} | {
        "bars": bars,
        "quick": args.quick,
        "seconds": round(time.perf_counter() - begun, 1),
        "environment": environment(),
        **facts,
    }
    if args.json:
        common.print_json(result)
    else:
        _print(result, bars)
        for line in facts.get("lines", ()):
            print(line)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Check the combination of options."""
    names = ("placements", "heads", "soak", "viewer", "cuda", "attention")
    parts = [f"--{name}" for name in names if getattr(args, name)]
    if len(parts) > 1:
        raise UsageError(f"{' and '.join(parts)} exclude each other; choose one")
    models = args.pair or args.target
    if models and parts:
        raise UsageError(f"{parts[0]} needs no other models; leave out --pair and --target")
    for name in ("drafter", "head", "prompt_file", "limit", "runtime", "address"):
        if getattr(args, name) is not None and not models:
            raise UsageError(f"--{name.replace('_', '-')} needs --pair or --target; give one of them")
    if args.methods != "all" and not models:
        raise UsageError(f"--methods {args.methods} needs --pair or --target; give one of them")
    if args.runtime == "virtual":
        raise UsageError("--runtime virtual computes times; the bench measures: choose a runtime that does")
    if args.profile and not (args.placements or args.heads):
        raise UsageError(
            f"--profile {args.profile} needs --placements or --heads; without them the bench measures this machine"
        )
    if args.output and not args.heads:
        raise UsageError(f"--output {args.output} needs --heads, whose chart it is; give both or neither")
    if args.output:
        common.check_output(args.output)


@contextlib.contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    """Show progress on stderr; yield a `Note` (`app.bench.plan.Note`).

    Output that libraries print goes to stderr, too.
    """
    from tqdm import tqdm

    with contextlib.redirect_stdout(sys.stderr), tqdm(unit=" rounds", file=sys.stderr, leave=False) as bar:

        def note(text: str) -> None:
            if text:
                bar.set_description(text)
            else:
                bar.update()

        yield note


def _methods(args: argparse.Namespace, plan: Plan) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Race the methods of a pair; return the figures, then the pair and the methods left out."""
    import engine
    from app.bench import methods
    from app.cli.compare import able, method_keys

    keys, left_out = method_keys(args.methods), dict[str, str]()
    args.prompt, args.limit = None, args.limit or (None if args.prompt_file else plan.prompts)
    args.prompt_file = args.prompt_file or methods.PROMPTS
    rows = prompts_of(args)
    with _progress() as note:
        note("workers")
        runtime = args.runtime or "local-process"
        models = {"target": args.target, "drafter": args.drafter, "head": args.head}
        place = {"runtime": runtime, "address": args.address, "device": "cpu"}
        with engine.open(args.pair or "bundled", **models, **place) as cluster:
            if args.methods == "all":
                keys, left_out = able(keys, cluster)
            prompts: dict[str, list[list[int]]] = {}
            for row in rows:
                prompts.setdefault(row.category, []).append(cluster.pair.encode(row.text))
            comparison = methods.measure(cluster, prompts, keys, plan, note)
            facts = {"pair": cluster.pair.name, "runtime": runtime, "left_out": left_out}
            return methods.figures(comparison), facts


def _viewer(quick: bool) -> dict[str, Figure]:
    from app.bench import page, viewer

    with _progress() as note:
        moved = viewer.measure(viewer.SIZES, 1 if quick else 2, note)
        return moved | page.measure(1 if quick else 3, note)


def _cuda(quick: bool) -> tuple[dict[str, Figure], dict[str, Any]]:
    from app.bench import cuda

    with _progress() as note:
        return cuda.measure(5 if quick else 20, note)


def _attention(quick: bool) -> tuple[dict[str, Figure], dict[str, Any]]:
    from app.bench import attention

    with _progress() as note:
        return attention.measure(5 if quick else 20, note)


def _placements(args: argparse.Namespace, plan: Plan) -> int:
    from app.bench import placements

    with _progress() as note:
        if args.profile:
            reports, left_out = placements.virtual(args.profile, plan, note)
        else:
            reports, left_out = [placements.measured(plan, note)], {}
    if args.json:
        common.print_json(
            {"reports": [report.to_dict() for report in reports], "left_out": left_out, "quick": args.quick}
        )
    else:
        print("\n".join(placements.lines(reports, left_out)))
    return 0


def _heads(args: argparse.Namespace, plan: Plan) -> int:
    from app.bench import groups

    with _progress() as note:
        report = groups.measure(args.heads, plan, note, args.profile)
    if args.output:
        with replacing(args.output) as file:
            file.write(report.chart())
    if args.json:
        common.print_json(report.to_dict() | {"quick": args.quick})
    else:
        print("\n".join(report.lines()))
    return 0


def _print(result: Mapping[str, Any], bars: Mapping[str, Mapping[str, Any]]) -> None:
    from app.bench.figures import BARS

    pair, processor = f"{result.get('pair', 'bundled')} pair", result["environment"]["processor"]
    conditions = (pair, "CPU fp32", result.get("runtime"), processor, f"{result['seconds']:.0f} s")
    print(result.get("device") or " · ".join(filter(None, conditions)))
    print(f"{'figure':30}{'median':>12}{'min':>12}{'max':>12}{'runs':>6}  {'bar':14}unit")
    for key, figure in result.items():
        if isinstance(figure, dict) and "median" in figure:
            numbers = "".join(f"{_number(figure[name]):>12}" for name in ("median", "min", "max"))
            bar = f"{BARS[key]} {'met' if bars[key]['met'] else 'missed'}" if key in bars else ""
            print(f"{key:30}{numbers}{figure['runs']:>6}  {bar:14}{figure['unit']}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
