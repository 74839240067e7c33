"""Options, prompts, clusters, stores and JSON output, shared by the commands."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.waiting import DownloadBar
from engine.errors import StoreMissing, UsageError, shown
from engine.files import parse_json, read_text
from engine.types import Limits, Sampling, check_range, check_text

if TYPE_CHECKING:
    from app.busy import Reading
    from traces.store import Store

MAX_PROMPT_FILE = 64 * 2**20


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_database(parser: argparse.ArgumentParser) -> None:
    """Add --db."""
    parser.add_argument("--db", type=Path, metavar="FILE", help="trace database (default: the user's own)")


def open_store(args: argparse.Namespace) -> Store:
    """Open the trace database that the options name."""
    from traces.store import Store, default_path

    return Store(args.db if args.db is not None else default_path())


def open_stored(args: argparse.Namespace, runs: Sequence[str]) -> Store:
    """Open the trace database read-only.

    Raises:
        UsageError: The database, and so the runs, do not exist.
        StoreError: The database cannot be read.
    """
    from traces.store import Store, default_path

    path = args.db if args.db is not None else default_path()
    try:
        return Store(path, readonly=True)
    except StoreMissing as error:
        raise UsageError(f"there is no run {', '.join(map(shown, runs[:3]))}: {error}") from None


def check_output(path: Path) -> None:
    """Check that a file can be written to a path, before the work for it begins.

    Raises:
        UsageError: The path is a folder, or its folder does not exist.
    """
    if path.is_dir():
        raise UsageError(f"the output {path} is a folder; name a file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"the folder of the output {path} does not exist; make it first")


def add_settings(parser: argparse.ArgumentParser, about: str) -> None:
    """Add `--set`, whose values `app.cli.run.parse_fields` reads; `about` is its help text."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="fields", help=about
    )


