"""What is recorded of other programs, imported, stored and trained."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import specscope
from specscope.engine.methods import METHODS
from specscope.engine.trace.events import Occupancy
from specscope.engine.trace.jsonl import to_json
from specscope.engine.trace.trace import Trace
from specscope.engine.training.loop import LOG, read_log
from specscope.engine.training.pair import train_pair
from specscope.engine.training.settings import PairOptions, Shape
from specscope.engine.types import Limits
from specscope.traces.database import schema
from specscope.traces.database.store import Store
from specscope.traces.imports.reading import read_traces
from tests.engine.trace.recordings import DEVICES, TREE
from tests.engine.trace.watched import CALLS, generated, pair_of, words
from tests.engine.training.tiny import chats, stories, write_source
from tests.golden.runs import PROMPTS, SAMPLED, opened
from tests.golden.texts import TIMES, Outputs, decided, flat, placeless, rows, run_of_document
from tests.traces.samples import recorded_loop, routed, sample_trace

CREATED = "2026-01-02T03:04:05.678+00:00"
TABLES = ("ssd", "hybrid", "easyspec", "lookahead")
"""Methods that fill, with the samples, every table."""
INDEXES = "SELECT name, tbl_name FROM sqlite_master WHERE type = 'index' ORDER BY name"
TRAINING: dict[str, Any] = {
    "steps": 20,
    "drafter_steps": 20,
    "batch": 4,
    "sequence": 32,
    "context": 128,
    "vocabulary": 320,
    "target": Shape(2, 32, 2, 64),
    "drafter": Shape(1, 16, 1, 32),
    "learning_rate": 1e-2,
    "warmup": 2,
    "held_out": 0.1,
    "device": "cpu",
    "precision": "fp32",
}
IMPORTED = Path(__file__).parents[1] / "traces" / "imported"


def recordings() -> Outputs:
    """Yield what `record` writes, with 0 for its times, and what `watch` does, without floats."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loop.jsonl"
        _loop(path)
        yield "record", rows(_timeless(read_traces(path).traces[0]))
        for name, given in {"chain": {}, "match": {"p": 0.5, "q": 0.25}}.items():
            trace = recorded_loop(path, [(3, 3), (3, 1), (2, 0)], sequences=2, other=0.5, **given)
            yield f"record, made-up clock, {name}", f"{rows(trace)}\n{run_of_document(trace)}"
    for name, (arguments, settings) in CALLS.items():
        target, drafter = pair_of("GPTNeoX", **settings)
        more = {"assistant_model": drafter} if settings else {}
        with specscope.watch(target, drafter, tokenizer=words()) as trace:
            generated(target, **arguments, **more)
        facts = {"title": trace.header.title, "config": trace.header.config, "reasons": trace.footer.reasons}
        kinds = [[s.kind, s.model, s.device, s.step, s.rows, s.context] for s in trace.spans]
        yield f"watch, {name}", f"{flat(facts)}\n{decided(trace)}\n{flat({'spans': kinds})}"


def _loop(path: Path) -> None:
    """Record rounds of a chain and of a tree."""
    sampling = {"temperature": 0.7, "seed": 1}
    with specscope.record(path, method="my loop", devices=DEVICES, sampling=sampling, rule="ratio") as rec:
        rec.prompt("The prompt", ids=[1, 2, 3])
        with rec.span("draft", rows=1):
            pass
        with rec.span("verify", rows=4, context=3):
            pass
        rec.round(drafted=[4, 5, 6], accepted=2, emitted=[4, 5, 9], texts=["a", "b", "c"], q=[0.5, 0.4, 0.3])
        with rec.span("verify", rows=7, context=6):
            pass
        rec.round(**TREE, accepted=2, emitted=[11, 14, 20])


def _timeless(trace: Trace) -> Trace:
    """Return a recording without its times and the load of the machine."""
    kept = (row for row in trace.rows() if not isinstance(row, Occupancy))
    events = [replace(row, **{name: 0 for name in TIMES if hasattr(row, name)}) for row in kept]
    return Trace.of([trace.header, *events, replace(trace.footer, time=0)])


def imports() -> Outputs:
    """Yield the traces and documents of each form of file, SpecScope's own one too."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own.jsonl"
        own.write_text("\n".join(map(to_json, sample_trace("llma").events())), encoding="utf-8")
        files = (path for path in IMPORTED.rglob("*.*") if path.parent.name != "servers")
        for path in [*sorted(files), own]:
            found = read_traces(path)
            for number, trace in enumerate(found.traces, 1):
                facts = {"skipped": found.skipped, "imported": trace.header.environment.get("imported")}
                text = f"{flat(facts)}\n{rows(trace)}\n{run_of_document(trace)}"
                yield f"{path.name}, run {number} of {len(found.traces)}", text


def _runs(limits: Limits, *methods: str) -> Iterator[Trace]:
    """Yield sampled runs whose ids are their methods."""
    with opened("8xA100") as cluster:
        for method in methods:
            prompts = PROMPTS if METHODS[method].batched else PROMPTS[:1]
            trace = cluster.run(method, *prompts, sampling=SAMPLED, limits=limits)
            header = replace(trace.header, run_id=method, created=CREATED, group="", environment={})
            yield replace(trace, header=header)


def database() -> Outputs:
    """Yield the tables and their rows of a file that was closed and opened again."""
    (log,) = read_traces(IMPORTED / "printed" / "04-vllm.log").traces
    log.header = replace(log.header, created=CREATED)
    traces = [routed(sample_trace("speculative")), sample_trace("llma"), *_runs(Limits(8), *TABLES), log]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        with Store(path) as store:
            store.insert(*traces)
        with Store(path) as store:
            for trace in traces:
                assert rows(store.load(trace.header.run_id)) == rows(trace)
        with closing(sqlite3.connect(path)) as connection:
            numbers = [
                connection.execute(f"PRAGMA {n}").fetchone() for n in ("user_version", "application_id")
            ]
            yield "file", flat({"numbers": numbers, "indexes": _selected(connection, INDEXES)})
            for table in (schema.RUN, *schema.ROWS.values()):
                found = _selected(connection, f'SELECT * FROM "{table.name}"')
                assert found, f"no run has rows of {table.name}"
                columns = _selected(connection, f'PRAGMA table_info("{table.name}")')
                yield table.name, placeless("\n".join([flat({"columns": columns}), *map(str, found)]))


def _selected(connection: sqlite3.Connection, query: str) -> list[list[Any]]:
    return [list(row) for row in connection.execute(query)]


def training() -> Outputs:
    """Yield each step's loss, with the digits that are equal on all processors.

    Muon's losses drift apart sooner than AdamW's: of them a few steps of the target are kept.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        write_source(corpus, "stories", stories())
        write_source(corpus, "chats", chats())
        for optimizer, most in {"adamw": 40, "muon": 8}.items():
            out = Path(folder) / optimizer
            train_pair(PairOptions(data=corpus, out=out, optimizer=optimizer, **TRAINING))
            log = read_log(out / LOG)[:most]
            lines = (f"{row['phase']} {row['step']} {row['loss']:.3g} {row['rate']:.3g}" for row in log)
            yield f"pair, {optimizer}", "\n".join(lines)
    torch.set_num_threads(before)
