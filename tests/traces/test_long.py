"""Documents of long stored runs show what the whole document shows."""

from __future__ import annotations

import sqlite3
from base64 import b64decode
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import specscope
from specscope.app.pairs import able
from specscope.engine.errors import StoreError
from specscope.engine.types import Limits
from specscope.traces.database.store import Store
from specscope.traces.view.long import long_run, range_view, spans_view
from specscope.traces.view.packed import packed
from tests.traces.samples import bundled, sample_trace, shown, with_header
from tests.traces.scripted import dsi, easyspec

PROMPTS, LIMITS = ("Tell me a story.", "Why?", "Once upon a time"), Limits(16)
TREES = {"batch": 2, "base": "speculative", "width": 4}
ARRIVALS = (0.0, 0.1, 0.2)
TYPES = {"Int8": "<i1", "Int16": "<i2", "Int32": "<i4", "Float64": "<f8"}


def several(method, config=None, load=None):
    return lambda: bundled().run(method, *PROMPTS, config=config or {}, load=load, limits=LIMITS)


RUNS = {
    method: lambda method=method: bundled().run(method, PROMPTS[0], limits=LIMITS)
    for method in able("bundled")
} | {
    "dsi-pool": lambda: dsi([True, False, True, True] * 4, new=16),
    "easyspec-fuzzy": lambda: easyspec(gamma=3, new=16),
    "ems": several("ems"),
    "batch-of-trees": several("ems", TREES),
    "load": several("speculative", load=specscope.Load(ARRIVALS, 2)),
    "minedraft": several("speculative", load=specscope.Load(ARRIVALS, 1, policy="minedraft")),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("methods") / "traces.db") as opened:
        for key, run in RUNS.items():
            opened.insert(with_header(run(), run_id=key))
        yield opened


@pytest.fixture(scope="module")
def wholes(store):
    return {key: shown(store.load(key)) for key in RUNS}


def column(values):
    """Return the values of a column as packed.js reads them."""
    if isinstance(values, list):
        return values
    if "names" in values:
        return [values["names"][code] for code in column(values["codes"])]
    numbers = np.frombuffer(b64decode(values["data"]), TYPES[values["type"]]).tolist()
    return numbers if values["per"] == 1 else [n / values["per"] for n in numbers]


def rows_of(packed_rows):
    if isinstance(packed_rows, list):
        return packed_rows
    if "tuples" in packed_rows:
        return [*zip(*map(column, packed_rows["tuples"]), strict=True)]
    columns = {name: column(values) for name, values in packed_rows["columns"].items()}
    absent = {name: {*places} for name, places in packed_rows["absent"].items()}
    return [
        {name: values[i] for name, values in columns.items() if i not in absent.get(name, ())}
        for i in range(packed_rows["rows"])
    ]


def unpacked(run):
    """Return a packed run, or some of its sections, as `view_model` makes it."""
    lists = {name: rows_of(run[name]) for name in run if name in PACKED}
    return {**run, **lists, "tracks": [_track(track) for track in run.get("tracks", ())]}


PACKED = ("tokens", "ghosts", "rounds", "lengths", "band")


def _track(track):
    spans = {name: column(values) for name, values in track.get("spans", {}).items()}
    return {**track, "spans": spans, "waits": rows_of(track["waits"])}


def worked(run):
    """Return the tracks of devices; a long run has no queue before all of it is loaded."""
    return [track for track in run["tracks"] if track["role"] != "requests"]


@pytest.mark.parametrize("key", RUNS)
def test_a_packed_document_has_all_values(wholes, key):
    (run,) = packed({"runs": [wholes[key]]})["runs"]
    assert unpacked(run) == wholes[key]


@pytest.mark.parametrize("key", RUNS)
def test_the_first_document_has_all_spans_and_rounds(store, wholes, key):
    whole, size = wholes[key], store.extent(key)
    found = unpacked(long_run(size, store.opening(key, size, 5), *store.columns(key, size)))
    for name in ("from", "to", "rounds", "sequences", "prompts", "id"):
        assert found[name] == whole[name], name
    assert (found["headline"], found["band"]) == ([], []), "waits are not known yet"
    assert found["long"] == {"spans": size.spans, "tokens": len(whole["tokens"])}
    assert found["tokens"] == whole["tokens"][: len(found["tokens"])]
    rest = {"waits": [], "measured": None}
    assert [track | rest for track in found["tracks"]] == [track | rest for track in worked(whole)]


@pytest.mark.parametrize("key", RUNS)
def test_spans_and_rounds_alone_show_waits_band_and_caches(store, wholes, key):
    whole, found = wholes[key], unpacked(spans_view(store.spans_and_rounds(key)))
    for name in ("band", "headline", "caches", "packings", "layers"):
        assert found[name] == whole[name], name
    for ours, theirs in zip(found["tracks"], worked(whole), strict=True):
        assert {name: theirs[name] for name in ours} == ours | {"spans": theirs["spans"]}


@pytest.mark.parametrize("key", RUNS)
def test_a_range_of_rounds_has_the_rows_of_the_whole_document(store, wholes, key):
    whole = wholes[key]
    last = max(row["step"] for row in whole["rounds"])
    for low, high in ((0, last), (0, 2), (last // 3, 2 * last // 3), (last - 2, last), (3, 3)):
        found = unpacked(range_view(store.steps(key, low, high, 10_000)))
        assert found.pop("part") == {"first": low, "last": high}
        assert found.pop("tracks") == []
        assert found.pop("pieces").items() <= whole["pieces"].items()
        assert found.pop("sources") == whole["sources"] or not found["copies"]
        for name, rows in found.items():
            assert rows == [row for row in whole[name] if low <= row["step"] <= high], (name, low, high)


def test_a_range_has_no_rows_with_too_many_rounds_and_a_run_without_an_end_no_size(store):
    trace = with_header(sample_trace("pearl", tokens=300), run_id="sample")
    store.insert(trace, with_header(replace(sample_trace("pearl"), footer=None), run_id="unfinished"))
    last = trace.rounds[-1].step
    parts = [store.steps("sample", 0, last, len(trace.rounds) - less) for less in (1, 0)]
    assert [part is None for part in parts] == [True, False]
    assert (store.extent("nobody"), store.extent("unfinished")) == (None, None)


@pytest.mark.parametrize(
    ("table", "name", "value"), [("span", "end", "x1y"), ("span", "kind", 99), ("round", "mode", -1)]
)
def test_a_damaged_value_is_an_error_that_names_the_run(tmp_path, table, name, value):
    path = tmp_path / "traces.db"
    with Store(path) as opened:
        opened.insert(sample_trace("pearl"))
        size = opened.extent("sample-pearl")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f'UPDATE {table} SET "{name}" = ? WHERE number = 3', [value])
            connection.commit()
        with pytest.raises(StoreError, match="run sample-pearl is damaged"):
            opened.columns("sample-pearl", size)
