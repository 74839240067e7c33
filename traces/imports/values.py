"""Read values of parsed JSON with their types and ranges. Every failure is a `ValueError`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeGuard

from engine.errors import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

MOST = 2**53 - 1
"""The largest whole number that is read."""
LONGEST_DRAFT = 1024
"""The largest draft length that is read."""
MOST_STEPS = 200_000
"""The most verifications of one request."""
MOST_TOKENS = 1_000_000
"""The most tokens, drafted or put out, of one request."""


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a JSON object."""
    return isinstance(value, dict)


def known(row: Mapping[str, Any], names: Collection[str], what: str) -> None:
    """Check that an object has no field beside those of the versions that are read.

    Raises:
        ValueError: It has another field.
    """
    for name in row:
        if name not in names:
            raise ValueError(f"{what} has a field {shown(name)}; expected only {', '.join(sorted(names))}")


def whole(row: Mapping[str, Any], name: str, high: int = MOST) -> int:
    """Return a whole number of at least 0.

    Raises:
        ValueError: The field is missing, of another type, or out of range.
    """
    value = row.get(name)
    if type(value) is not int or not 0 <= value <= high:
        raise ValueError(f"{name} is {_found(row, name)}; expected a whole number from 0 to {high}")
    return value


def optional_whole(row: Mapping[str, Any], name: str, high: int = MOST) -> int | None:
    """Return a whole number of at least 0, or None if the field is null or missing."""
    return None if row.get(name) is None else whole(row, name, high)


def wholes(row: Mapping[str, Any], name: str, most: int, high: int = MOST) -> tuple[int, ...]:
    """Return a list of at most `most` whole numbers from 0 to `high`.

    Raises:
        ValueError: The field is missing, no such list, or too long.
    """
    values = row.get(name)
    if not isinstance(values, list):
        raise ValueError(f"{name} is {_found(row, name)}; expected a list of whole numbers")
    if len(values) > most:
        raise ValueError(f"{name} has {len(values)} entries; at most {most} are read")
    for value in values:
        if type(value) is not int or not 0 <= value <= high:
            raise ValueError(f"{name} contains {shown(value)}; expected whole numbers from 0 to {high}")
    return tuple(values)


def histogram(row: Mapping[str, Any], name: str, first: int = 0) -> tuple[int, ...]:
    """Return an object {number: times} with text keys as times by number, from `first`.

    Raises:
        ValueError: The field is missing, or a key or a value is no whole number in range.
    """
    values = row.get(name)
    if not is_object(values):
        raise ValueError(f"{name} is {_found(row, name)}; expected an object of whole numbers")
    times: dict[int, int] = {}
    for key in values:
        number = int(key) if key.isascii() and key.isdigit() and len(key) <= 5 else -1
        if not first <= number <= LONGEST_DRAFT + first:
            raise ValueError(f"{name} has a key {shown(key)}; expected {first} to {LONGEST_DRAFT + first}")
        if number in times:
            raise ValueError(f"{name} has the key {number} twice")
        times[number] = whole(values, key)
    return tuple(times.get(number, 0) for number in range(first, max(times, default=first - 1) + 1))


def number(row: Mapping[str, Any], name: str) -> float:
    """Return a finite number.

    Raises:
        ValueError: The field is missing or no finite number.
    """
    value: Any = row.get(name)
    if type(value) not in (int, float) or abs(value) > 1e300 or not math.isfinite(value):
        raise ValueError(f"{name} is {_found(row, name)}; expected a number")
    return float(value)


def text(row: Mapping[str, Any], name: str, most: int = 200) -> str:
    """Return a text, cut to `most` characters; an empty one if the field has no text."""
    value = row.get(name)
    return value[:most].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _found(row: Mapping[str, Any], name: str) -> str:
    return shown(row[name]) if name in row else "missing"
