"""The share of an open page in the time of runs, without a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.bench import page
from engine.errors import SpecScopeError
from tests.traces.samples import sample_trace
from traces.store import Store


@pytest.fixture
def turns(tmp_path):
    """Turns whose runs are samples; each press stores two runs of a new group."""
    path, groups = tmp_path / "traces.db", iter("abcdefgh")

    def press():
        group = next(groups)
        with Store(path) as store:
            for kind in ("autoregressive", "speculative"):
                trace = sample_trace(kind, group=group)
                store.insert(replace(trace, header=replace(trace.header, run_id=f"{group}-{kind}")))

    done = SimpleNamespace(press=press, finish=lambda: None, leave=lambda: None)
    return done, Path(path)


def slower(trace, factor):
    """Return the run in a multiple of its time."""
    spans = [replace(s, start=factor * s.start, end=factor * s.end) for s in trace.spans]
    commits = [replace(c, time=factor * c.time) for c in trace.commits]
    rounds = [replace(r, time=factor * r.time) for r in trace.rounds]
    footer = replace(trace.footer, time=factor * trace.footer.time)
    return replace(trace, spans=spans, commits=commits, rounds=rounds, footer=footer)


def test_the_share_is_the_time_with_the_page_over_that_without_it(turns):
    shares, tokens = page.page_shares(*turns, 2, lambda trace: slower(trace, 2))
    assert shares == pytest.approx((0.5, 0.5))
    assert tokens == [24, 24]


def test_runs_of_different_texts_are_not_compared(turns):
    with pytest.raises(SpecScopeError, match="Autoregressive wrote another text without the page"):
        page.page_shares(*turns, 1, lambda trace: replace(trace, commits=trace.commits[:-1]))
