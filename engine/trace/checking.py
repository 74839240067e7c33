"""Check that the values of events have their declared types. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import chain
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from engine.errors import shown
from engine.trace.events import Device, Event

MOST_LEVELS = 16
"""Levels of nesting in the untyped fields (config, sampling, limits, environment)."""
_LOW, _HIGH = -(2**63), 2**63 - 1


def check_types(events: Sequence[Event] | Sequence[Device]) -> None:
    """Check the fields of events of one kind: types, finite numbers, valid Unicode.

    ValueError if a field has a value of another type; the message names both.
    """
    if not events:
        return
    kind = type(events[0])
    for name, hint in _hints(kind):
        values = [getattr(event, name) for event in events]
        if not _fit(values, hint):
            wrong = next(value for value in values if not _fit([value], hint))
            raise ValueError(f"{name} of a {kind.__name__.lower()} is {shown(wrong)}")


@cache
def _hints(kind: type[Event | Device]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((f.name, hints[f.name]) for f in fields(kind))


def _fit(values: Sequence[Any], hint: Any) -> bool:
    """Return whether all values of one field have the type of a hint."""
    origin, args = get_origin(hint), get_args(hint)
    kinds = set(map(type, values))
    if origin in (Union, UnionType):
        return _fit_union(values, args)
    if origin is tuple:
        return kinds <= {tuple} and _fit_tuples(values, args)
    if origin is Literal:
        return kinds <= {str} and set(values) <= set(args)
    if origin is dict:
        return kinds <= {dict} and all(_plain(value, MOST_LEVELS) for value in values)
    if hint is str:
        return kinds <= {str} and _encodes(values)
    if hint is int:
        return kinds <= {int} and _in_range(values)
    if hint is float:
        return kinds <= {int, float} and _in_range(v for v in values if type(v) is int) and _finite(values)
    return kinds <= {hint}


def _fit_union(values: Sequence[Any], hints: Sequence[Any]) -> bool:
    (hint,) = (h for h in hints if h is not NoneType)
    return _fit([value for value in values if value is not None], hint)


def _fit_tuples(values: Sequence[tuple[Any, ...]], hints: Sequence[Any]) -> bool:
    if hints[-1] is Ellipsis:
        return _fit(list(chain.from_iterable(values)), hints[0])
    if any(len(value) != len(hints) for value in values):
        return False
    return all(map(_fit, zip(*values, strict=True), hints)) if values else True


def _in_range(values: Iterable[int]) -> bool:
    return all(_LOW <= value <= _HIGH for value in values)


def _finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))


def _encodes(values: Iterable[str]) -> bool:
    """Return whether texts are valid Unicode; JSON can hold surrogates, which UTF-8 cannot."""
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain(value: Any, levels: int) -> bool:
    """Return whether a value is portable JSON: finite numbers, valid Unicode, few levels."""
    if isinstance(value, Mapping | list | tuple):
        parts: Iterable[Any] = chain.from_iterable(value.items()) if isinstance(value, Mapping) else value
        return levels > 0 and all(_plain(part, levels - 1) for part in parts)
    if isinstance(value, str):
        return _encodes([value])
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and _in_range([value]))
