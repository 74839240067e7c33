"""Documents with one odd value, and the property that each must have."""

from __future__ import annotations

import copy
import json
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from specscope.engine.errors import SpecScopeError

BOUNDED = settings(max_examples=30, deadline=None, derandomize=True, database=None)
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 5, 7, -64, 1 << 31, 1 << 63, 10**9, 10**12, 10**400),
    *(0.5, 1.0, -1e-6, 1e308, math.nan, math.inf, -math.inf),
    *("", "x", "0", "x\ny" * 500, "\ud800", "\x1b[31m", "../x", "/dev/zero", "\x00"),
    *([], {}, [[]], [0], [-1], ["x"], [10**12], [1] * 200, {"x": 1}, {"factor": "x"}),
)
"""Values that most fields do not expect; a few fields accept some."""
_GROWTH = 1 << 20
"""Most KiB that a call may add to the process; the models are tiny."""


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document, of lists only the first three items."""
    if isinstance(document, dict):
        parts = list(document.items())
    else:
        parts = list(enumerate(document[:3])) if isinstance(document, list) else []
    return [path for key, part in parts for path in ((*at, key), *places(part, (*at, key)))]


def changed(document: Any, place: tuple[Any, ...], value: Any, *, drop: bool = False) -> Any:
    """Return a copy with another value at a path, or without that item."""
    whole = copy.deepcopy(document)
    part = whole
    for key in place[:-1]:
        part = part[key]
    if drop:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return whole


def spoiled(document: Any, values: tuple[Any, ...] = ODD) -> st.SearchStrategy[Any]:
    """Return a strategy for documents with one value replaced or dropped."""
    return st.builds(
        lambda place, value, drop: changed(document, place, value, drop=drop),
        st.sampled_from(places(document)),
        st.sampled_from(values),
        st.sampled_from([False] * 5 + [True]),
    )


def returns_or_refuses(call: Callable[[], object]) -> None:
    """Check that a call returns, or refuses in one line, and takes little memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusal(call)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < _GROWTH


def refusal(call: Callable[[], object], kind: type[SpecScopeError] = SpecScopeError) -> str:
    """Return the error of a call, checked to be one line; empty if it returns."""
    try:
        call()
    except kind as error:
        return one_line(str(error))
    return ""


def refused(call: Callable[[], object], kind: type[SpecScopeError] = SpecScopeError) -> str:
    """Return the error of a call, checked to be of a kind and one line."""
    with pytest.raises(kind) as error:
        call()
    return one_line(str(error.value))


SPECIAL = ("/dev/zero", "/dev/stdin", "pipe", "directory", "loop", "nothing", "large")


def put(path: Path, kind: str) -> None:
    """Put a device, pipe, directory, link loop, nothing or 8 GiB in place of a file."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        path.touch()
        os.truncate(path, 1 << 33)
    elif kind != "nothing":
        path.symlink_to(path if kind == "loop" else kind)


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def one_line(message: str) -> str:
    """Return a message, checked to be one short printable line."""
    assert message.isprintable()
    assert message.strip()
    assert len(message) < 1500
    return message
