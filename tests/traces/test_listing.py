"""The list of runs: searches by every column, and speed-ups that equal those of the race."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specscope.engine.trace.events import OTHERS, Occupancy
from specscope.traces.listing import Search, parse
from specscope.traces.metrics import measure
from specscope.traces.race import racers_of, speedup_of
from specscope.traces.view.document import view_model
from tests.traces.samples import recorded_loop, sample_trace


def test_a_query_is_words_and_terms_and_an_unknown_term_is_a_word() -> None:
    found = parse("sky model:Smol tokens:>=50 speedup:1.5x load:busy what:ever tokens:many")
    assert found == Search(
        ("sky", "what:ever", "tokens:many"),
        (("model", "Smol"),),
        (("tokens", ">=", 50.0), ("speedup", "", 1.5)),
        busy=True,
    )


def stored(store, kind, group, **fields):
    trace = sample_trace(kind)
    trace.header = replace(trace.header, run_id=f"{group or 'alone'}-{kind}", group=group, **fields)
    store.insert(trace)
    return trace


def test_the_speedups_of_a_list_are_those_of_the_race(store) -> None:
    race = [stored(store, kind, "r1") for kind in ("autoregressive", "speculative", "pearl")]
    alone = stored(store, "pearl", "r2")
    racers = racers_of(race, [measure(trace) for trace in race])
    listed = {row.header.run_id: row.speedup for row in store.runs()[0]}
    assert listed[alone.header.run_id] is None
    for racer in racers:
        faster = speedup_of(racer, racers)
        assert faster is not None
        assert listed[racer.trace.header.run_id] == pytest.approx(faster.value)
    speed = f"{listed['r1-pearl']:.2f}"
    assert [row.header.run_id for row in store.runs(f"speedup:{speed} race:r1")[0]] == ["r1-pearl"]
    assert store.runs("speedup:>0 pearl", offset=1) == ([], 1)


def test_runs_of_no_race_are_compared_as_in_a_report_of_them(store) -> None:
    plain, fast = (stored(store, kind, "") for kind in ("autoregressive", "speculative"))
    alone = stored(store, "pearl", "", prompt_ids=((7, 8, 9),))
    another = sample_trace("autoregressive")
    another.header = replace(another.header, run_id="warm", sampling={"temperature": 0.1, "seed": 7})
    store.insert(another)
    listed = {row.header.run_id: row.speedup for row in store.runs()[0]}
    page = {run["id"]: run["figures"]["speedup"] for run in view_model([plain, fast, alone, another])["runs"]}
    assert listed[alone.header.run_id] is None
    assert page[alone.header.run_id].startswith("different prompt")
    for run in (plain, fast, another):
        assert page[run.header.run_id] == f"{listed[run.header.run_id]:.2f}×"
    assert listed[fast.header.run_id] > 1


def test_recordings_with_other_titles_are_no_passes_of_one_method(store, tmp_path) -> None:
    rounds = {"plain": [(0, 0)] * 20, "mine": [(2, 2)] * 8}
    found = [recorded_loop(tmp_path / f"{t}.jsonl", r, title=t) for t, r in rounds.items()]
    for trace in found:
        trace.header = replace(trace.header, group="together")
        store.insert(trace)
    listed = {row.header.title: row.speedup for row in store.runs()[0]}
    page = {run["title"]: run["figures"]["speedup"] for run in view_model(found)["runs"]}
    assert {title: f"{faster:.2f}×" for title, faster in listed.items()} == page


def test_runs_are_found_by_every_column(store) -> None:
    stored(
        store, "pearl", "aaaa", target_path="/models/smollm2/target", sampling={"temperature": 0.7, "seed": 1}
    )
    loaded = sample_trace("speculative")
    environment = {**loaded.header.environment, "cores": 2}
    loaded.header = replace(
        loaded.header, run_id="loaded", group="bbbb", environment=environment, sampling={"temperature": 0}
    )
    loaded.occupancy.append(Occupancy(OTHERS, 0, 0.5, 0))
    store.insert(loaded)

    def found(query: str) -> list[str]:
        rows, total = store.runs(query)
        assert total == len(rows)
        return [row.header.run_id for row in rows]

    for query in (
        "smollm2",
        "model:SMOL",
        "temperature:0.7",
        "temperature:>0.5",
        "race:aaa",
        "id:aaaa-",
        "tokens:24 aaaa",
    ):
        assert found(query) == ["aaaa-pearl"], query
    for query in ("load:busy", "temperature:0", "bbbb", "temperature:<=0 load:busy"):
        assert found(query) == ["loaded"], query
    for query in ("models", "tokens:>1000", "pearl load:busy", "speedup:>0"):
        assert found(query) == [], query
    (row,) = store.runs("load:busy")[0]
    assert "Other programs used 1.0 of 2 cores" in row.load