def add_generation(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add prompts, sampling and limits.

    Args:
        parser: Takes the options.
        required: Whether the command needs a prompt.
    """
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


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add models and runtime."""
    add_models(parser)
    _add_runtime(parser)
    add_devices(parser)


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add a pair, or a target with its drafters and heads."""
    parser.add_argument(
        "--pair",
        default="bundled",
        metavar="NAME",
        help="bundled, a toy, or a model of `specscope models` (bundled)",
    )
    parser.add_argument(
        "--target",
        metavar="PATH",
        help="directory, .gguf file, short name or hub id of a target, instead of the pair",
    )
    parser.add_argument(
        "--drafter",
        action="append",
        metavar="PATH",
        help="the same for its drafter; repeat for several (dsi)",
    )
    parser.add_argument(
        "--head",
        action="append",
        metavar="PATH",
        help="directory of a drafting head of the target; repeatable: a method uses the first of its kind",
    )


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runtime",
        metavar="NAME",
        help="local-process, local-thread, ray, or virtual (local-process; virtual with --profile)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="head of a Ray cluster, or auto for the one this machine is in (with ray: this machine alone)",
    )
    parser.add_argument(
        "--profile", metavar="NAME", help="latency profile of a virtual cluster: a name or a .toml file"
    )
    parser.add_argument("--profile-pair", metavar="NAME", help="one of the profile's pairs")
    parser.add_argument(
        "--tokens",
        default="pair",
        metavar="SOURCE",
        help="virtual only: pair decodes, bernoulli:RATE accepts drafts at that rate (pair)",
    )
    parser.add_argument(
        "--forward",
        default="eager",
        metavar="NAME",
        help="eager, or static for forwards of fixed shapes, on CUDA as graphs; not run on a GPU yet (eager)",
    )


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Add devices, their memory, and how models are split over them."""
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (auto)")
    parser.add_argument(
        "--dtype",
        default="auto",
        metavar="NAME",
        help="of the weights: float32, bfloat16, or auto for bfloat16 on GPUs and float32 on CPUs (auto)",
    )
    parser.add_argument(
        "--tp",
        type=int,
        default=1,
        metavar="N",
        help="split the target's heads and columns over N devices, with local-process or ray (1)",
    )
    parser.add_argument(
        "--drafter-tp", type=int, default=1, metavar="M", help="the same for the drafter, over M devices (1)"
    )
    parser.add_argument(
        "--memory",
        default="",
        metavar="SIZES",
        help="bytes that models may take on devices, as in 0=4GiB,1=4GiB; a target that fits on none of them is split "
        "by layers (what is free)",
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
    """Return the limit options, checked."""
    return Limits(args.max_new_tokens, tuple(args.stop))


def is_measured(args: argparse.Namespace) -> bool:
    """Return whether the runs are measured on this machine, not timed by a profile."""
    return args.profile is None and args.runtime != "virtual"


def busy_warning(args: argparse.Namespace, before: Reading) -> str:
    """Return the warning of a busy machine for measured runs, else nothing; print it on stderr.

    Args:
        args: The options of the cluster.
        before: The load's reading before the runs.
    """
    from app.busy import busy_since

    warning = busy_since(before) if is_measured(args) else ""
    if warning:
        print(f"specscope: {warning}", file=sys.stderr)
    return warning


def open_cluster(args: argparse.Namespace) -> Any:
    """Open the cluster that the options describe; show downloads of its models on stderr."""
    runtime = args.runtime or ("virtual" if args.profile is not None else "local-process")
    if runtime == "local-process" and args.device != "cuda":
        from engine.workers.transports.forks import warm_up

        warm_up()  # it imports torch while this process does
    import engine

    with DownloadBar() as bar:
        return engine.open(
            args.pair,
            target=args.target,
            drafter=args.drafter,
            runtime=runtime,
            profile=args.profile,
            profile_pair=args.profile_pair,
            tokens=args.tokens,
            device=args.device,
            forward=args.forward,
            dtype=args.dtype,
            tp=args.tp,
            drafter_tp=args.drafter_tp,
            address=args.address,
            memory=args.memory,
            head=args.head,
            progress=bar.show,
        )


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt with its category in the prompt file."""

    text: str
    category: str = ""
    line: int = 1
    """Line in the file, from 1."""


def prompts_of(args: argparse.Namespace) -> list[PromptRow]:
    """Return the prompts that the options name.

    Raises:
        UsageError: The file cannot be read or contains no prompt; the message has line and reason.
    """
    if args.limit is not None:
        check_range("--limit", args.limit, 1)
    if args.prompt is None:
        rows = read_prompts(args.prompt_file)
    elif not args.prompt:
        raise UsageError("the prompt is empty; type some text")
    else:
        rows = [PromptRow(args.prompt)]
    return rows if args.limit is None else spread(rows, args.limit)


def read_prompts(path: Path) -> list[PromptRow]:
    """Read a text file (one prompt), or .jsonl with turns, prompt, question or text per row."""
    content = read_text(path, MAX_PROMPT_FILE)
    if path.suffix != ".jsonl":
        rows = [PromptRow(content.strip())]
    else:
        # JSON strings may contain other line ends of Unicode, so split at "\n" only.
        rows = [_row(path, n, line) for n, line in enumerate(content.split("\n"), 1) if line.strip()]
    if not any(row.text for row in rows):
        raise UsageError(f"{path} contains no prompt; add some text")
    for row in rows:
        if not row.text:
            raise UsageError(f"{path} line {row.line} has an empty prompt; type some text")
        check_text(f"{path} line {row.line}", row.text)
    return rows


def _row(path: Path, number: int, line: str) -> PromptRow:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UsageError(f"{path} line {number} is not JSON ({error})") from None
    category = row.get("category", "") if isinstance(row, dict) else ""
    if not isinstance(category, str | int):
        raise UsageError(f"{path} line {number} has category {shown(category)}; it must be a text")
    for key in ("turns", "prompt", "question", "text"):
        value = row.get(key) if isinstance(row, dict) else None
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str):
            return PromptRow(value, str(category), number)
    raise UsageError(f"{path} line {number} has none of turns, prompt, question, text")


def spread(rows: list[PromptRow], n: int) -> list[PromptRow]:
    """Return n rows in file order, taken evenly from the categories."""
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.category, []).append(i)
    order = [g[k] for k in range(max(map(len, groups.values()))) for g in groups.values() if k < len(g)]
    return [rows[i] for i in sorted(order[:n])]


def prompt_for(args: argparse.Namespace, row: PromptRow) -> Any:
    """Return a row's text, or messages if the options have a system prompt."""
    if not args.system:
        return row.text
    return [{"role": "system", "content": args.system}, {"role": "user", "content": row.text}]


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
    """Print one JSON object."""
    json.dump(clean(value), sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")
