"""Values checked against type hints. Standard library only.

A hint is a type, a number with its `Range`, a closed set (`Literal`), a list or tuple of hints, or
a hint or None. Callers raise their own errors, with `words` where no others say more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from specscope.engine.errors import shown


class Range(NamedTuple):
    """The least and the largest value of a number, or length of a text."""

    low: float
    high: float
    big: bool = False
    """Whether the database declares a big integer; SQLite stores all integers alike."""


Whole = Annotated[int, Range(-math.inf, math.inf)]
"""A whole number of any size; a plain `int` has at most 64 bits."""
Text = Annotated[str, Range(0, math.inf)]
"""A text of any characters; a plain `str` is valid Unicode."""
MOST_LEVELS = 16
"""Levels of nesting in a `dict` of untyped values."""
MOST_SETTINGS = 50_000
"""Values in it; a load has an arrival for each prompt."""
_LOW, _HIGH = -(2**63), 2**63 - 1
_NUMBERS = {int: {int}, float: {int, float}}
WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def words(hint: Any) -> str:
    """Return what a hint admits, for messages: its type, and the range of a number."""
    kind, allowed = plain(hint)
    return f"{WORDS[kind]}, {bounds(*allowed[:2])}" if kind in _NUMBERS and allowed else WORDS[kind]


def bounds(low: float, high: float | None, least: str = "at least") -> str:
    return f"{least} {number(low)}" + ("" if high is None else f" and at most {number(high)}")


def number(value: float) -> str:
    """Return a number as a message shows it: all digits of an integer, up to a limit."""
    return f"{value:g}" if isinstance(value, float) else shown(value)


def plain(hint: Any) -> tuple[Any, Range | None]:
    """Return the type of a hint, without its parts or None, and the range if it has one."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is Annotated:
        kind, allowed, *_ = get_args(hint)
        return kind, allowed if isinstance(allowed, Range) else None
    return get_origin(hint) or hint, None


def fits(value: Any, hint: Any) -> bool:
    return all_fit([value], hint)


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def all_fit(values: Sequence[Any], hint: Any) -> bool:
    """Return whether each value has exactly the type of a hint, and is in its range or set."""
    origin, args = _parts(hint)
    kinds = set(map(type, values))
    if origin is Annotated:
        allowed = args[1]
        if not isinstance(allowed, Range):
            return all_fit(values, allowed)
        low, high, _ = allowed
        if args[0] is str:
            return kinds <= {str} and all(low <= len(value) <= high for value in values)
        return kinds <= _NUMBERS[args[0]] and all(low <= value <= high for value in values)
    if origin in (Union, UnionType):
        (hint,) = (part for part in args if part is not NoneType)
        return all_fit([value for value in values if value is not None], hint)
    if origin in (tuple, list):
        return kinds <= {origin} and _parts_fit(values, args if origin is tuple else (*args, ...))
    if origin is Literal:
        return kinds <= {str} and set(values) <= set(args)
    if origin is dict:
        left = iter(range(MOST_SETTINGS))
        return kinds <= {dict} and all(_portable(value, MOST_LEVELS, left) for value in values)
    if hint is str:
        return kinds <= {str} and _encode(values)
    if hint is int:
        return kinds <= {int} and _in_range(values)
    if hint is float:
        return kinds <= {int, float} and _in_range(v for v in values if type(v) is int) and _finite(values)
    return kinds <= {hint}


def _parts_fit(values: Sequence[Sequence[Any]], hints: Sequence[Any]) -> bool:
    if hints[-1] is Ellipsis:
        return all_fit(list(chain.from_iterable(values)), hints[0])
    if any(len(value) != len(hints) for value in values):
        return False
    return all(map(all_fit, zip(*values, strict=True), hints)) if values else True


def _in_range(values: Iterable[int]) -> bool:
    return all(_LOW <= value <= _HIGH for value in values)


def _finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))


def _encode(values: Iterable[str]) -> bool:
    """Return whether texts are valid Unicode; JSON can hold surrogates, which UTF-8 cannot."""
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


def _portable(value: Any, levels: int, left: Iterator[int]) -> bool:
    """Return whether a value is portable JSON: finite numbers, valid Unicode, few levels.

    `left` ends when there are too many values.
    """
    if next(left, None) is None:
        return False
    if isinstance(value, Mapping | list | tuple):
        parts: Iterable[Any] = chain.from_iterable(value.items()) if isinstance(value, Mapping) else value
        return levels > 0 and all(_portable(part, levels - 1, left) for part in parts)
    if isinstance(value, str):
        return _encode([value])
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and _in_range([value]))
