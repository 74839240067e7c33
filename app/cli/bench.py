"""Measure SpecScope on the bundled pair, and compare it with transformers on the same checkpoints.

With --pair or --target, measure all methods of that pair over autoregressive decoding; with --cuda,
forwards on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from specscope.app.bench.figures import BARS, Bar, BenchPlan, Measurement, judged
from specscope.app.cli import common, options
from specscope.app.cli.inputs import prompts_of
from specscope.app.named import PromptRow
from specscope.engine.errors import UsageError


@contextlib.contextmanager
def progress() -> Generator[Callable[[str], None]]:
    """Show progress on stderr; yield a `Note` (`specscope.app.bench.figures.Note`).

    Output that libraries print goes to stderr, too.
    """
    from tqdm import tqdm

    with contextlib.redirect_stdout(sys.stderr), tqdm(unit=" rounds", file=sys.stderr, leave=False) as bar:

        def note(text: str) -> None:
            if text:
                bar.set_description_str(text)
            else:
                bar.update()

        yield note


BENCH: options.Options = {
    "--quick": (False, "", "fewer prompts and rounds: under five minutes"),
    "--cuda": (False, "", "forwards only, over the time of reading the weights: ours and transformers'"),
    "--pair": (str, "NAME", "measure all methods of this pair: bundled, or a model of `specscope models`"),
    "--target": (str, "PATH", "the same for a target, instead of --pair"),
    "--drafter": (list, "PATH", "with --target: its drafter; repeatable"),
    "--head": (list, "PATH", "with --pair or --target: a drafting head; repeatable"),
    "--methods": (str, "A,B|all", "with --pair or --target: methods (all; --quick: those that have bars)"),
    "--prompt-file": (Path, "F", "with --pair or --target: prompts by category, as for `specscope compare`"),
    "--limit": (int, "N", "with --prompt-file: use N rows, taken evenly from its categories"),
    "--runtime": (str, "NAME", "with --pair or --target: local-process, local-thread or ray (local-process)"),
    "--address": (
        str,
        "HOST:PORT",
        "with --runtime ray: head of a Ray cluster, or auto (this machine alone)",
    ),
}
OPTIONS = (BENCH, options.JSON)


def run(args: argparse.Namespace) -> int:
    from specscope.app.bench import cuda, figures, suite

    _check(args)
    begun = time.perf_counter()
    facts = dict[str, Any]()
    sizes = figures.METHODS_QUICK if args.quick else figures.METHODS
    if args.cuda:
        with progress() as note:
            measured, facts = cuda.measure(5 if args.quick else 20, note)
    elif args.pair or args.target:
        measured, facts = _methods(args, sizes)
    else:
        with progress() as note:
            measured = suite.measure(figures.QUICK if args.quick else figures.FULL, note)
    usual = facts.get("runtime", "local-process") == "local-process"
    bars = BARS if usual and facts.get("on_gpu", True) else {}
    report(measured, bars, args, facts | {"seconds": round(time.perf_counter() - begun, 1)})
    return 0


def report(
    measured: Mapping[str, Measurement],
    bars: Mapping[str, Bar],
    args: argparse.Namespace,
    facts: Mapping[str, Any],
) -> None:
    from specscope.engine.environment import environment

    found = judged(measured, bars)
    figures = {key: figure.to_dict() for key, figure in measured.items()}
    result = figures | {"bars": found, "quick": args.quick, "environment": environment(), **facts}
    processor = result["environment"]["processor"]
    conditions = (f"{result.get('pair', 'bundled')} pair", "CPU fp32", result.get("runtime"), processor)
    lines = [result.get("device") or " · ".join([*filter(None, conditions), f"{result['seconds']:.0f} s"])]
    lines.append(f"{'figure':30}{'median':>12}{'min':>12}{'max':>12}{'runs':>6}  {'bar':14}unit")
    for key, figure in figures.items():
        numbers = "".join(f"{_number(figure[name]):>12}" for name in ("median", "min", "max"))
        bar = f"{bars[key]} {'met' if found[key]['met'] else 'missed'}" if key in found else ""
        lines.append(f"{key:30}{numbers}{figure['runs']:>6}  {bar:14}{figure['unit']}")
    common.answer(args, result, [*lines, *facts.get("lines", ())])


def _check(args: argparse.Namespace) -> None:
    models = args.pair or args.target
    if models and args.cuda:
        raise UsageError("--cuda needs no other models; leave out --pair and --target")
    for name in ("drafter", "head", "methods", "prompt_file", "limit", "runtime", "address"):
        if getattr(args, name) is not None and not models:
            raise UsageError(f"--{name.replace('_', '-')} needs --pair or --target; give one of them")
    if args.runtime == "virtual":
        raise UsageError("--runtime virtual computes times; the bench measures: choose a runtime that does")


def rows(args: argparse.Namespace, usual: Path, limit: int | None = None) -> list[PromptRow]:
    """Return the prompts of --prompt-file, or at most `limit` of the usual ones."""
    chosen = args.limit or (None if args.prompt_file else limit)
    return prompts_of(argparse.Namespace(prompt=None, prompt_file=args.prompt_file or usual, limit=chosen))


def _methods(args: argparse.Namespace, plan: BenchPlan) -> tuple[dict[str, Measurement], dict[str, Any]]:
    """Race the methods of a pair; return the figures, then the pair and the methods left out."""
    import specscope
    from specscope.app.bench import methods
    from specscope.app.named import able, method_keys

    usual = ",".join(methods.QUICK) if args.quick else "all"
    keys, left_out = method_keys(args.methods or usual), dict[str, str]()
    prompt_rows = rows(args, methods.PROMPTS, plan.prompts)
    with progress() as note:
        note("workers")
        runtime = args.runtime or "local-process"
        models = {"target": args.target, "drafter": args.drafter, "head": args.head}
        place = {"runtime": runtime, "address": args.address, "device": "cpu"}
        with specscope.open(args.pair or "bundled", **models, **place) as cluster:
            if args.methods in (None, "all"):
                keys, left_out = able(keys, cluster)
            prompts: dict[str, list[list[int]]] = {}
            for row in prompt_rows:
                prompts.setdefault(row.category, []).append(cluster.pair.encode(row.text))
            comparison = methods.measure(cluster, prompts, keys, plan, note)
            facts = {"pair": cluster.pair.name, "runtime": runtime, "left_out": left_out}
            return methods.figures(comparison), facts


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
