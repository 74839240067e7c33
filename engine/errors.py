"""Every error that SpecScope raises on purpose. A message is one line with advice.

Usage errors have exit code 2.
"""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

from specscope.engine.misfits import misfit

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class SpecScopeError(Exception):
    """Base of all errors whose message is for the user."""


class UsageError(SpecScopeError, ValueError):
    """A setting or an input is wrong; the message holds the value and the allowed range.

    `setting` is the name of the wrong setting; empty if several or none are.
    """

    def __init__(self, message: object = "", setting: str = "") -> None:
        super().__init__(str(message))
        self.setting = setting


class PairError(UsageError):
    """Target and drafter cannot work together, for example because their tokenizers differ."""


class ModelError(SpecScopeError):
    """A model cannot be loaded; the message names the file."""


class OutOfMemory(SpecScopeError):  # noqa: N818 - as torch's error
    """The memory of a device is too small; the message says what is free and what would fit.

    `budget` are bytes of KV caches that would have left space, 0 if they are not the reason; `row`
    are the bytes of one token in these caches; `exact` is whether a number takes more than two
    bytes.
    """

    def __init__(self, message: str, budget: int = 0, row: int = 0, *, exact: bool = False) -> None:
        super().__init__(message)
        self.budget, self.row, self.exact = budget, row, exact


class WorkerDied(SpecScopeError):  # noqa: N818 - a state, like asyncio.CancelledError
    """A worker ended during a run; the message names the device."""


class StarterDied(WorkerDied):
    """The process that starts workers ended, or hung and was killed."""


class RunCancelled(SpecScopeError):  # noqa: N818
    """The run was stopped on request."""


class Deadlock(SpecScopeError):  # noqa: N818
    """In virtual time, every task waits and no timer is set."""


class StoreError(SpecScopeError):
    """The trace database is locked, read-only, foreign or full."""


class StoreMissing(StoreError):  # noqa: N818
    """The trace database does not exist, and was opened for reading only."""


def shown(value: object) -> str:
    """Return a value as a message shows it: its `repr` in one line, cut if over 60 characters."""
    try:
        text = " ".join(repr(value).splitlines())
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of over 4,300 digits"
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text):,} characters)"


def named_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make wrong arguments of a public call a UsageError that names the right ones.

    The type of a value is looked at only when the call has failed, so what works needs no
    annotation for it; an error inside the call that no argument explains stays what it is.
    """
    signature, title = inspect.signature(function), function.__qualname__.removesuffix(".__init__")
    names = names_of(signature)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except SpecScopeError:
            raise
        except (TypeError, AttributeError, ValueError, LookupError):
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                check_names(title, kwargs, names)
                raise UsageError(f"{title}: {error}; it takes {', '.join(names)}") from None
            found = misfit(function, args, kwargs)
            if found is None:
                raise
            name, value, wanted = found
            raise UsageError(f"{name} of {title} is {shown(value)}; it must be {wanted}") from None

    return call


def names_of(signature: inspect.Signature) -> list[str]:
    """Return the arguments of a call as a message shows them, without self and `**others`."""
    named = [p for p in signature.parameters.values() if p.name != "self" and p.kind != p.VAR_KEYWORD]
    return [f"*{p.name}" if p.kind == p.VAR_POSITIONAL else p.name for p in named]


def named_fields(cls: type[C]) -> type[C]:
    """Do the same for the fields of a dataclass."""
    cls.__init__ = named_arguments(cls.__init__)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return cls


def named_calls(cls: type[C]) -> type[C]:
    """Do the same for a class and its public methods."""
    for name, method in [*vars(cls).items()]:
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, named_arguments(method))
    return named_fields(cls)


def check_names(call: str, given: Collection[str], names: Collection[str]) -> None:
    """Raise UsageError unless each given argument is one of `names`."""
    for name in (name for name in given if name not in names):
        close = get_close_matches(name, names, 1)
        guess = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"{call} has no argument {shown(name)}; {guess}it takes {', '.join(names)}")


def plain_name(name: str) -> str:
    """Return a name from a file as a message shows it: one line of at most 120 characters."""
    return name if name.isprintable() and len(name) <= 120 else reprlib.repr(name)


def one_line(error: BaseException | str) -> str:
    """Return another library's error as one line of at most 300 characters."""
    text = "".join(c if c.isprintable() else " " for c in str(error)[:1000])
    return " ".join(text.split())[:300] or type(error).__name__
