"""Every error SpecScope raises on purpose. Their texts are one line and say what to do.

SpecScopeError
├── UsageError          a setting or an input is wrong (exit code 2)
│   └── PairError       target and drafter do not fit each other
├── ModelError          a model directory is missing, broken or of an unknown kind
├── WorkerDied          a worker ended in the middle of a run
├── RunCancelled        the person asked the run to stop
├── Deadlock            virtual time: every task waits and no timer is set
└── StoreError          the trace database cannot be used
    ├── StoreMissing    there is none to be read
    └── StoreOutdated   it is of an older version
"""

from __future__ import annotations

import reprlib


class SpecScopeError(Exception):
    """Base of all errors whose message is meant for the person at the keyboard."""


class UsageError(SpecScopeError, ValueError):
    """A setting or an input is wrong; the message holds the value and the allowed range."""


class PairError(UsageError):
    """Target and drafter cannot work together, for example because their tokenizers differ."""


class ModelError(SpecScopeError):
    """A model cannot be loaded; the message names the file."""


class WorkerDied(SpecScopeError):  # noqa: N818 - a state, like asyncio.CancelledError
    """A worker ended while a run needed it; the message names the device."""


class RunCancelled(SpecScopeError):  # noqa: N818
    """The run was stopped on request."""


class Deadlock(SpecScopeError):  # noqa: N818
    """In virtual time every task waits and nothing is due."""


class StoreError(SpecScopeError):
    """The trace database is locked, read-only, foreign or full."""


class StoreMissing(StoreError):  # noqa: N818
    """There is no trace database, and it was to be opened for reading only."""


class StoreOutdated(StoreError):  # noqa: N818 - a state, like WorkerDied
    """The trace database is of an older version."""


def shown(value: object) -> str:
    """Return how a value reads in a message: its `repr`, cut to 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a number of over 4,300 digits"
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text):,} characters)"


def plain_name(name: str) -> str:
    """Return a name that a file chose as a message shows it: one line, not too long."""
    return name if name.isprintable() and len(name) <= 120 else reprlib.repr(name)


def one_line(error: BaseException | str) -> str:
    """Return another library's words as one line that is not too long."""
    text = "".join(c if c.isprintable() else " " for c in str(error)[:1000])
    return " ".join(text.split())[:300] or type(error).__name__
