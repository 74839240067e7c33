"""Windows of stored runs show what the whole document shows, and their bins are plain sums."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specscope
from specscope.app.pairs import able
from specscope.engine.errors import StoreError
from specscope.engine.types import Limits
from specscope.traces.database.store import Store
from specscope.traces.view.packed import packed, packed_run
from specscope.traces.view.part import bins_view, part_document, part_sections
from tests.traces.samples import bundled, sample_trace, shown, with_header
from tests.traces.scripted import dsi, easyspec

PROMPTS, LIMITS = ("Tell me a story.", "Why?", "Once upon a time"), Limits(16)
TREES = {"batch": 2, "base": "speculative", "width": 4}
ARRIVALS = (0.0, 0.1, 0.2)


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
TIMED = ("tokens", "ghosts", "rounds", "trees", "ngrams", "lengths", "packings")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("methods") / "traces.db") as opened:
        for key, run in RUNS.items():
            opened.insert(with_header(run(), run_id=key))
        opened.insert(with_header(sample_trace("pearl", tokens=300), run_id="sample"))
        yield opened


@pytest.fixture(scope="module")
def wholes(store):
    return {key: shown(store.load(key)) for key in RUNS}


def windows(size):
    """Return windows in ns: the whole run, its beginning, its middle, its end."""
    cuts = [size.start + i * (size.end - size.start) // 3 // 1000 * 1000 for i in range(3)] + [size.end]
    return [(cuts[0], cuts[3]), *pairwise(cuts)]


@pytest.mark.parametrize("key", RUNS)
def test_any_window_and_any_opening_part_is_a_document_in_json(store, key):
    size = store.extent(key)
    share = st.floats(-0.1, 1.1)

    @settings(max_examples=15, deadline=None)
    @given(
        low=share,
        length=st.floats(0, 0.01) | st.floats(0, 0.3) | share,
        spans=st.integers(1, size.spans),
        bins=st.integers(1, 50),
    )
    def check(low, length, spans, bins):
        start = size.start + round(low * (size.end - size.start))
        end = start + max(1, round(length * (size.end - size.start)))
        shown = part_sections(store.part(key, size, start, end, 10_000), size)
        for view in shown["caches"]:
            assert view["step"], "a cache without a step is left out"
            assert len(view["step"]) == len(view["t"])
        documents = [
            packed_run(shown),
            packed(part_document([(store.opening(key, size, spans), size)])),
            bins_view(store.bins(key, size, start, end, bins), size),
        ]
        assert all(json.dumps(document, allow_nan=False) for document in documents)

    check()


@pytest.mark.parametrize("key", RUNS)
def test_a_part_shows_what_the_whole_document_shows_of_its_window(store, wholes, key):
    whole, size = wholes[key], store.extent(key)
    for low, high in windows(size):
        found = part_sections(store.part(key, size, low, high, 10_000), size)
        start, end = found["part"]["from"], found["part"]["to"]
        for name in TIMED:
            wanted = [row for row in whole[name] if start <= row["t"] <= end]
            assert [row for row in found[name] if start <= row["t"] <= end] == wanted, name
        steps = {row["step"] for row in found["rounds"]}
        mine, theirs = ([r for r in run["copies"] if r["step"] in steps] for run in (found, whole))
        assert mine == theirs
        assert found["pieces"].items() <= whole["pieces"].items()
        assert found["sequences"] == whole["sequences"]
        assert not found["copies"] or found["sources"] == whole["sources"]
        band, cut = ([(a, b, kind) for kind, a, b in run["band"]] for run in (whole, found))
        assert _cut(cut, start, end) == _cut(band, start, end)
        for ours, theirs in zip(found["tracks"], whole["tracks"], strict=False):  # a part has no queue
            assert _cut(ours["waits"], start, end) == _cut(theirs["waits"], start, end)
            assert (ours["label"], ours["lanes"] <= theirs["lanes"]) == (theirs["label"], True)
            if ours["lanes"] == theirs["lanes"]:
                assert _spans(ours, start, end) == _spans(theirs, start, end)
        for name in ("layers", "pool"):
            assert drawn(found[name], start, end) == drawn(whole[name], start, end), name
        parts = {(view["model"], view["label"], view["sequence"]): view for view in found["caches"]}
        for view in whole["caches"]:
            ours = parts.get((view["model"], view["label"], view["sequence"]), {"step": [], "t": []})
            known, wanted = cached(ours, start, end), cached(view, start, end)
            assert known == wanted[: len(known)]
            assert len(wanted) - len(known) <= (2 if high < size.end else 0), "the next forward is not read"


STATES = [
    ("earlier", "valid", "fuzzy", "unknown"),
    ("lost", "lost-fuzzy"),
    *(("new",), ("calibrated",), ("padded",)),
]
"""A part does not know which forwards wrote the older rows."""


def cached(view, low, high):
    """Return the rows of a cache by step in a window."""
    return [
        (step, t, [sum(view["rows"][s][i] for s in states if s in view["rows"]) for states in STATES])
        for i, (step, t) in enumerate(zip(view["step"], view["t"], strict=True))
        if low <= t <= high
    ]


def rows_of(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def drawn(section, low, high):
    """Return the forwards of a section inside a window, and the drafts of its pool."""
    if section is None:
        return []
    if "rounds" in section:
        times = [(row, row["spans"]["start"][0], row["spans"]["end"][-1]) for row in section["rounds"]]
        rows = [row for row, start, end in times if low <= start and end <= high]
        return [section["devices"], section["groups"], rows] if rows else []
    rows = [row for row in rows_of(section["forwards"]) if low <= row["start"] and row["end"] <= high]
    return [section["servers"], rows, [row for row in section["drafts"] if low <= row[0] <= high]]


def _cut(rows, low, high):
    """Return intervals (start, end, name) inside a window."""
    return [(max(low, a), min(high, b), name) for a, b, name in rows if min(high, b) > max(low, a)]


def _spans(track, low, high):
    return [row for row in rows_of(track["spans"]) if row["start"] <= high and row["end"] >= low]


def test_a_window_has_no_rows_with_too_many_spans_and_none_of_a_run_without_an_end(store):
    size = store.extent("sample")
    most = [store.part("sample", size, size.start, size.end, n) for n in (size.spans - 1, size.spans)]
    assert [part is None for part in most] == [True, False]
    assert store.header("sample") == store.load("sample").header
    store.insert(with_header(replace(sample_trace("pearl"), footer=None), run_id="unfinished"))
    assert (store.extent("nobody"), store.extent("unfinished")) == (None, None)


def test_rows_after_the_footer_change_the_size_and_the_bins_of_a_run(tmp_path):
    trace = with_header(sample_trace("pearl"), run_id="late")
    *rows, late = trace.spans

    def spans_of(size):
        return sum(opened.bins("late", size, size.start, size.end, 9).spans)

    with Store(tmp_path / "traces.db") as opened, opened.record(trace.header) as recorder:
        for row in rows:
            recorder.add(row)
        opened.insert()  # waits until the rows are stored
        assert opened.extent("late") is None, "the run has no end yet"
        recorder.add(trace.footer)
        opened.insert()
        before = opened.extent("late")
        assert before.spans == spans_of(before) == len(rows)
        recorder.add(late)
        opened.insert()
        after = opened.extent("late")
        assert after.spans == spans_of(after) == len(rows) + 1


def test_a_damaged_time_is_an_error_that_names_the_run(tmp_path):
    path = tmp_path / "traces.db"
    trace = sample_trace("pearl")
    with Store(path) as opened:
        opened.insert(trace)
        size = opened.extent("sample-pearl")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE span SET end = 'x1y' WHERE number = 3")
            connection.commit()
        with pytest.raises(StoreError, match="run sample-pearl is damaged"):
            opened.bins("sample-pearl", size, size.start, size.end, 9)
