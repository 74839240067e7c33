import json
import sqlite3
from dataclasses import asdict, replace
from uuid import uuid4

import pytest
from hypothesis import given

from specscope.engine.errors import StoreError, UsageError
from specscope.engine.trace.events import Footer
from specscope.traces import schema
from specscope.traces.metrics import measure
from specscope.traces.store import Store
from tests.traces import strategies
from tests.traces.samples import KINDS, sample_events, sample_trace


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("store") / "traces.db") as opened:
        yield opened


def renamed(trace, run_id, **fields):
    return replace(trace, header=replace(trace.header, run_id=run_id, **fields))


@strategies.few
@given(strategies.traces())
def test_a_stored_trace_comes_back_exactly(shared, trace):
    trace = renamed(trace, uuid4().hex)
    shared.insert(trace)
    loaded = shared.load(trace.header.run_id)
    assert loaded == trace
    assert json.dumps([asdict(e) for e in loaded.rows()]) == json.dumps([asdict(e) for e in trace.rows()])


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_trace_comes_back_exactly(store, kind):
    header, *events = sample_events(kind)
    with store.record(header) as recorder:
        for event in events:
            recorder.add(event)
    assert store.load(header.run_id) == sample_trace(kind)


def test_a_run_is_running_until_its_footer(store):
    header, *events = sample_events()
    recorder = store.record(header)
    recorder.add(events[0])
    assert store.load(header.run_id).status == "running"
    assert [s.status for s in store.runs()[0]] == ["running"]
    assert store.runs(status="running")[1] == 1
    for event in events[1:]:
        recorder.add(event)
    recorder.close()
    assert store.load(header.run_id).status == "done"
    assert store.runs(status="running")[1] == 0


def test_a_run_closed_without_a_footer_is_incomplete(store):
    header, *events = sample_events()
    with store.record(header) as recorder:
        for event in events[:-1]:
            recorder.add(event)
    trace = store.load(header.run_id)
    footer = events[-1]
    assert isinstance(footer, Footer)
    assert trace.status == "incomplete"
    assert trace.text == footer.texts[0]
    assert trace.footer.time == max(s.end for s in trace.spans)
    (summary,), total = store.runs(status="incomplete")
    assert (summary.status, total) == ("incomplete", 1)


def test_an_id_is_never_replaced(store):
    store.insert(sample_trace("pearl"))
    for attempt in (
        lambda: store.insert(sample_trace("pearl", tokens=3)),
        lambda: store.record(sample_events("pearl")[0]),
    ):
        with pytest.raises(StoreError, match="already stored; delete it in the History first"):
            attempt()
    assert store.load("sample-pearl") == sample_trace("pearl")


def test_an_import_is_all_or_nothing(store):
    trace = sample_trace()
    trace.commits.append(replace(trace.commits[-1], origin="a guess"))
    with pytest.raises(StoreError, match="'a guess' is none of accepted, rejected"):
        store.insert(trace)
    assert store.runs() == ([], 0)
    trace.commits[-1] = replace(trace.commits[-1], origin="plain", text="\ud800")
    with pytest.raises(StoreError, match="the trace database failed: "):
        store.insert(trace)
    trace.commits[-1] = replace(trace.commits[-1], text="", time=2**63)
    with pytest.raises(StoreError, match="the trace database failed: "):
        store.insert(trace)
    assert store.runs() == ([], 0)


def test_a_summary_has_the_facts_of_the_history(store):
    store.insert(sample_trace("pearl"))
    (summary,), total = store.runs()
    trace = sample_trace("pearl")
    assert total == 1
    assert summary.header == trace.header
    assert (summary.status, summary.tokens, summary.text) == ("done", 24, trace.text)
    assert summary.seconds == trace.footer.time / 1e9
    assert summary.tokens_per_second == pytest.approx(measure(trace).tokens_per_second)


def test_pages_are_newest_first(store):
    for i in range(7):
        store.insert(renamed(sample_trace(tokens=2), f"run{i}", created=f"2025-01-0{i + 1}"))
    page, total = store.runs(offset=2, limit=3)
    assert ([s.header.run_id for s in page], total) == (["run4", "run3", "run2"], 7)
    assert store.runs(offset=7) == ([], 7)


def test_search_and_filters(store):
    first = renamed(sample_trace("pearl"), "first", prompts=('Say "Héllo" 100%\nplease',))
    second = renamed(sample_trace("speculative"), "second", prompts=("a_b",), title="Other")
    second.footer = replace(second.footer, texts=("what came out",), status="failed", error="worker died")
    store.insert(first)
    store.insert(second)

    def matches(*args, **filters):
        runs, total = store.runs(*args, **filters)
        assert total == len(runs)
        return {s.header.run_id for s in runs}

    for text in ('"Héllo"', "say", "100%\nplease", "FIRST", "pearl"):
        assert matches(text) == {"first"}, text
    for text in ("a_b", "CAME out", "other"):
        assert matches(text) == {"second"}, text
    assert matches("%") == {"first"}
    assert matches("axb") == set()
    assert matches(method="pearl") == {"first"}
    assert matches(status="failed") == {"second"}
    assert matches("say", status="failed") == set()
    assert matches() == {"first", "second"}
    assert store.runs(status="failed")[0][0].error == "worker died"


def test_delete_removes_all_rows(store):
    for kind in KINDS:
        store.insert(sample_trace(kind))
    assert store.delete(["sample-llma", "sample-pearl", "sample-shared", "never was"]) == 3
    assert {s.header.method for s in store.runs()[0]} == {"autoregressive", "speculative", "tree"}
    store.delete([s.header.run_id for s in store.runs()[0]])
    connection = sqlite3.connect(store.path)
    ours = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    tables = [row[0] for row in connection.execute(ours)]
    counts = {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
    connection.close()
    assert len(counts) >= len(schema.ROWS) + 1
    assert set(counts.values()) == {0}


def test_a_running_run_is_not_deleted(store):
    store.insert(sample_trace("pearl"))
    header, *_ = sample_events()
    with store.record(header):
        with pytest.raises(UsageError, match="still running; stop it"):
            store.delete([header.run_id, "sample-pearl"])
        assert store.runs()[1] == 2
    assert store.delete([header.run_id]) == 1


def test_a_comparison_is_found_from_any_of_its_runs(store):
    for kind in ("speculative", "pearl"):
        store.insert(sample_trace(kind, group="g"))
    store.insert(sample_trace("autoregressive"))
    assert store.group("sample-pearl") == ["sample-speculative", "sample-pearl"]
    assert store.group("sample-autoregressive") == ["sample-autoregressive"]


def test_an_unknown_run_is_refused(store):
    for read in (store.load, store.group):
        with pytest.raises(UsageError, match="there is no run 'nope'"):
            read("nope")


def test_a_closed_store_accepts_nothing(tmp_path):
    store = Store(tmp_path / "traces.db")
    header, event, *_ = sample_events()
    recorder = store.record(header)
    store.close()
    with pytest.raises(StoreError, match=r"was closed during run sample-speculative"):
        recorder.add(event)
    with pytest.raises(StoreError, match="is closed"):
        store.insert(sample_trace("pearl"))
    with Store(store.path, readonly=True) as again:
        assert again.load(header.run_id).status == "incomplete"
