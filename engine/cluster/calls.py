"""Fields of Limits and Sampling as keywords of a call: `cluster.run(..., max_new_tokens=48)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypedDict, TypeVar

from specscope.engine.errors import UsageError
from specscope.engine.types import Limits, Sampling

T = TypeVar("T", Sampling, Limits)


class Plain(TypedDict, total=False):
    """All fields of Limits and of Sampling; `specscope.engine.types` describes them."""

    max_new_tokens: int
    stop: str | tuple[str, ...]
    eos: tuple[int, ...]
    temperature: float
    top_k: int
    top_p: float
    seed: int


def settled(
    sampling: Sampling | None, limits: Limits | None, plain: Mapping[str, Any]
) -> tuple[Sampling, Limits]:
    """Return the sampling and the limits of a call, of which each has its object or plain keywords.

    Raises:
        UsageError: An object and one of its fields are both given, or a value is wrong.
    """
    return _one("sampling", Sampling, sampling, plain), _one("limits", Limits, limits, plain)


def _one(name: str, kind: type[T], given: T | None, plain: Mapping[str, Any]) -> T:
    own = {field.name: plain[field.name] for field in fields(kind) if field.name in plain}
    if given is None:
        return kind(**own)
    if not isinstance(given, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name} is of type {type(given).__name__}; it must be a specscope.{kind.__name__}")
    if own:
        raise UsageError(
            f"{name} and {', '.join(own)} were given; leave one out, or set it in specscope.{kind.__name__}"
        )
    return given
