"""What several commands share: options, prompts, opening a cluster, printing JSON."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.cli.waiting import DownloadBar
from engine.errors import UsageError
from engine.types import Limits, Sampling

MAX_PROMPT_FILE = 64 * 2**20


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_database(parser: argparse.ArgumentParser) -> None:
    """Add --db."""
    parser.add_argument("--db", type=Path, metavar="FILE", help="trace database (default: the user's own)")


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Add prompts, sampling and limits."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="one prompt")
    source.add_argument(
        "--prompt-file",
        type=Path,
        metavar="F",
        help="a text file, or .jsonl with turns, prompt, question or text",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="rows of the prompt file, evenly over its categories"
    )
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument(
        "--max-new-tokens", type=int, default=128, metavar="N", help="tokens to generate at most (128)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (0)")
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="K", help="keep the K most probable tokens; 0 = all (0)"
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="keep the nucleus of this mass (1)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="S",
        help="seed of every draw; prompt i of several has S + i (0)",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable"
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add models and runtime."""
    parser.add_argument("--pair", default="bundled", metavar="NAME", help="a pair in assets/pairs (bundled)")
    parser.add_argument(
        "--target", metavar="PATH", help="directory or hub id of a target, instead of the pair"
    )
    parser.add_argument(
        "--drafter",
        action="append",
        metavar="PATH",
        help="directory or hub id of its drafter; repeatable, for dsi with several",
    )
    parser.add_argument(
        "--head",
        action="append",
        metavar="PATH",
        help="directory of a drafting head of the target; repeatable: a method takes the first of its kind",
    )
    parser.add_argument(
        "--runtime",
        metavar="NAME",
        help="local-process, local-thread, or virtual (local-process; virtual with --profile)",
    )
    parser.add_argument(
        "--profile", metavar="NAME", help="latency profile of a virtual cluster: a name, or a file .toml"
    )
    parser.add_argument("--profile-pair", metavar="NAME", help="one of the profile's pairs")
    parser.add_argument(
        "--tokens", default="pair", metavar="SOURCE", help="virtual only: pair, or bernoulli:RATE (pair)"
    )
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda (auto)")


def sampling_of(args: argparse.Namespace) -> Sampling:
    """Return the sampling options, checked."""
    return Sampling(args.temperature, args.top_k, args.top_p, args.seed)


def seeded(sampling: Sampling, prompt: int) -> Sampling:
    """Return how the i-th prompt of several is sampled in a run of its own: as it would be as sequence i of a batch."""
    return replace(sampling, seed=sampling.seed + prompt)


def limits_of(args: argparse.Namespace) -> Limits:
    """Return the limits, checked."""
    return Limits(args.max_new_tokens, tuple(args.stop))


def open_cluster(args: argparse.Namespace) -> Any:
    """Open the cluster the options describe; a download of its models is shown on standard error."""
    import engine

    runtime = args.runtime or ("virtual" if args.profile is not None else "local-process")
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
            head=args.head,
            progress=bar.show,
        )


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt and the category its file gives it."""

    text: str
    category: str = ""
    line: int = 1
    """Its line in the file, from 1."""


def prompts_of(args: argparse.Namespace) -> list[PromptRow]:
    """Return the prompts the options name.

    Raises:
        UsageError: The file cannot be read or holds no prompt; the message names line and reason.
    """
    rows = [PromptRow(args.prompt)] if args.prompt is not None else read_prompts(args.prompt_file)
    if args.limit is not None:
        if args.limit < 1:
            raise UsageError(f"--limit is {args.limit}; it must be at least 1")
        rows = spread(rows, args.limit)
    return rows


def read_prompts(path: Path) -> list[PromptRow]:
    """Read a prompt file: text (one prompt), or .jsonl with one of turns, prompt, question, text in each row."""
    try:
        if path.stat().st_size > MAX_PROMPT_FILE:
            raise UsageError(
                f"{path} has {path.stat().st_size} bytes; a prompt file may have {MAX_PROMPT_FILE}"
            )
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text: byte {error.start} is not UTF-8") from None
    if path.suffix != ".jsonl":
        rows = [PromptRow(content.strip())]
    else:
        rows = [_row(path, n, line) for n, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not rows or not any(r.text for r in rows):
        raise UsageError(f"{path} holds no prompt")
    return rows


def _row(path: Path, number: int, line: str) -> PromptRow:
    try:
        row = json.loads(line)
    except ValueError:
        raise UsageError(f"{path} line {number} is not JSON") from None
    for key in ("turns", "prompt", "question", "text"):
        value = row.get(key) if isinstance(row, dict) else None
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str):
            return PromptRow(value, str(row.get("category", "")), number)
    raise UsageError(f"{path} line {number} has none of turns, prompt, question, text")


def spread(rows: list[PromptRow], n: int) -> list[PromptRow]:
    """Return n rows, taken in turn from each category, in file order."""
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.category, []).append(i)
    order = [g[k] for k in range(max(map(len, groups.values()))) for g in groups.values() if k < len(g)]
    return [rows[i] for i in sorted(order[:n])]


def prompt_for(args: argparse.Namespace, row: PromptRow) -> Any:
    """Return what the engine decodes: the text, or messages when there is a system prompt."""
    if not args.system:
        return row.text
    return [{"role": "system", "content": args.system}, {"role": "user", "content": row.text}]


def clean(value: Any) -> Any:
    """Return a JSON-able copy: not-a-number and infinities become null."""
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
