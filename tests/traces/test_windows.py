"""Parts of stored runs have the whole document's rows of their window; bins sum to all rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from engine.errors import StoreError
from tests.traces.samples import sample_trace
from traces.store import Store
from traces.view.document import view_model
from traces.view.part import bins_view, part_document, part_sections

KINDS = ("speculative", "pearl", "shared", "tree", "llma")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("windows") / "traces.db") as opened:
        for kind in KINDS:
            opened.insert(_stored(kind))
        yield opened


def _stored(kind):
    trace = sample_trace(kind, tokens=300)
    trace.header = replace(trace.header, run_id=kind)
    return trace


def _windows(size):
    """Return the beginning, the middle and the end of a run; the document rounds to 1000 ns."""
    first, second = (size.start + i * (size.end - size.start) // 3 // 1000 * 1000 for i in (1, 2))
    return [(size.start, first), (first, second), (second, size.end)]


def _cut(rows, low, high):
    """Return intervals (start, end, name) inside a window."""
    return [(max(low, a), min(high, b), name) for a, b, name in rows if min(high, b) > max(low, a)]


def _spans(track, low, high):
    names = list(track["spans"])
    rows = [dict(zip(names, values, strict=True)) for values in zip(*track["spans"].values(), strict=True)]
    return [row for row in rows if row["start"] <= high and row["end"] >= low]


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_has_the_rows_of_the_whole_document_in_its_window(store, kind):
    (whole,) = view_model([store.load(kind)])["runs"]
    size = store.extent(kind)
    assert size.spans == sum(len(track["spans"]["id"]) for track in whole["tracks"])
    for window in _windows(size):
        found = part_sections(store.part(kind, size, *window, 10_000), size)
        low, high = found["part"]["from"], found["part"]["to"]
        assert high - low > 0.9 * (window[1] - window[0]) / 1e6
        for name in ("tokens", "ghosts", "rounds"):
            assert found[name] == [row for row in whole[name] if low <= row["t"] <= high], name
        assert len(found["tokens"]) > 20
        band, cut = ([(a, b, kind) for kind, a, b in run["band"]] for run in (whole, found))
        assert _cut(cut, low, high) == _cut(band, low, high)
        for ours, theirs in zip(found["tracks"], whole["tracks"], strict=True):
            assert _spans(ours, low, high) == _spans(theirs, low, high)
            assert _cut(ours["waits"], low, high) == _cut(theirs["waits"], low, high)
            assert (ours["label"], ours["lanes"]) == (theirs["label"], theirs["lanes"])


def test_the_first_document_has_the_beginning_and_the_extent_of_the_run(store):
    size = store.extent("pearl")
    document = part_document([(store.opening("pearl", size, 60), size)])
    (run,), (whole,) = document["runs"], view_model([store.load("pearl")])["runs"]
    assert run["long"] == {"spans": size.spans, "tokens": 300}
    assert (run["from"], run["to"]) == (whole["from"], whole["to"])
    assert document["axis"] == {"min": whole["from"], "max": whole["to"]}
    assert 0 < len(run["tokens"]) < 300
    assert run["tokens"] == whole["tokens"][: len(run["tokens"])]
    assert set(whole) - set(run) == set(), "the viewer reads all of these"


def test_a_window_with_too_many_spans_has_no_rows(store):
    size = store.extent("pearl")
    assert store.part("pearl", size, size.start, size.end, size.spans - 1) is None
    assert store.part("pearl", size, size.start, size.end, size.spans) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_bins_count_every_span_and_token_and_all_work(store, kind):
    trace, size = store.load(kind), store.extent(kind)
    bins = store.bins(kind, size, size.start, size.end, 40)
    assert len(bins.spans) == 40
    assert sum(bins.spans) == len(trace.spans)
    assert sum(bins.tokens) == len(trace.commits)
    assert sum(bins.drafted) == sum(r.drafted for r in trace.rounds)
    for device in size.working:
        busy = sum(s.end - s.start for s in trace.spans if s.device == device)
        found = sum(sum(row.busy) for row in bins.work if row.device == device)
        assert abs(found - busy) < 2 * bins.width, "work beyond the last bin is cut"
    view = bins_view(bins, size)
    for row in (look for looks in view["tracks"].values() for look in looks):
        assert all(0 <= share <= 1 for share in row["busy"])
    drafts = [look for looks in view["tracks"].values() for look in looks if look["kind"] == "draft"]
    rejected = any(d.outcome == "rejected" for d in trace.decisions)
    assert any(look["lost"] and sum(look["busy"]) > 0 for look in drafts) == (bool(drafts) and rejected)


def test_the_bins_of_a_window_count_only_its_spans(store):
    trace, size = store.load("speculative"), store.extent("speculative")
    low, high = _windows(size)[1]
    bins = store.bins("speculative", size, low, high, 10)
    assert sum(bins.spans) == sum(1 for s in trace.spans if s.end > low and s.start <= high)
    assert sum(bins.tokens) == sum(1 for c in trace.commits if low <= c.time <= high)


def test_a_run_without_an_end_and_an_unknown_one_have_no_windows(store):
    assert store.extent("nobody") is None
    trace = sample_trace("pearl")
    trace.header, trace.footer = replace(trace.header, run_id="unfinished"), None
    store.insert(trace)
    assert store.extent("unfinished") is None


def test_the_header_of_a_run_is_read_without_its_rows(store):
    assert store.header("tree") == store.load("tree").header


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
