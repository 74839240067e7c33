"""Decode the same prompts with several methods and compare text and speed.

A method for batches decodes all prompts in one run, the others have a run for each. Prompt i draws with the seed i higher.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import uuid
from typing import Any

from app.cli import common
from app.cli.run import batches_of, open_store, recorded, result_of
from engine.errors import UsageError
from engine.methods import METHODS, find
from engine.runtime.events import Trace

BASELINE = next(m.key for m in METHODS.values() if m.baseline)
"""The method that speed-ups are taken over."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "--methods", required=True, metavar="A,B|all", help="keys separated by commas, or all"
    )
    common.add_generation(parser)
    common.add_cluster(parser)
    common.add_database(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run them, the baseline first."""
    keys, left_out = method_keys(args.methods), dict[str, str]()
    sampling, limits, rows = common.sampling_of(args), common.limits_of(args), common.prompts_of(args)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_store(args))
        cluster = stack.enter_context(common.open_cluster(args))
        if args.methods == "all":
            keys, left_out = able(keys, cluster)
        traces: dict[str, list[Trace]] = {key: [] for key in keys}
        prompts = [common.prompt_for(args, row) for row in rows]
        for i in range(len(rows)):
            group = uuid.uuid4().hex[:12]
            for key in keys:
                parts = batches_of(key, prompts)
                if i < len(parts):
                    options = {"sampling": common.seeded(sampling, i), "limits": limits, "group": group}
                    traces[key].append(recorded(store, cluster, key, parts[i], options))
    result = {
        "prompts": len(rows),
        "runtime": traces[keys[0]][0].header.runtime,
        "profile": traces[keys[0]][0].header.profile or None,
        "methods": {key: _summary(traces[key], traces[BASELINE], rows) for key in keys},
        "left_out": left_out,
    }
    if args.json:
        common.print_json(result)
    else:
        _print(result)
    return 0


def method_keys(text: str) -> list[str]:
    """Return the keys named, the baseline first; it is added when missing."""
    keys = list(METHODS) if text == "all" else [k.strip() for k in text.split(",") if k.strip()]
    if not keys:
        raise UsageError("--methods is empty; name methods separated by commas, or all")
    for key in keys:
        find(key)
    return list(dict.fromkeys([BASELINE, *keys]))


def able(keys: list[str], cluster: Any) -> tuple[list[str], dict[str, str]]:
    """Return the methods that the open models can run, and why not the others: a drafter or a head may be missing."""
    left_out = dict[str, str]()
    for key in keys:
        try:
            cluster.check(key)
        except UsageError as error:
            left_out[key] = str(error)
    return [key for key in keys if key not in left_out], left_out


def _summary(runs: list[Trace], base: list[Trace], rows: list[common.PromptRow]) -> dict[str, Any]:
    results = [result_of(t) for t in runs]
    summary = {**_figures(runs, base), "runs": [r["run_id"] for r in results], "config": results[0]["config"]}
    categories = dict.fromkeys(r.category for r in rows if r.category)
    if categories and len(runs) == len(base):
        chosen = {c: [i for i, r in enumerate(rows) if r.category == c] for c in categories}
        summary["categories"] = {
            c: _figures([runs[i] for i in s], [base[i] for i in s]) for c, s in chosen.items()
        }
    return summary


def _figures(runs: list[Trace], base: list[Trace]) -> dict[str, Any]:
    from traces.metrics import measure

    mine, theirs = [measure(t).to_dict() for t in runs], [measure(t).to_dict() for t in base]
    forwards = sum(m["target_forwards"] for m in mine)
    tokens = sum(m["tokens"] for m in mine)
    drafted = sum(m["drafted"] for m in mine)
    return {
        "equal_to_autoregressive": _texts(runs) == _texts(base),
        "speedup": _ratio(_speed(mine), _speed(theirs)),
        "tokens_per_second": _speed(mine),
        "tokens_per_target_forward": _ratio(tokens, forwards),
        "acceptance_rate": _ratio(sum(m["accepted"] for m in mine), drafted),
        "tokens": tokens,
        "target_forwards": forwards,
        "draft_forwards": sum(m["draft_forwards"] for m in mine),
        "drafted": drafted,
        "both_busy": statistics.fmean(m["waiting"]["both"] for m in mine),
    }


def _texts(runs: list[Trace]) -> list[list[int]]:
    """Return the token ids written after each prompt."""
    return [t.token_ids(i) for t in runs for i in range(len(t.header.prompt_ids))]


def _speed(metrics: list[dict[str, Any]]) -> float | None:
    seconds = sum(
        m["tokens"] / m["decode_tokens_per_second"] for m in metrics if m["decode_tokens_per_second"]
    )
    return _ratio(sum(m["tokens"] for m in metrics), seconds)


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _print(result: dict[str, Any]) -> None:
    clock = f"virtual · {result['profile']}" if result["profile"] else f"measured · {result['runtime']}"
    print(f"{result['prompts']} prompt{'' if result['prompts'] == 1 else 's'} · {clock}")
    print(f"{'method':20}{'tokens/s':>10}{'speed-up':>10}{'tok/forward':>13}{'accepted':>10}  output")
    for key, m in result["methods"].items():
        same = "identical" if m["equal_to_autoregressive"] else "differs"
        cells = [_cell(m["tokens_per_second"], ".1f", 10), _cell(m["speedup"], ".2f", 10, "×")]
        cells += [_cell(m["tokens_per_target_forward"], ".2f", 13), _cell(m["acceptance_rate"], ".0%", 10)]
        print(f"{key:20}{''.join(cells)}  {same}")
    for key, reason in result["left_out"].items():
        print(f"{key:20}left out: {reason}")
    first = " ".join(m["runs"][0] for m in result["methods"].values())
    print(f"side by side: specscope report {first} -o report.html")


def _cell(value: float | None, form: str, width: int, unit: str = "") -> str:
    return f"{'-' if value is None else format(value, form) + unit:>{width}}"
