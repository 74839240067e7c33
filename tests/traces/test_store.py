"""The store of runs: exact rows, runs in progress, searches by every column, deletion."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, replace
from uuid import uuid4

import pytest
from hypothesis import given

from specscope.engine.errors import StoreError, UsageError
from specscope.engine.trace.events import OTHERS, Footer, Occupancy
from specscope.traces.database import schema
from specscope.traces.database.listing import Search, parse
from specscope.traces.database.store import Store
from specscope.traces.facts.metrics import measure
from specscope.traces.judge.race import racers_of, speedup_of
from specscope.traces.view.document import view_model
from tests.traces import strategies
from tests.traces.samples import KINDS, recorded_loop, sample_events, sample_trace, with_header


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("store") / "traces.db") as opened:
        yield opened


def ids(rows):
    return [row.header.run_id for row in rows]


@strategies.few
@given(strategies.traces())
def test_a_stored_trace_comes_back_exactly(shared, trace):
    trace = with_header(trace, run_id=uuid4().hex)
    shared.insert(trace)
    loaded = shared.load(trace.header.run_id)
    assert loaded == trace
    assert json.dumps([asdict(e) for e in loaded.rows()]) == json.dumps([asdict(e) for e in trace.rows()])


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_running_until_its_footer_and_comes_back_exactly(store, kind):
    header, *events = sample_events(kind)
    recorder = store.record(header)
    recorder.add(events[0])
    assert store.load(header.run_id).status == "running"
    assert [s.status for s in store.runs(status="running")[0]] == ["running"]
    for event in events[1:]:
        recorder.add(event)
    recorder.close()
    assert store.load(header.run_id) == sample_trace(kind)
    assert store.runs(status="running")[1] == 0


def test_a_run_closed_without_a_footer_is_incomplete(store):
    header, *events, footer = sample_events()
    with store.record(header) as recorder:
        for event in events:
            recorder.add(event)
    trace = store.load(header.run_id)
    assert isinstance(footer, Footer)
    assert (trace.status, trace.text) == ("incomplete", footer.texts[0])
    assert trace.footer.time == max(s.end for s in trace.spans)
    assert [s.status for s in store.runs(status="incomplete")[0]] == ["incomplete"]


def test_an_id_is_never_replaced_and_an_unknown_one_is_refused(store):
    store.insert(sample_trace("pearl"))
    for attempt in (
        lambda: store.insert(sample_trace("pearl", tokens=3)),
        lambda: store.record(sample_events("pearl")[0]),
    ):
        with pytest.raises(StoreError, match="already stored; delete it in the History first"):
            attempt()
    assert store.load("sample-pearl") == sample_trace("pearl")
    for read in (store.load, store.group):
        with pytest.raises(UsageError, match="there is no run 'nope'"):
            read("nope")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"origin": "a guess"}, "'a guess' is none of accepted, rejected"),
        ({"text": "\ud800"}, "the trace database failed: "),
        ({"time": 2**63}, "the trace database failed: "),
    ],
)
def test_an_import_is_all_or_nothing(store, fields, message):
    trace = sample_trace()
    trace.commits[-1] = replace(trace.commits[-1], **fields)
    with pytest.raises(StoreError, match=message):
        store.insert(sample_trace("pearl"), trace)
    assert store.runs() == ([], 0)


def test_a_summary_has_the_facts_of_the_history(store):
    trace = sample_trace("pearl")
    store.insert(trace)
    (summary,), total = store.runs()
    assert (total, summary.header) == (1, trace.header)
    assert (summary.status, summary.tokens, summary.text) == ("done", 24, trace.text)
    assert summary.seconds == trace.footer.time / 1e9
    assert summary.tokens_per_second == pytest.approx(measure(trace).tokens_per_second)


def test_pages_are_newest_first(store):
    for i in range(7):
        store.insert(with_header(sample_trace(tokens=2), run_id=f"run{i}", created=f"2025-01-0{i + 1}"))
    page, total = store.runs(offset=2, limit=3)
    assert (ids(page), total) == (["run4", "run3", "run2"], 7)
    assert store.runs(offset=7) == ([], 7)


def test_a_query_is_words_and_terms_and_an_unknown_term_is_a_word():
    found = parse("sky model:Smol tokens:>=50 speedup:1.5x load:busy what:ever tokens:many")
    assert found == Search(
        ("sky", "what:ever", "tokens:many"),
        (("model", "Smol"),),
        (("tokens", ">=", 50.0), ("speedup", "", 1.5)),
        busy=True,
    )


FOUND = {
    "first": ('"Héllo"', "say", "100%\nplease", "FIRST", "pearl", "%", "smollm2", "model:SMOL"),
    "second": ("a_b", "CAME out", "other", "load:busy", "temperature:0", "bbbb", "temperature:<=0 load:busy"),
    "": ("axb", "models", "tokens:>1000", "pearl load:busy", "speedup:>0"),
    "first second": ("", "tokens:24"),
}
FOUND["first"] += ("temperature:0.7", "temperature:>0.5", "race:aaa", "id:firs", "tokens:24 aaaa")


def test_runs_are_found_by_words_filters_and_every_column(store):
    facts = {"group": "aaaa", "target_path": "/models/smollm2/target", "sampling": {"temperature": 0.7}}
    first = with_header(sample_trace("pearl"), run_id="first", prompts=('Say "Héllo" 100%\nplease',), **facts)
    second = sample_trace("speculative")
    environment = {**second.header.environment, "cores": 2}
    facts = {"group": "bbbb", "environment": environment, "sampling": {"temperature": 0}, "title": "Other"}
    second = with_header(second, run_id="second", prompts=("a_b",), **facts)
    second.footer = replace(second.footer, texts=("what came out",), status="failed", error="worker died")
    second.occupancy.append(Occupancy(OTHERS, 0, 0.5, 0))
    store.insert(first, second)

    def matches(*args, **filters):
        runs, total = store.runs(*args, **filters)
        assert total == len(runs)
        return {*ids(runs)}

    for wanted, queries in FOUND.items():
        for query in queries:
            assert matches(query) == {*wanted.split()}, query
    assert matches(method="pearl") == {"first"}
    assert matches(status="failed") == {"second"}
    assert matches("say", status="failed") == set()
    (failed,), _ = store.runs(status="failed")
    assert failed.error == "worker died"
    assert "Other programs used 1.0 of 2 cores" in failed.load


def stored(store, kind, group="", run_id="", **fields):
    run_id = run_id or f"{group or 'alone'}-{kind}"
    trace = with_header(sample_trace(kind), run_id=run_id, group=group, **fields)
    store.insert(trace)
    return trace


def speedups(store):
    return {row.header.run_id: row.speedup for row in store.runs()[0]}


def test_the_speedups_of_a_list_are_those_of_the_race(store):
    race = [stored(store, kind, "r1") for kind in ("autoregressive", "speculative", "pearl")]
    alone = stored(store, "pearl", "r2")
    racers = racers_of(race, [measure(trace) for trace in race])
    listed = speedups(store)
    assert listed[alone.header.run_id] is None
    for racer in racers:
        faster = speedup_of(racer, racers)
        assert faster is not None
        assert listed[racer.trace.header.run_id] == pytest.approx(faster.value)
    assert ids(store.runs(f"speedup:{listed['r1-pearl']:.2f} race:r1")[0]) == ["r1-pearl"]
    assert store.runs("speedup:>0 pearl", offset=1) == ([], 1)


def test_runs_of_no_race_are_compared_as_in_a_report_of_them(store):
    plain, fast = (stored(store, kind) for kind in ("autoregressive", "speculative"))
    alone = stored(store, "pearl", prompt_ids=((7, 8, 9),))
    another = stored(store, "autoregressive", "", "warm", sampling={"temperature": 0.1, "seed": 7})
    listed = speedups(store)
    page = {run["id"]: run["figures"]["speedup"] for run in view_model([plain, fast, alone, another])["runs"]}
    assert listed[alone.header.run_id] is None
    assert page[alone.header.run_id].startswith("different prompt")
    for run in ids((plain, fast, another)):
        assert page[run] == f"{listed[run]:.2f}×"
    assert listed[fast.header.run_id] > 1


def test_recordings_with_other_titles_are_no_passes_of_one_method(store, tmp_path):
    rounds = {"plain": [(0, 0)] * 20, "mine": [(2, 2)] * 8}
    loops = [recorded_loop(tmp_path / f"{t}.jsonl", r, title=t) for t, r in rounds.items()]
    found = [with_header(trace, group="together") for trace in loops]
    store.insert(*found)
    page = {run["id"]: run["figures"]["speedup"] for run in view_model(found)["runs"]}
    assert {run: f"{faster:.2f}×" for run, faster in speedups(store).items()} == page


def test_delete_removes_all_rows(store):
    for kind in KINDS:
        store.insert(sample_trace(kind))
    assert store.delete(["sample-llma", "sample-pearl", "sample-shared", "never was"]) == 3
    left = store.runs()[0]
    assert {s.header.method for s in left} == {"autoregressive", "speculative", "tree"}
    store.delete(ids(left))
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
