"""The prompts that a command names, and the methods whose models are named with it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from specscope.app.cli.common import note
from specscope.app.named import PromptRow, bench_prompts
from specscope.app.pairs import NAMES
from specscope.engine.bounds import check_prompt
from specscope.engine.checkpoints.catalog import CATALOG, opening, stored_heads
from specscope.engine.checkpoints.config import unused_layers
from specscope.engine.checkpoints.sources import is_gguf
from specscope.engine.errors import UsageError, shown
from specscope.engine.files import parse_json, read_text
from specscope.engine.methods import BASELINE, find
from specscope.engine.types import check_range, check_text


def equipped(
    args: argparse.Namespace, configs: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], dict[str, str]]:
    """Return the methods for which drafters and heads are named, and what each other method lacks.

    Nothing is loaded. A line on stderr names what is left out. Alone, the baseline is refused.
    """
    lacks = {key: lacking(args, key, config) for key, config in configs.items()}
    left_out = {key: reason for key, reason in lacks.items() if reason}
    if left_out and set(configs) - set(left_out) == {BASELINE} != {*configs}:
        raise UsageError(next(iter(left_out.values())))
    for reason in left_out.values():
        note(f"left out: {reason}")
    return [key for key in configs if key not in left_out], left_out


def lacking(args: argparse.Namespace, key: str, config: Mapping[str, Any]) -> str:
    """Return which model a method needs and the options do not name; empty for none."""
    method = find(key)
    layout = method.layout(method.configure(config))
    name = (args.target if args.target in CATALOG else "") if args.target else args.pair or opening()
    if layout.needs_drafter and not name and not args.drafter:
        return (
            f"{key} needs a drafter, and none was given; name one with --drafter, for example --drafter int4"
        )
    stored = stored_heads(name) if name else frozenset[str]()
    if layout.head and not args.head and layout.head not in stored and name in ("", *NAMES):
        folder = Path(args.target) if args.target and not name else None
        if folder is not None and folder.is_dir():
            from specscope.engine.checkpoints.checkpoint import drafts_itself  # both import torch
            from specscope.engine.heads.kinds import KINDS

            if KINDS[layout.head].in_target and drafts_itself(folder):
                return ""
            if KINDS[layout.head].in_target and (declared := unused_layers(folder)):
                return f"{declared}: train them (specscope train {layout.head}), or name a head with --head"
        if folder is not None and is_gguf(folder):
            _check_gguf(folder)
        return (
            f"{key} needs a drafting head of kind {layout.head}, and {args.target or name} has none; name one with --head, "
            f"or train it: specscope train {layout.head}"
        )
    return ""


@cache
def _check_gguf(file: Path) -> None:
    from specscope.engine.checkpoints.gguf_file import GgufFile  # imports torch

    GgufFile(file)  # names an architecture that cannot be run


MAX_PROMPT_FILE = 64 * 2**20


def prompts_of(args: argparse.Namespace) -> list[PromptRow]:
    """Return the prompts that the options name, else the bench's."""
    if args.limit is not None:
        check_range("--limit", args.limit, 1)
    if args.prompt is None and args.prompt_file is None:
        rows = list(map(PromptRow, bench_prompts()))
    elif args.prompt is None:
        rows = read_prompts(args.prompt_file)
    elif not args.prompt:
        raise UsageError("the prompt is empty; type some text")
    else:
        rows = [PromptRow(args.prompt)]
    return rows if args.limit is None else spread(rows, args.limit)


def read_prompts(path: Path) -> list[PromptRow]:
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


def checked_prompts(args: argparse.Namespace) -> list[Any]:
    """Return the prompts that the options name, none too long for any model."""
    prompts = [prompt_for(args, row) for row in prompts_of(args)]
    for prompt in prompts:
        check_prompt(prompt)
    return prompts


def prompt_for(args: argparse.Namespace, row: PromptRow) -> Any:
    """Return a row's text, or messages if the options have a system prompt."""
    if not args.system:
        return row.text
    return [{"role": "system", "content": args.system}, {"role": "user", "content": row.text}]
