"""Dataclasses from tables of a TOML file, with checked keys, types and ranges."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from specscope.engine.errors import UsageError, plain_name
from specscope.engine.model.fields import WHOLE

Record = TypeVar("Record")
Table = Mapping[str, Any]
MOST_GPUS = 1024
MOST_TABLES = 100
_LONGEST_TEXT = 1000
_GPUS, _SPEED, _RATE, _TIME = (1, MOST_GPUS), (1e-3, 1e9), (1e-3, 1e9), (0, 1e6)
RANGES: dict[str, tuple[float, float]] = {
    "gpus": _GPUS,
    "target_gpus": _GPUS,
    "drafter_gpus": _GPUS,
    "layers": WHOLE["num_hidden_layers"],
    "dim": WHOLE["hidden_size"],
    "ffn": WHOLE["intermediate_size"],
    "kv_heads": WHOLE["num_key_value_heads"],
    "vocab": WHOLE["vocab_size"],
    "head_dim": WHOLE["head_dim"],
    "heads": WHOLE["num_attention_heads"],
    "experts": WHOLE["num_experts"],
    "experts_per_token": WHOLE["num_experts_per_tok"],
    "expert_ffn": WHOLE["moe_intermediate_size"],
    "speed": _SPEED,
    "target_speed": _SPEED,
    "drafter_speed": _SPEED,
    "bandwidth_gb_s": _RATE,
    "link_gb_s": _RATE,
    "peak_tflops": _RATE,
    "fp8_tflops": _RATE,
    "int8_tops": _RATE,
    "memory_gib": _RATE,
    "collective_us": (1e-3, 1e9),
    "hop_us": _TIME,
    "layer_us": _TIME,
    "host_us": _TIME,
    "communicate_ms": _TIME,
    "sample_ms": _TIME,
    "move_ms": _TIME,
    "verify_ms": _TIME,
    "fuzzy_ms": _TIME,
}
"""(least, largest) value of each number by its key; they keep all derived times finite."""


def record(kind: type[Record], table: Table, where: str) -> Record:
    """Return a dataclass with the values of a table; keys of fields with a default are optional.

    `where` is the prefix of keys in messages, such as `models.x.`; a UsageError names the key.
    """
    hints = _hints(kind)
    known = fields(kind)  # pyright: ignore[reportArgumentType] - callers pass dataclasses
    keys(table, {f.name for f in known if f.default is MISSING}, where, {f.name for f in known})
    return kind(**{key: value(table[key], _plain(hints[key]), where + key) for key in hints if key in table})


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return a dataclass's types, cached: a file has many records of a few kinds."""
    return get_type_hints(kind)


def records(
    kind: type[Record],
    document: Table,
    key: str,
    whole: Callable[[Table, str], Table] = lambda table, _: table,
) -> dict[str, Record]:
    """Return the dataclasses of a table of tables; `whole` adds what a table does not say."""
    rows = value(document[key], dict, key)
    if len(rows) > MOST_TABLES:
        raise UsageError(f"{key} has {len(rows)} tables; there may be at most {MOST_TABLES}")
    for name in rows:
        check_name(name, key)
    return {
        name: record(kind, whole(value(row, dict, where := f"{key}.{name}"), f"{where}."), f"{where}.")
        for name, row in rows.items()
    }


def keys(table: Table, needed: set[str], where: str, known: set[str]) -> None:
    if missing := sorted(needed - set(table)):
        raise UsageError(f"{where}{missing[0]} is missing")
    if unknown := sorted(set(table) - known):
        raise UsageError(
            f"{where}{plain_name(unknown[0])} is not a key; those there are: {', '.join(sorted(known))}"
        )


def value(content: Any, kind: type[Any], where: str) -> Any:
    types = (int, float) if kind is float else kind
    if not isinstance(content, types) or (isinstance(content, bool) and kind is not bool):
        raise UsageError(f"{where} is {reprlib.repr(content)}; it must be of type {kind.__name__}")
    if kind in (int, float):
        low, high = RANGES[where.rpartition(".")[2]]
        if not low <= content <= high:
            raise UsageError(
                f"{where} is {reprlib.repr(content)}; it must be at least {low:g} and at most {high:g}"
            )
    if content in ("", [], {}):
        raise UsageError(f"{where} is empty")
    if isinstance(content, str) and len(content) > _LONGEST_TEXT:
        raise UsageError(f"{where} has {len(content)} characters; there may be at most {_LONGEST_TEXT}")
    return content


def check_name(name: str, where: str) -> None:
    if not name or plain_name(name) != name:
        raise UsageError(
            f"{where} has the name {reprlib.repr(name)}; it must be one line that is not too long"
        )


def _plain(hint: Any) -> Any:
    if isinstance(hint, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    return get_origin(hint) or hint
