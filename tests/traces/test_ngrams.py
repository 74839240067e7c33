"""Pools of n-grams and look-ahead windows: the viewer's section, and the stored rows."""

import json
from dataclasses import replace

import pytest
from hypothesis import given

from engine.errors import UsageError
from engine.trace.events import Footer, Round
from engine.trace.jsonl import to_json
from engine.trace.trace import Trace
from tests.engine.workers.harness import scripted_cluster
from tests.traces import strategies
from tests.traces.samples import KINDS, sample_trace
from traces.export.jsonl import read_file
from traces.store import Store
from traces.view.clock import decoding_clock
from traces.view.document import view_model
from traces.view.ngrams import ngrams


def counts_up(path) -> int:
    """10, 11, ... 29, 10, ..."""
    return (int(path[-1]) - 9) % 20 + 10


def ahead(method: str = "lookahead", new: int = 60, **config: object) -> Trace:
    """Return a run in virtual time that uses a pool."""
    with scripted_cluster(counts_up, counts_up) as cluster:
        settings = {"level": 4, "window": 5, "guesses": 3} | config
        return cluster.run(method, [10, 11], config=settings, limits=cluster.limits(new))


@pytest.fixture(scope="module", params=["lookahead", "ouroboros"])
def trace(request):
    return ahead(request.param)


def test_a_row_counts_the_accepted_tokens_of_every_ngram(trace):
    rows, clock = ngrams(trace), decoding_clock(trace)
    assert [r["step"] for r in rows] == [r.step for r in trace.rounds]
    best = set[int]()
    for row, round_, pooled in zip(rows, trace.rounds, trace.pooled, strict=True):
        assert row["t"] == clock(round_.time)
        assert (row["size"], row["gained"]) == (pooled.size, [list(gram) for gram in pooled.gained])
        decided = [d for d in trace.decisions if d.step == row["step"] and d.node >= 0]
        chain = max((d.node for d in decided if d.draft_span >= 0), default=-1) + 1
        kept = [d.token for d in decided if d.outcome == "accepted"][chain:]
        for tried in row["tried"]:
            tail = tried["ids"][1:]
            accepted = 0
            while accepted < len(tail) and tail[: accepted + 1] == kept[: accepted + 1]:
                accepted += 1
            assert tried["accepted"] == accepted
            best.add(accepted)
    assert {0, 3} <= best or best == {3}, "whole n-grams are accepted"


def test_lookahead_gains_the_columns_of_a_full_window():
    for row in ngrams(ahead()):
        if len(row["window"]) == 4:
            assert row["gained"] == [list(column) for column in zip(*row["window"], strict=True)]


def test_pieces_have_the_text_of_every_token(trace):
    (run,) = view_model([trace])["runs"]
    ids = {i for row in run["ngrams"] for gram in (*row["window"], *row["gained"]) for i in gram}
    ids |= {i for row in run["ngrams"] for tried in row["tried"] for i in tried["ids"]}
    assert {str(i) for i in ids} <= set(run["pieces"])
    json.dumps(run["ngrams"], allow_nan=False)


def test_a_redacted_document_has_no_window(trace):
    (run,) = view_model([trace], redact_prompt=True)["runs"]
    assert run["ngrams"] == []


@pytest.mark.parametrize("kind", KINDS)
def test_runs_without_a_pool_have_none(kind):
    assert ngrams(sample_trace(kind)) == []


def test_incomplete_rounds_of_a_run_in_progress_are_left_out(trace):
    events = [trace.header, *trace.rows()]
    last = trace.rounds[-1]
    young = Trace.of([e for e in events if e != last and not isinstance(e, Footer)])
    assert isinstance(last, Round)
    assert len(ngrams(young)) == len(trace.rounds) - 1


@strategies.few
@given(strategies.traces())
def test_any_trace_has_its_rows(trace):
    for row in ngrams(trace):
        assert all(0 <= tried["accepted"] < len(tried["ids"]) for tried in row["tried"])


def test_rows_are_written_and_read_again(tmp_path, trace):
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(to_json(e) for e in trace.events()))
    assert read_file(path) == trace
    with Store(tmp_path / "traces.db") as store:
        store.insert(trace)
        assert store.load(trace.header.run_id) == trace


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence": 1}, "sequence 1 is not among the header's 1 prompts"),
        ({"window": (("a",),)}, "window of a pooled is"),
        ({"model": "nobody"}, "model of a pooled is 'nobody'; it must be one of target, drafter"),
        ({"size": -1}, "a pool holds -1 n-grams"),
        ({"tried": ((),)}, "an n-gram without tokens"),
    ],
)
def test_an_invalid_row_is_refused(tmp_path, trace, fields, message):
    wrong = Trace.of(trace.events())
    wrong.pooled = [replace(trace.pooled[0], **fields)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(to_json(e) for e in wrong.events()))
    with pytest.raises(UsageError, match=message):
        read_file(path)
