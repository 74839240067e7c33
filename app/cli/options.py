"""Options that several commands share, each declared once, and the values that they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from specscope.app.named import seeded
from specscope.engine.cluster import options as cluster
from specscope.engine.errors import UsageError, shown
from specscope.engine.types import Limits, Sampling

Options = Mapping[str, tuple[Any, str, str]]
"""Flags, or the name of a value without one -> default, metavar, help.

The default is a type where there is none, False for a switch, and a list, or `list`, for what may
be repeated; a dict has arguments of argparse.
"""

JSON: Options = {"--json": (False, "", "print one JSON object")}
DATABASE: Options = {"--db": (Path, "FILE", "trace database (default: the user's own)")}
PAIR: Options = {
    "--pair": (str, "NAME", "a model of `specscope models`, or bundled, a toy (smollm2 if it is here)")
}
MODELS: Options = PAIR | {
    "--target": (str, "PATH", "directory, .gguf file, short name or hub id, instead of the pair"),
    "--drafter": (
        list,
        "PATH",
        "its drafter, or int4 or int8 for the target in fewer bits; repeatable (dsi)",
    ),
    "--head": (
        list,
        "PATH",
        "a drafting head of the target; repeatable: a method uses the first of its kind",
    ),
}
PLACE: Options = {
    f"--{one.name.replace('_', '-')}": one.metadata["flag"] for one in fields(cluster.Options) if one.metadata
}
"""Where models run and how they compute, declared by the engine."""
DEVICES: Options = {flag: PLACE[flag] for flag in ("--device", "--dtype", "--tp", "--drafter-tp", "--memory")}
"""Those of this machine's devices."""
SERVER: Options = {
    "--remote": (False, "", "with --server: it may be on another machine, to which the prompts are sent"),
    "--at-once": (1, "N", "with --server: requests at once (1)"),
    "--chat": (False, "", "with --server: send each prompt as a chat message, in the model's template"),
    "--probabilities": (
        False,
        "",
        "with --server: ask llama.cpp for p of tokens that it did not verify; takes time",
    ),
}
"""Of a run on a server; its address is an option in place of a method."""
PROMPT: Options = {
    "--prompt": (str, "TEXT", "one prompt"),
    "--prompt-file": (Path, "F", "text with one prompt, or .jsonl: turns, prompt, question or text in a row"),
}
GENERATION: Options = {
    "--limit": (int, "N", "use N of the prompts, taken evenly from their categories"),
    "--system": (str, "TEXT", "system prompt"),
    "--max-new-tokens": (128, "N", "generate at most N tokens (128)"),
    "--stop": ([], "TEXT", "end the output before this text; repeatable"),
    "--temperature": (0.0, "T", "0 is greedy (0)"),
    "--top-k": (0, "K", "sample from the K most probable tokens; 0 = all (0)"),
    "--top-p": (1.0, "P", "sample from the most probable tokens with total probability P (1)"),
    "--seed": (0, "S", "seed of all draws; prompt i of a file has seed S + i (0)"),
}


RUN = (MODELS, PLACE, DATABASE, JSON)
"""What every command that decodes has: models, runtime, devices, database and JSON."""


def add_options(parser: argparse._ActionsContainer, *tables: Any) -> None:
    """Add tables of options; a function among them adds what no table can say."""
    for table in tables:
        if callable(table):
            table(parser)
            continue
        for flags, (default, metavar, text) in table.items():
            kind: dict[str, Any] = {"metavar": metavar} if metavar else {}
            if isinstance(default, dict):
                kind |= default
            elif default is False:
                kind = {"action": "store_true"}
            elif default is list or isinstance(default, list):
                kind |= {"action": "append", "default": None if default is list else default}
            elif isinstance(default, type):
                kind["type"] = default
            else:
                kind |= {"type": type(default), "default": default}
            parser.add_argument(*flags.split(), help=text, **kind)


def one_of(table: Options, *, needed: bool = False) -> Callable[[argparse.ArgumentParser], None]:
    """Return what adds options that exclude each other; `needed`: one must be given."""
    return lambda parser: add_options(parser.add_mutually_exclusive_group(required=needed), table)


METHOD = (
    one_of(
        {
            "--method": (str, "KEY", "a key of `specscope methods`"),
            "--server": ([], "URL", "the address of a running llama.cpp, vLLM or other server, instead"),
        },
        needed=True,
    ),
    SERVER,
)
"""A method, or in its place a server with its options."""
METHODS: Options = {"--methods": (str, "A,B|all", "keys with commas, or all")}
SETTINGS: Options = {"--set": ([], "METHOD.FIELD=VALUE", "a setting of a method; repeatable")}
"""See `parse_settings`."""


def check_server(args: argparse.Namespace) -> None:
    """Refuse options that a run on a server does not have, or that only such a run has."""
    ours = (MODELS, PLACE) if args.server else (SERVER,)
    given = [
        flag
        for table in ours
        for flag, (default, _, _), value in zip(
            table, table.values(), values_of(args, table).values(), strict=True
        )
        if value != (None if isinstance(default, type) else default)
    ]
    given += ["--set"] * bool(args.server and args.set)
    if given and args.server:
        raise UsageError(
            f"{given[0]} is of SpecScope's own engine; a server has its own models: leave it out"
        )
    if given:
        raise UsageError(f"{given[0]} is for a run on a server; add --server URL, or leave it out")


def values_of(args: argparse.Namespace, *tables: Options) -> dict[str, Any]:
    """Return the values of options by their names in Python."""
    names = [flag[2:].replace("-", "_") for table in tables for flag in table]
    return {name: getattr(args, name) for name in names}


def is_measured(args: argparse.Namespace) -> bool:
    return args.profile is None and args.runtime != "virtual"


def sampling_of(args: argparse.Namespace, prompts: int) -> Sampling:
    """Return the sampling options, after checking the seeds of all prompts."""
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    seeded(sampling, prompts - 1)
    return sampling


def limits_of(args: argparse.Namespace) -> Limits:
    return Limits(args.max_new_tokens, tuple(args.stop))


def parse_fields(fields: list[str]) -> dict[str, Any]:
    """Return FIELD=VALUE texts as a dict, before the registry converts and checks the values."""
    parsed: dict[str, Any] = {}
    for text in fields:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {shown(text)} is not FIELD=VALUE")
        parsed[name] = value
    return parsed


def parse_over(text: str) -> tuple[str, str]:
    """Return the field and the values of a FIELD=VALUES text."""
    name, equals, values = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--over {shown(text)} is not FIELD=VALUES")
    return name, values


def parse_settings(fields: list[str], keys: list[str]) -> dict[str, dict[str, Any]]:
    """Return METHOD.FIELD=VALUE texts as the config of each method."""
    parsed: dict[str, dict[str, Any]] = {key: {} for key in keys}
    for name, value in parse_fields(fields).items():
        key, _, field = name.partition(".")
        if key not in keys or not field:
            given = shown(f"{name}={value}").strip("'")
            raise UsageError(f"--set {given} is not METHOD.FIELD=VALUE with a method of --methods")
        parsed[key][field] = value
    return parsed
