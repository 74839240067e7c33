"""Checks of single values that a recorded program gives. Standard library only."""

from __future__ import annotations

from operator import index
from pathlib import Path
from typing import Any, TypeGuard

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.ranges import MOST_WHOLE

LAST = 2**63 - 1
"""Largest time of a clock, in nanoseconds."""


def whole(what: str, value: Any, low: int = -1, high: int = MOST_WHOLE) -> int:
    """Return a whole number, of numpy, too, as Python's; UsageError for another value."""
    try:
        number = index(value)
    except TypeError:
        raise UsageError(f"{what} is {shown(value)}; give a whole number") from None
    if not low <= number <= high:
        raise UsageError(f"{what} is {shown(number)}; give {low} to {high}")
    return number


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is a text that a file can hold; half a character cannot be encoded."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text(what: str, value: object) -> str:
    if not is_text(value):
        raise UsageError(f"{what} is {shown(value)}; give a text of whole characters")
    return value


def choice(what: str, value: object, choices: tuple[str, ...]) -> str:
    """Return one of some names, or an empty text if they hold it."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(filter(None, choices))
        left_out = ", or leave it out" if "" in choices else ""
        raise UsageError(f"{what} is {shown(value)}; give {names}{left_out}")
    return value


def flag(what: str, value: Any) -> bool:
    """Return whether a value is true, as `if` decides; an array of several values is neither."""
    try:
        return bool(value)
    except (TypeError, ValueError):
        raise UsageError(f"{what} is {shown(value)}; give True or False") from None


def file_path(value: Any) -> Path:
    try:
        return Path(value)
    except TypeError:
        raise UsageError(f"path is {shown(value)}; give the name of a file, or None") from None
