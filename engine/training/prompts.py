"""Prompts for measurements: from held-out chats, and from files that were never trained on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from engine.errors import UsageError
from engine.files import parse_json, read_text
from engine.training.data import find_sources, is_held_out, read_documents
from engine.training.tokenizer import ROLES, split_chat

MOST_BYTES = 64 * 2**20
"""Largest file of prompts."""


def held_out_prompts(data: Path, held_out: float, sources: Iterable[str], count: int) -> list[str]:
    """Return the first user turns of held-out chats, up to `count` from each of the sources.

    Raises:
        UsageError: The corpus cannot be read.
    """
    prompts = list[str]()
    for source, path in find_sources(data).items():
        if source in sources:
            turns = [split_chat(d) for d in read_documents(path) if is_held_out(d, held_out)]
            first = [t[1] for t in turns if len(t) > 3 and t[0] == ROLES[0] and t[2] == ROLES[1]]
            prompts += first[:count]
    return prompts


def read_prompts(path: Path, count: int) -> list[str]:
    """Return up to `count` prompts, evenly spread over a JSONL file with `turns` or `prompt`.

    Raises:
        UsageError: The file is missing or has another form.
    """
    lines = read_text(path, MOST_BYTES).split("\n")
    try:
        rows = [parse_json(line) for line in lines if line.strip()]
        prompts = [str(row["turns"][0] if "turns" in row else row["prompt"]) for row in rows]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(
            f"{path} is not a list of prompts ({error}); each line is JSON with turns or prompt"
        ) from None
    if len(prompts) <= count:
        return prompts
    return [prompts[i * len(prompts) // count] for i in range(count)]
