"""Which argument of a failed call has another type than its annotation. Standard library only."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin

_WORDS: dict[object, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
    Mapping: "a mapping of names to values",
    Callable: "a function",
}
_NUMBERS: dict[object, type] = {int: Integral, float: Real, bool: Integral}


def misfit(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Any, str] | None:
    """Return the first argument whose type does not fit, its value, and what it must be."""
    signature = inspect.signature(function)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        parameter = signature.parameters[name]
        if parameter.kind == parameter.VAR_KEYWORD:
            continue
        hint = _hint(parameter.annotation, function)
        several = parameter.kind == parameter.VAR_POSITIONAL
        for one in value if several else (value,):
            if not _fits(one, hint):
                return name, one, _words(hint)
    return None


def _hint(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return the type that an annotation names; Any for a name of the type checker alone."""
    if not isinstance(annotation, str):
        return annotation
    names = {**vars(collections.abc), **vars(typing), **inspect.unwrap(function).__globals__}
    try:
        return eval(annotation, names)
    except NameError:
        return Any


def _fits(value: Any, hint: Any) -> bool:
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind in (Callable, collections.abc.Callable):
        return callable(value)
    if hint is None or kind is type(None):
        return value is None
    if not isinstance(kind, type) or kind in (Any, inspect.Parameter.empty):  # Any is a class from 3.11 on
        return True
    if kind in (tuple, list):  # a list serves as well
        kind = Iterable
    if isinstance(value, str) and kind is not str and issubclass(str, kind):
        return any(part is str for part in parts)
    fits = isinstance(value, _NUMBERS.get(kind, kind))
    sized = fits and parts and isinstance(value, list | tuple)
    return all(_fits(one, parts[0]) for one in typing.cast("list[Any]", value)) if sized else fits


def _words(hint: Any) -> str:
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_words, parts)))
    if kind is Literal:
        return " or ".join(map(repr, parts))
    kind = type(None) if hint is None else kind
    if kind in _WORDS:
        return _WORDS[kind]
    name = getattr(kind, "__name__", str(kind))
    if kind in (tuple, list) or kind in vars(collections.abc).values():
        return (
            f"a list of {_words(parts[0]).removeprefix('a ')}s" if parts and parts[0] in _WORDS else "a list"
        )
    return "a path" if name == "PathLike" else f"a {name}"
