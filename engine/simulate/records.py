"""Tables of a TOML file into dataclasses: every key known, of its type, in range; what is wrong is named by its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from engine.errors import UsageError

Record = TypeVar("Record")
Table = Mapping[str, Any]


def record(kind: type[Record], table: Table, where: str) -> Record:
    """Return a dataclass made of a table: its fields are the keys, those with a default may be left out.

    Args:
        kind: The dataclass; its fields are of plain types, or one of them or None.
        table: What the file says.
        where: Put before a key in messages, such as `models.x.`.

    Raises:
        UsageError: A key is missing or unknown, or its value is of another type, out of range or empty.
    """
    hints = get_type_hints(kind)
    known = fields(kind)  # pyright: ignore[reportArgumentType] - callers pass dataclasses
    keys(table, {f.name for f in known if f.default is MISSING}, where, {f.name for f in known})
    return kind(**{key: value(table[key], _plain(hints[key]), where + key) for key in hints if key in table})


def records(kind: type[Record], document: Table, key: str) -> dict[str, Record]:
    """Return the dataclasses of a table of tables, by name."""
    rows = value(document[key], dict, key)
    return {
        name: record(kind, value(row, dict, f"{key}.{name}"), f"{key}.{name}.") for name, row in rows.items()
    }


def keys(table: Table, needed: set[str], where: str, known: set[str]) -> None:
    """Raise UsageError unless the table has all needed keys and no unknown one."""
    if missing := sorted(needed - set(table)):
        raise UsageError(f"{where}{missing[0]} is missing")
    if unknown := sorted(set(table) - known):
        raise UsageError(f"{where}{unknown[0]} is not a key; those there are: {', '.join(sorted(known))}")


def value(found: Any, kind: type[Any], where: str) -> Any:
    """Return a value of the file once it is of its type, a number above 0 (a `_ms` may be 0), and not empty."""
    wanted = (int, float) if kind is float else kind
    if not isinstance(found, wanted) or (isinstance(found, bool) and kind is not bool):
        raise UsageError(f"{where} is {found!r}; it must be of type {kind.__name__}")
    if isinstance(found, (int, float)) and kind is not bool:
        nothing = found == 0 and where.endswith("_ms")
        if not (nothing or 0 < found < float("inf")):
            raise UsageError(f"{where} is {found}; it must be more than 0")
    if found in ("", [], {}):
        raise UsageError(f"{where} is empty")
    return found


def _plain(hint: Any) -> Any:
    """Return the type of an optional field's value, without its parameters."""
    if isinstance(hint, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not NoneType)
    return get_origin(hint) or hint
