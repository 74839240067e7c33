"""Every number of a foreign file, replaced: the file is refused in one line, or opens in every way.

The numbers are found in the files themselves, so a new field is tried without being named here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import specscope
from specscope.app.service import Service
from specscope.engine.errors import UsageError
from specscope.engine.trace.jsonl import to_json
from specscope.engine.trace.ranges import MOST_TIME, MOST_TOKENS
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.imports.reading import read_traces
from tests.app.fakes import FakeOpen
from tests.security.opened import Opener, bounded
from tests.traces.test_imported import FILES, NAMES

VALUES: dict[str, Any] = {
    "a large count": 2**40,
    "beyond all times": 2**62,
    "beyond 64 bits": 2**70,
    "the largest count": MOST_TOKENS,
    "the largest time": MOST_TIME,
    "the largest exact": 2**53 - 1,
    "a thousand": 1000,
    "zero": 0,
    "-1": -1,
    "a fraction": 1.5,
    "tiny": 1e-30,
    "not a number": float("nan"),
    "infinite": float("inf"),
    "a text": "x",
    "a list": [1],
    "nothing": None,
}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "pearl": ("pearl", {}),
    "ssd": ("ssd", {}),
    "hybrid": ("hybrid", {}),
    "lookahead": ("lookahead", {}),
    "llma": ("llma", {}),
    "assisted": ("assisted", {}),
    "sampled": ("speculative", {"sampling": Sampling(0.8, seed=3)}),
    "fuzzy": ("easyspec", {}),
    "load": ("speculative", {"load": specscope.Load((0.0, 0.1), 2)}),
}
"""Method and settings of virtual runs that together have every kind of row."""
Place = tuple[str | int, ...]


@pytest.fixture(scope="module")
def files() -> dict[str, list[Any]]:
    """Return the JSON values of a file of each form by name: one per line."""
    rows: dict[str, list[Any]] = {}
    with specscope.open(runtime="virtual", profile="pearl-4xA100") as cluster:
        for name, (method, settings) in RUNS.items():
            prompts = ("One two three one two", "Hello") if "load" in settings else ("One two three one two",)
            trace = cluster.run(method, *prompts, limits=Limits(6), **settings)
            rows[name] = [json.loads(to_json(event)) for event in trace.events()]
    for name in NAMES:
        text = (FILES / name).read_text()
        rows[name] = [*map(json.loads, text.splitlines())] if name.endswith("l") else [json.loads(text)]
        trace = read_traces(FILES / name).traces[0]
        rows[f"{name} as a trace"] = [json.loads(to_json(event)) for event in trace.events()]
    return rows


def places(rows: list[Any]) -> dict[str, tuple[int, Place]]:
    """Return name -> (row, path) of each number; of those in lists and equal rows, two."""
    found: dict[str, tuple[int, Place]] = {}
    for number, row in enumerate(rows):
        for path in _numbers(row):
            kind = row.get("event", "") if isinstance(row, dict) else ""
            name = f"{kind}.{'.'.join('#' if isinstance(key, int) else key for key in path)}"
            found.setdefault(f"first {name}", (number, path))
            found[f"last {name}"] = (number, path)
    return found


def _numbers(value: Any, path: Place = ()) -> Iterator[Place]:
    parts: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, part in parts:
        yield from _numbers(part, (*path, key))
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def replaced(rows: list[Any], number: int, path: Place, value: Any) -> list[Any]:
    changed = json.loads(json.dumps(rows))
    place = changed[number]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.fixture(scope="module")
def opener(tmp_path_factory) -> Iterator[Opener]:
    service = Service(tmp_path_factory.mktemp("numbers") / "traces.db", FakeOpen())
    yield Opener(service)
    service.close()


def taken(file: Path) -> tuple[tuple[Trace, ...], str]:
    """Return the traces of a file, or why it was refused."""
    try:
        return read_traces(file).traces, ""
    except UsageError as error:
        return (), str(error)


FORMS = [*RUNS, *NAMES, *(f"{name} as a trace" for name in NAMES)]


def is_own(form: str) -> bool:
    return form in RUNS or form.endswith("as a trace")


_fresh = itertools.count()


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("form", FORMS)
def test_a_number_of_a_file_is_refused_or_the_run_opens(files, opener, tmp_path, form, value):
    file, own = tmp_path / "file.jsonl", is_own(form)
    found = places(files[form])
    assert len(found) > 5
    if own:  # each field is tried in the first trace that has it
        earlier = [places(files[name]) for name in FORMS[: FORMS.index(form)] if is_own(name)]
        found = {name: place for name, place in found.items() if not any(name in one for one in earlier)}
    opened = 0
    for name, (number, path) in found.items():
        rows = replaced(files[form], number, path, VALUES[value])
        if own:
            rows[0]["run_id"] = f"run-{next(_fresh)}"
        file.write_text("\n".join(map(json.dumps, rows)))
        with bounded(f"{form}: {name} is {value}"):
            traces, why = taken(file)
            assert "\n" not in why
            assert len(why) < 600
            if traces:
                opener.service.store.insert_missing(*traces[:1])
                opener.open(traces[0].header.run_id, replay=opened % 10 == 0)
                opened += 1
