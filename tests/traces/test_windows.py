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
from specscope.engine.errors import StoreError
from specscope.engine.methods import METHODS
from specscope.engine.types import Limits
from specscope.traces.store import Store
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import packed, packed_run
from specscope.traces.view.part import bins_view, part_document, part_sections
from tests.traces.samples import sample_trace
from tests.traces.scripted import dsi, easyspec

SCRIPTED = {
    "dsi-pool": lambda: dsi([True, False, True, True] * 4, new=16),
    "easyspec-fuzzy": lambda: easyspec(gamma=3, new=16),
}
"""Runs with a pool of servers, and with fuzzy drafts."""
PROMPTS = ("Tell me a story.", "Why?", "Once upon a time")
BATCHES = {
    "ems": ("ems", {}, None),
    "batch-of-trees": ("ems", {"batch": 2, "base": "speculative", "width": 4}, None),
    "load": ("speculative", {}, specscope.Load((0.0, 0.1, 0.2), 2)),
    "minedraft": ("speculative", {}, specscope.Load((0.0, 0.1, 0.2), 1, policy="minedraft")),
}
"""Runs of several prompts: method, settings, load."""
KEYS = tuple(dict.fromkeys((*METHODS, *SCRIPTED, *BATCHES)))
TIMED = ("tokens", "ghosts", "rounds", "trees", "ngrams", "lengths", "packings")
BY_STEP = ("copies",)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with (
        Store(tmp_path_factory.mktemp("methods") / "traces.db") as opened,
        specscope.open("bundled", runtime="virtual", profile="pearl-4xA100") as cluster,
    ):
        for key in KEYS:
            if key in SCRIPTED:
                trace = SCRIPTED[key]()
            elif key in BATCHES:
                method, config, load = BATCHES[key]
                trace = cluster.run(method, *PROMPTS, config=config, load=load, limits=Limits(16))
            else:
                trace = cluster.run(key, PROMPTS[0], limits=Limits(16))
            opened.insert(replace(trace, header=replace(trace.header, run_id=key)))
        sample = sample_trace("pearl", tokens=300)
        opened.insert(replace(sample, header=replace(sample.header, run_id="sample")))
        yield opened


@pytest.fixture(scope="module")
def wholes(store):
    return {key: view_model([store.load(key)])["runs"][0] for key in KEYS}


def windows(size):
    """Return windows in ns: the whole run, its beginning, its middle, its end."""
    cuts = [size.start + i * (size.end - size.start) // 3 // 1000 * 1000 for i in range(3)] + [size.end]
    return [(cuts[0], cuts[3]), *pairwise(cuts)]


@pytest.mark.parametrize("key", KEYS)
def test_any_window_and_any_opening_part_is_a_document_in_json(store, key):
    size = store.extent(key)
    share = st.floats(-0.1, 1.1)

    @settings(max_examples=25, deadline=None)
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


@pytest.mark.parametrize("key", KEYS)
def test_a_part_shows_what_the_whole_document_shows_of_its_window(store, wholes, key):
    whole, size = wholes[key], store.extent(key)
    for low, high in windows(size):
        found = part_sections(store.part(key, size, low, high, 10_000), size)
        start, end = found["part"]["from"], found["part"]["to"]
        for name in TIMED:
            wanted = [row for row in whole[name] if start <= row["t"] <= end]
            assert [row for row in found[name] if start <= row["t"] <= end] == wanted, name
        steps = {row["step"] for row in found["rounds"]}
        for name in BY_STEP:
            assert [r for r in found[name] if r["step"] in steps] == [
                r for r in whole[name] if r["step"] in steps
            ], name
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


def cached(view, low, high):
    """Return the rows of a cache by step in a window.

    A part does not know which forwards wrote the older rows.
    """
    sums = [
        ("earlier", "valid", "fuzzy", "unknown"),
        ("lost", "lost-fuzzy"),
        ("new",),
        ("calibrated",),
        ("padded",),
    ]
    return [
        (step, t, [sum(view["rows"].get(state, [0] * (i + 1))[i] for state in states) for states in sums])
        for i, (step, t) in enumerate(zip(view["step"], view["t"], strict=True))
        if low <= t <= high
    ]


def drawn(section, low, high):
    """Return the forwards of a section inside a window, and the drafts of its pool."""
    if section is None:
        return []
    if "rounds" in section:
        rows = [
            row
            for row in section["rounds"]
            if low <= row["spans"]["start"][0] and row["spans"]["end"][-1] <= high
        ]
        return [section["devices"], section["groups"], rows] if rows else []
    columns = section["forwards"]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    drafts = [row for row in section["drafts"] if low <= row[0] <= high]
    return [section["servers"], [r for r in rows if low <= r["start"] and r["end"] <= high], drafts]


def _cut(rows, low, high):
    """Return intervals (start, end, name) inside a window."""
    return [(max(low, a), min(high, b), name) for a, b, name in rows if min(high, b) > max(low, a)]


def _spans(track, low, high):
    names = list(track["spans"])
    rows = [dict(zip(names, values, strict=True)) for values in zip(*track["spans"].values(), strict=True)]
    return [row for row in rows if row["start"] <= high and row["end"] >= low]


def test_the_first_document_has_the_beginning_and_the_extent_of_the_run(store):
    size = store.extent("sample")
    document = part_document([(store.opening("sample", size, 60), size)])
    (run,), (whole,) = document["runs"], view_model([store.load("sample")])["runs"]
    assert run["long"] == {"spans": size.spans, "tokens": 300}
    assert (run["from"], run["to"]) == (whole["from"], whole["to"])
    assert document["axis"] == {"min": whole["from"], "max": whole["to"]}
    assert 0 < len(run["tokens"]) < 300
    assert run["tokens"] == whole["tokens"][: len(run["tokens"])]
    assert set(whole) - set(run) == set(), "the viewer reads all of these"


def test_a_window_with_too_many_spans_has_no_rows(store):
    size = store.extent("sample")
    assert store.part("sample", size, size.start, size.end, size.spans - 1) is None
    assert store.part("sample", size, size.start, size.end, size.spans) is not None


def test_a_run_without_an_end_and_an_unknown_one_have_no_windows(store):
    assert store.extent("nobody") is None
    trace = sample_trace("pearl")
    trace.header, trace.footer = replace(trace.header, run_id="unfinished"), None
    store.insert(trace)
    assert store.extent("unfinished") is None


def test_the_header_of_a_run_is_read_without_its_rows(store):
    assert store.header("sample") == store.load("sample").header


def test_rows_after_the_footer_change_the_size_and_the_bins_of_a_run(tmp_path):
    trace = sample_trace("pearl")
    header = replace(trace.header, run_id="late")
    *rows, late = trace.spans
    with Store(tmp_path / "traces.db") as opened, opened.record(header) as recorder:
        for row in rows:
            recorder.add(row)
        opened.insert()  # waits until the rows are stored
        assert opened.extent("late") is None, "the run has no end yet"
        recorder.add(trace.footer)
        opened.insert()
        before = opened.extent("late")
        assert sum(opened.bins("late", before, before.start, before.end, 9).spans) == len(rows)
        recorder.add(late)
        opened.insert()
        after = opened.extent("late")
        assert (before.spans, after.spans) == (len(rows), len(rows) + 1)
        assert sum(opened.bins("late", after, after.start, after.end, 9).spans) == len(rows) + 1


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
