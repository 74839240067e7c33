"""Methods and prompts as a person names them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specscope.engine.errors import OutOfMemory, UsageError
from specscope.engine.methods import BASELINE, METHODS, find
from specscope.engine.types import Sampling

MAX_PASSES = 9
"""Most passes of a comparison."""
BENCH = Path(__file__).parents[1] / "assets" / "prompts" / "bench.json"


def bench_prompts() -> list[str]:
    return json.loads(BENCH.read_text(encoding="utf-8"))["prompts"]


def samples() -> list[dict[str, str]]:
    """Return the prompts that the page offers, each with its `title`."""
    return json.loads((BENCH.parent / "samples.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class PromptRow:
    """A prompt with its category in the prompt file."""

    text: str
    category: str = ""
    line: int = 1
    """Line in the file, from 1."""


def method_keys(names: str | Sequence[str]) -> list[str]:
    """Return the keys in a list or a comma-separated text, with the baseline first."""
    if names == "all":
        names = list(METHODS)
    keys = [k.strip() for k in (names.split(",") if isinstance(names, str) else names) if k.strip()]
    if not keys:
        raise UsageError("--methods is empty; name methods separated by commas, or all")
    for key in keys:
        find(key)
    return list(dict.fromkeys([BASELINE, *keys]))


def able(keys: list[str], cluster: Any, load: Any = None) -> tuple[list[str], dict[str, str]]:
    """Return the methods that the open models can run (under a load), and why not the others."""
    left_out = dict[str, str]()
    for key in keys:
        try:
            cluster.check(key, load)
        except (UsageError, OutOfMemory) as error:
            left_out[key] = str(error)
    return [key for key in keys if key not in left_out], left_out


def seeded(sampling: Sampling, prompt: int) -> Sampling:
    """Return the sampling of prompt i: seed + i, as for sequence i of a batch."""
    return replace(sampling, seed=sampling.seed + prompt)
