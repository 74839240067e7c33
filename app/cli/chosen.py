"""The methods of a command, and those for which its models suffice."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from app.cli.common import note
from app.pairs import NAMES
from engine.checkpoints.catalog import CATALOG, opening, stored_heads
from engine.errors import UsageError
from engine.methods import BASELINE, METHODS, find


def method_keys(text: str) -> list[str]:
    """Return the keys in a comma-separated text, with the baseline first."""
    keys = list(METHODS) if text == "all" else [k.strip() for k in text.split(",") if k.strip()]
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
        except UsageError as error:
            left_out[key] = str(error)
    return [key for key in keys if key not in left_out], left_out


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
        return (
            f"{key} needs a drafting head of kind {layout.head}, and {args.target or name} has none; name one with --head, "
            f"or train it: specscope train {layout.head}"
        )
    return ""
