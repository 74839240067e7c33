"""Forecasts of suffix trees: the viewer's section and its sums."""

from __future__ import annotations

import pytest

from specscope.engine.drafting.suffix import Finished
from specscope.engine.trace.events import Forecast, Round
from specscope.traces.view.document import view_model
from specscope.traces.view.forecasts import forecasts, sums_of
from specscope.traces.view.ngrams import sources
from specscope.traces.waiting import decoding_clock
from tests.engine.worker.harness import scripted_cluster
from tests.traces.test_ngrams import counts_up


def never(path) -> int:
    return 5


def expecting(method: str = "suffix", new: int = 50, drafter=counts_up, **config: object):
    """Return a run in virtual time that drafts from its own text and from finished ones."""
    finished = Finished([range(10, 16), range(14, 22), range(70, 80)])
    with scripted_cluster(counts_up, drafter) as cluster:
        limits = cluster.limits(new)
        return cluster.run(method, [9, 10, 11], config=config, limits=limits, finished=finished)


@pytest.mark.parametrize("trace", [expecting(), expecting("hybrid", gamma=2), expecting("hybrid", 40, never)])
def test_a_row_has_the_forecast_and_the_outcome_of_its_round(trace):
    clock, copied = decoding_clock(trace), {c.step for c in trace.copies}
    rows = forecasts(trace)
    assert [row["step"] for row in rows] == [r.step for r in trace.rounds]
    for row, f, r in zip(rows, trace.forecasts, trace.rounds, strict=True):
        assert (row["drafted"], row["accepted"], row["t"]) == (r.drafted, r.accepted, clock(r.time))
        assert (row["tree"], row["match"], row["score"], row["drafter"]) == (
            f.tree,
            f.match,
            f.score,
            f.drafter,
        )
        assert row["copied"] == (f.step in copied)


def test_the_sums_count_each_draft_once():
    trace = expecting("hybrid", gamma=2)
    sums = {row["by"]: row for row in sums_of(forecasts(trace))}
    assert set(sums) == {"own", "finished", "drafter"}
    assert sum(row["accepted"] for row in sums.values()) == sum(r.accepted for r in trace.rounds)
    assert sum(row["drafted"] for row in sums.values()) == sum(r.drafted for r in trace.rounds)
    own = [f for f in trace.forecasts if f.tree == "own" and f.step in {c.step for c in trace.copies}]
    assert sums["own"]["rounds"] == len(own)
    assert sums["own"]["expected"] == pytest.approx(sum(f.score for f in own))
    assert sums["own"]["match"] == pytest.approx(sum(f.match for f in own) / len(own))
    assert sums["drafter"]["expected"] == pytest.approx(2.0 * sums["drafter"]["rounds"])


def test_a_run_in_progress_shows_the_rounds_that_ended():
    trace = expecting()
    trace.add(Forecast(len(trace.rounds) + 1, 0, "own", 1, 2, 0.5, None))
    assert len(forecasts(trace)) == len(trace.rounds)


def test_only_finished_texts_that_were_copied_from_are_shown():
    trace = expecting()
    assert len(trace.documents) == 3
    copied = {c.document for c in trace.copies if c.document >= 0}
    assert copied == {0, 1}
    assert {row["document"] for row in sources(trace)} == {-1, 0, 1}


def test_a_redacted_run_shows_no_finished_text():
    (run,) = view_model([expecting()], redact_prompt=True)["runs"]
    assert run["forecasts"]
    assert run["sources"] == []


def test_a_run_without_suffix_trees_has_none():
    with scripted_cluster(counts_up, counts_up) as cluster:
        trace = cluster.run("llma", [10, 11], limits=cluster.limits(8))
    (run,) = view_model([trace])["runs"]
    assert (run["forecasts"], run["forecast_sums"]) == ([], [])
    assert isinstance(trace.rounds[0], Round)
