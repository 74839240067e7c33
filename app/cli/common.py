"""Options, stores and JSON output, shared by the commands."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.clusters import is_measured
from app.cli.status import Status
from engine.errors import StoreMissing, UsageError, shown
from engine.types import Limits, Sampling

if TYPE_CHECKING:
    from app.busy import ProcessorTime
    from traces.store import Store


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_database(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--db", type=Path, metavar="FILE", help="trace database (default: the user's own)")


def open_store(args: argparse.Namespace) -> Store:
    with Status("opening the database"):
        from traces.store import Store, default_path

        return Store(args.db if args.db is not None else default_path())


def open_stored(args: argparse.Namespace, runs: Sequence[str]) -> Store:
    """Open the trace database read-only; without one the runs do not exist."""
    from traces.store import Store, default_path

    path = args.db if args.db is not None else default_path()
    try:
        return Store(path, readonly=True)
    except StoreMissing as error:
        raise UsageError(f"there is no run {', '.join(map(shown, runs[:3]))}: {error}") from None


def check_output(path: Path) -> None:
    """Refuse a path to which no file can be written, before the work for it begins."""
    if path.is_dir():
        raise UsageError(f"the output {path} is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder of the output {path} does not exist; make it first")


def add_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--methods", required=True, metavar="A,B|all", help="keys separated by commas, or all"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="METHOD.FIELD=VALUE",
        dest="fields",
        help="a setting of a method; repeatable",
    )


def add_settings(parser: argparse.ArgumentParser, about: str) -> None:
    """Add `--set`, whose values `app.cli.run.parse_fields` reads; `about` is its help text."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="fields", help=about
    )


def add_generation(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    _add_prompts(parser, required=required)
    parser.add_argument(
        "--max-new-tokens", type=int, default=128, metavar="N", help="generate at most N tokens (128)"
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end the output before this text; repeatable",
    )
    _add_sampling(parser)


def _add_prompts(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    source = parser.add_mutually_exclusive_group(required=required)
    source.add_argument("--prompt", metavar="TEXT", help="one prompt")
    source.add_argument(
        "--prompt-file",
        type=Path,
        metavar="F",
        help="a text file with one prompt, or .jsonl with turns, prompt, question or text in each row",
    )
    parser.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help="use N rows of the prompt file, taken evenly from its categories",
    )
    parser.add_argument("--system", metavar="TEXT", help="system prompt")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    parser.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="K",
        help="sample from the K most probable tokens; 0 = all (0)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample from the most probable tokens with total probability P (1)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="seed of all draws; prompt i of a file has seed S + i (0)",
    )


def sampling_of(args: argparse.Namespace, prompts: int) -> Sampling:
    """Return the sampling options, after checking the seeds of all prompts."""
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    seeded(sampling, prompts - 1)
    return sampling


def seeded(sampling: Sampling, prompt: int) -> Sampling:
    """Return the sampling of prompt i: seed + i, as for sequence i of a batch."""
    return replace(sampling, seed=sampling.seed + prompt)


def limits_of(args: argparse.Namespace) -> Limits:
    return Limits(args.max_new_tokens, tuple(args.stop))


def busy_warning(args: argparse.Namespace, before: ProcessorTime) -> str:
    """Return the warning of a busy machine for measured runs, else nothing; print it on stderr."""
    from app.busy import busy_since

    elsewhere = args.address is not None  # a cluster's workers are no children of this process
    warning = busy_since(before) if is_measured(args) and not elsewhere else ""
    if warning:
        print(f"specscope: {warning}", file=sys.stderr)
    return warning


SHORT = 32
"""Tokens of an answer below which a speed-up says little about longer ones."""


def short_warning(answers: Sequence[int]) -> str:
    """Return the warning of short answers (in tokens), else nothing; print it on stderr."""
    mean = sum(answers) / len(answers)
    if mean >= SHORT:
        return ""
    tokens = f"The answer has {answers[0]}" if len(answers) == 1 else f"The answers have {mean:.0f}"
    warning = (
        f"{tokens} tokens, and a speed-up over fewer than {SHORT} depends on the first rounds; give a prompt with a "
        "longer answer, or raise --max-new-tokens"
    )
    print(f"specscope: {warning}", file=sys.stderr)
    return warning


def clean(value: Any) -> Any:
    """Return a copy for JSON, with NaN and infinities as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    return value


def print_json(value: Any) -> None:
    json.dump(clean(value), sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")
