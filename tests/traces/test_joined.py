"""Rows by round, which a trace keeps until it has other rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specscope.traces.facts.joined import decisions_of_output, joined
from specscope.traces.facts.waiting import decode_window
from tests.traces.samples import sample_trace


@pytest.mark.parametrize("kind", ["speculative", "pearl", "tree"])
def test_each_round_has_its_rows_and_the_next_round(kind):
    trace = sample_trace(kind)
    rounds = joined(trace)
    for r, following in zip(trace.rounds, [*trace.rounds[1:], None], strict=True):
        one = rounds.of(r)
        assert one.round is r
        assert one.following is following
        assert one.decisions == [d for d in trace.decisions if d.step == r.step]
        assert [*one.nodes] == sorted(d.node for d in one.decisions if d.node >= 0)
    found = decisions_of_output(trace)
    assert [found[c.sequence, c.position].token for c in trace.commits] == trace.token_ids()


def test_a_trace_is_joined_once_and_anew_with_other_rows():
    trace = sample_trace("speculative")
    whole, last = joined(trace), trace.rounds[-1]
    assert joined(trace) is whole
    cut = replace(trace, rounds=trace.rounds[:-1])
    assert joined(cut).of(last).round is None
    cut.add(last)
    assert joined(cut).of(last).round is last
    cut.spans = [replace(span, end=span.end + 10**12) for span in cut.spans]
    assert decode_window(cut) != decode_window(trace)
    cut.footer = None
    assert decode_window(cut)[1] >= 10**12
