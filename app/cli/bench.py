"""Measure speed, tracing and memory on the bundled pair, and compare with transformers.

With --pair or --target, measure all methods of that pair over autoregressive decoding. With
--viewer, measure the viewer in a browser; with --cuda, forwards on a GPU; with --attention, ways to
compute attention over sequences of different lengths; with --drafters, drafters of one target; with
--peers, decoding beside llama.cpp; with --whatif, the error of `specscope whatif`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import benched, common
from app.cli.benched import progress
from app.cli.prompts import prompts_of
from engine.errors import UsageError

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
        "--drafters",
        action="store_true",
        help="measure drafters of one target only, among them its own weights in fewer bits: size, time, agreement",
    )
    parser.add_argument(
        "--noise",
        action="store_true",
        help="with --drafters: also for the target with noise on its weights, which then lie on no grid",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="with --pair or --target: decode beside llama.cpp only, with the same GGUF file",
    )
    parser.add_argument(
        "--whatif",
        action="store_true",
        help="the error of `specscope whatif` only: predictions beside real runs in virtual time, by class",
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
        "--methods",
        metavar="A,B|all",
        help="with --pair or --target: methods (all; with --quick those that have bars)",
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
        return benched.print_placements(args, chosen)
    if args.heads:
        return benched.print_heads(args, chosen)
    if args.drafters:
        return benched.print_drafters(args)
    if args.whatif:
        return benched.print_whatif(args)
    facts = dict[str, Any]()
    if args.viewer:
        measured = _viewer(args.quick)
    elif args.cuda:
        measured, facts = _cuda(args.quick)
    elif args.attention:
        measured, facts = _attention(args.quick)
    elif args.peers:
        measured, facts = _peers(args, plan.METHODS_QUICK if args.quick else plan.METHODS)
    elif args.pair or args.target:
        measured, facts = _methods(args, plan.METHODS_QUICK if args.quick else plan.METHODS)
    else:
        with progress() as note:
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
    names = ("placements", "heads", "soak", "viewer", "cuda", "attention", "drafters", "peers", "whatif")
    parts = [f"--{name}" for name in names if getattr(args, name)]
    if len(parts) > 1:
        raise UsageError(f"{' and '.join(parts)} exclude each other; choose one")
    _check_models(args, parts[0] if parts else "")
    if args.noise and not args.drafters:
        raise UsageError("--noise needs --drafters, whose target it changes; give both or neither")
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


def _check_models(args: argparse.Namespace, part: str) -> None:
    """Check the options that name models and what they decode."""
    models, fixed = args.pair or args.target, ("head", "runtime", "address")
    if models and part not in ("", "--drafters", "--peers"):
        raise UsageError(f"{part} needs no other models; leave out --pair and --target")
    if part == "--peers" and not models:
        raise UsageError("--peers needs --pair or --target, a model with a GGUF file; give one of them")
    for name in ("drafter", "prompt_file", "limit", *fixed):
        option, given = f"--{name.replace('_', '-')}", getattr(args, name) is not None
        if given and not models and not (part == "--drafters" and name in ("prompt_file", "limit")):
            raise UsageError(f"{option} needs --pair or --target; give one of them")
        if given and part and name in fixed:
            raise UsageError(f"{option} does not go with {part}; leave it out")
    if args.methods and not models:
        raise UsageError(f"--methods {args.methods} needs --pair or --target; give one of them")
    if args.methods and part:
        raise UsageError(f"--methods {args.methods} does not go with {part}; leave it out")


def _methods(args: argparse.Namespace, plan: Plan) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Race the methods of a pair; return the figures, then the pair and the methods left out."""
    import engine
    from app.bench import methods
    from app.cli.chosen import able, method_keys

    usual = ",".join(methods.QUICK) if args.quick else "all"
    keys, left_out = method_keys(args.methods or usual), dict[str, str]()
    args.prompt, args.limit = None, args.limit or (None if args.prompt_file else plan.prompts)
    args.prompt_file = args.prompt_file or methods.PROMPTS
    rows = prompts_of(args)
    with progress() as note:
        note("workers")
        runtime = args.runtime or "local-process"
        models = {"target": args.target, "drafter": args.drafter, "head": args.head}
        place = {"runtime": runtime, "address": args.address, "device": "cpu"}
        with engine.open(args.pair or "bundled", **models, **place) as cluster:
            if args.methods in (None, "all"):
                keys, left_out = able(keys, cluster)
            prompts: dict[str, list[list[int]]] = {}
            for row in rows:
                prompts.setdefault(row.category, []).append(cluster.pair.encode(row.text))
            comparison = methods.measure(cluster, prompts, keys, plan, note)
            facts = {"pair": cluster.pair.name, "runtime": runtime, "left_out": left_out}
            return methods.figures(comparison), facts


def _peers(args: argparse.Namespace, plan: Plan) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Decode beside llama.cpp; return the figures, then the pair and the methods left out."""
    import engine
    from app.bench import methods, peers
    from app.cli.chosen import able
    from app.cli.waiting import DownloadBar

    peers.llama_cpp()
    args.prompt, args.limit = None, args.limit or (None if args.prompt_file else plan.prompts)
    args.prompt_file = args.prompt_file or methods.PROMPTS
    rows = prompts_of(args)
    with tempfile.TemporaryDirectory() as folder, DownloadBar() as bar:
        file = peers.gguf_of(args.target or args.pair, Path(folder), bar.show)
        with progress() as note:
            note("workers")
            models = {"target": args.target, "drafter": args.drafter}
            with engine.open(args.pair or "bundled", **models, device="cpu") as cluster:
                keys, left_out = able(list(peers.METHODS), cluster)
                prompts = [cluster.pair.encode(row.text) for row in rows]
                figures = peers.measure(cluster, file, prompts, keys, plan, note)
                lines, runtime = peers.lines(figures), "local-process"
                facts = {"pair": cluster.pair.name, "runtime": runtime, "left_out": left_out, "lines": lines}
                return figures, facts


def _viewer(quick: bool) -> dict[str, Figure]:
    from app.bench import page, viewer

    with progress() as note:
        moved = viewer.measure(viewer.SIZES, 1 if quick else 2, note)
        return moved | page.measure(1 if quick else 3, note)


def _cuda(quick: bool) -> tuple[dict[str, Figure], dict[str, Any]]:
    from app.bench import cuda

    with progress() as note:
        return cuda.measure(5 if quick else 20, note)


def _attention(quick: bool) -> tuple[dict[str, Figure], dict[str, Any]]:
    from app.bench import attention

    with progress() as note:
        return attention.measure(5 if quick else 20, note)


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
