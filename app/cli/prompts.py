"""Prompts of the commands: the option, or a file of text or rows."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.bounds import check_prompt
from engine.errors import UsageError, shown
from engine.files import parse_json, read_text
from engine.types import check_range, check_text

MAX_PROMPT_FILE = 64 * 2**20


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt with its category in the prompt file."""

    text: str
    category: str = ""
    line: int = 1
    """Line in the file, from 1."""


def prompts_of(args: argparse.Namespace) -> list[PromptRow]:
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
