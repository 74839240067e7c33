"""Forecasts of suffix trees: the viewer's section and its sums."""

from __future__ import annotations

from specscope.engine.drafting.suffix import Finished
from specscope.engine.trace.events import Forecast
from specscope.traces.view.document import view_model
from specscope.traces.view.forecasts import forecasts
from specscope.traces.view.ngrams import sources
from tests.engine.worker.harness import scripted_cluster
from tests.traces.test_ngrams import counts_up


def expecting(method: str = "suffix", new: int = 50, drafter=counts_up, **config: object):
    """Return a run in virtual time that drafts from its own text and from finished ones."""
    finished = Finished([range(10, 16), range(14, 22), range(70, 80)])
    with scripted_cluster(counts_up, drafter) as cluster:
        limits = cluster.limits(new)
        return cluster.run(method, [9, 10, 11], config=config, limits=limits, finished=finished)


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
