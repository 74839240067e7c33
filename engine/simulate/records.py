"""Dataclasses from tables of a TOML file, with checked keys, types and ranges."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from specscope.engine.errors import UsageError, plain_name
from specscope.engine.schema import Range, plain

Record = TypeVar("Record")
Table = Mapping[str, Any]
MOST_GPUS = 1024
MOST_TABLES = 100
_LONGEST_TEXT = 1000
Gpus = Annotated[int, Range(1, MOST_GPUS)]
Positive = Annotated[float, Range(1e-3, 1e9)]
"""A number of any unit that is not 0."""
Delay = Annotated[float, Range(0, 1e6)]
"""Micro- or milliseconds; the ranges keep all derived times finite."""


def record(kind: type[Record], table: Table, where: str) -> Record:
    """Return a dataclass with the values of a table; keys of fields with a default are optional.

    `where` is the prefix of keys in messages, such as `models.x.`; a UsageError names the key.
    """
    hints = _hints(kind)
    known = fields(kind)  # pyright: ignore[reportArgumentType] - callers pass dataclasses
    keys(table, {f.name for f in known if f.default is MISSING}, where, {f.name for f in known})
    return kind(**{key: value(table[key], hints[key], where + key) for key in hints if key in table})


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    """Return a dataclass's types, cached: a file has many records of a few kinds."""
    return get_type_hints(kind, include_extras=True)


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


def value(content: Any, hint: Any, where: str) -> Any:
    kind, allowed = plain(hint)
    types = (int, float) if kind is float else kind
    if not isinstance(content, types) or (isinstance(content, bool) and kind is not bool):
        raise UsageError(f"{where} is {reprlib.repr(content)}; it must be of type {kind.__name__}")
    if allowed and not allowed.low <= content <= allowed.high:
        low, high, _ = allowed
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
