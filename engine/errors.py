"""Every error that SpecScope raises on purpose. A message is one line with advice.

Usage errors have exit code 2.
"""

from __future__ import annotations

import reprlib


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


def plain_name(name: str) -> str:
    """Return a name from a file as a message shows it: one line of at most 120 characters."""
    return name if name.isprintable() and len(name) <= 120 else reprlib.repr(name)


def one_line(error: BaseException | str) -> str:
    """Return another library's error as one line of at most 300 characters."""
    text = "".join(c if c.isprintable() else " " for c in str(error)[:1000])
    return " ".join(text.split())[:300] or type(error).__name__
