"""The methods that the user chose, as the picker sends them, and the baselines that they need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from engine.errors import UsageError, shown
from engine.methods import METHODS, Method, find

MOST_METHODS = 6
"""Most methods that can be chosen; a method counts once for each of its settings."""
MOST_RUNS = 8
"""Most runs of a turn, baselines of batches included."""


class Choice(NamedTuple):
    """One pane of the comparison: a method, its settings, and further prompts of its batch."""

    method: str
    config: dict[str, Any]
    prompts: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Title of the method."""
        return METHODS[self.method].title


def read_choices(value: str | None) -> list[Choice]:
    """Return the choices in the picker's value, a JSON object, with checked settings.

    Raises:
        UsageError: The value names an unknown method or setting, or too few or too many methods.
    """
    choices = [_choice(row) for row in _rows(value)]
    if not 1 <= len(choices) <= MOST_METHODS:
        raise UsageError(f"{len(choices)} methods are chosen; choose 1 to {MOST_METHODS}")
    for i, choice in enumerate(choices):
        if any(_same(choice, other) for other in choices[:i]):
            raise UsageError(
                f"{choice.title} is chosen twice with the same settings; change one, or take it out"
            )
    return choices


def _same(one: Choice, other: Choice) -> bool:
    """Return whether two choices run the same method with the same settings and prompts."""
    method = METHODS[one.method]
    return (one.method, one.prompts) == (other.method, other.prompts) and method.configure(
        one.config
    ) == method.configure(other.config)


def _rows(value: str | None) -> list[Any]:
    try:
        parsed = json.loads(value or "{}")
    except (ValueError, RecursionError):
        raise UsageError("the choice of methods cannot be read; reload the page") from None
    rows = parsed.get("chosen", []) if isinstance(parsed, dict) else []
    return rows if isinstance(rows, list) else []


def _choice(row: Any) -> Choice:
    if not isinstance(row, dict) or not isinstance(row.get("config", {}), dict):
        raise UsageError(f"{shown(row)} is not a choice of a method; reload the page")
    method = find(str(row.get("method")))
    prompts = further_prompts(str(row.get("prompts") or "")) if method.batched else []
    return Choice(method.key, checked(method, row.get("config", {})), tuple(prompts))


def checked(method: Method, given: dict[str, Any]) -> dict[str, Any]:
    """Return the given settings, converted and checked.

    Raises:
        UsageError: A setting is unknown or out of range; the message names the method.
    """
    try:
        config = method.configure(given)
    except UsageError as error:
        raise UsageError(f"{method.title}: {error}") from None
    return {name: getattr(config, name) for name in given}


def further_prompts(typed: str | None) -> list[str]:
    """Return the prompts in a text; blank lines separate them."""
    return [part.strip() for part in re.split(r"\n\s*\n", typed or "") if part.strip()]


def with_baselines(choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices, each batch after the batched plain decoding of the same prompts.

    Raises:
        UsageError: The choices and their baselines are too many.
    """
    chosen = list(choices)
    complete: list[Choice] = []
    for choice in chosen:
        plain = _plain(choice)
        if plain and _conditions(plain) not in map(_conditions, filter(_is_plain, [*chosen, *complete])):
            complete.append(plain)
        complete.append(choice)
    if len(complete) > MOST_RUNS:
        raise UsageError(
            f"{len(complete)} runs are needed, because each batch brings its baseline; at most {MOST_RUNS} can be "
            "compared: choose fewer methods"
        )
    return complete


def _plain(choice: Choice) -> Choice | None:
    """Return the baseline of a batch; None for a run of one prompt and for a baseline."""
    method = METHODS[choice.method]
    if not choice.prompts or not method.plain or _is_plain(choice):
        return None
    return choice._replace(config={**choice.config, **method.plain})


def _is_plain(choice: Choice) -> bool:
    method = METHODS[choice.method]
    config = method.configure(choice.config)
    return bool(method.plain) and all(getattr(config, name) == v for name, v in method.plain.items())


def _conditions(choice: Choice) -> tuple[str, Sequence[str], int]:
    method = METHODS[choice.method]
    return choice.method, choice.prompts, method.layout(method.configure(choice.config)).batch
