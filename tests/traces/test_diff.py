"""The difference of two runs: waterfalls that sum to it, the first differing token, conditions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Span
from specscope.engine.trace.trace import Trace
from specscope.traces.diff import diff
from specscope.traces.imports.reading import read_traces
from specscope.traces.waiting import decode_window, waits, work
from tests.traces.samples import KINDS, sample_trace
from tests.traces.strategies import traces


def sums(trace: Trace) -> set[int]:
    """Return the sums of work and waits of the devices."""
    waited = {d.name: 0 for d in trace.header.devices}
    for wait in waits(trace):
        waited[wait.device] += wait.end - wait.start
    return {sum(kinds.values()) + waited[device] for device, kinds in work(trace).items()}


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_every_waterfall_sums_exactly_to_the_difference(first: str, second: str):
    found = diff(sample_trace(first, tokens=30), sample_trace(second, tokens=24))
    assert found.difference == found.decode[1] - found.decode[0]
    assert found.waterfalls[0].role == "target"
    for waterfall in found.waterfalls:
        assert sum(step.change for step in waterfall.steps) == found.difference
        assert all(step.label.startswith("waits for") == step.wait for step in waterfall.steps)
        assert sum(step.first for step in waterfall.steps) == found.decode[0]
        assert sum(step.second for step in waterfall.steps) == found.decode[1]


@settings(max_examples=25, deadline=None)
@given(traces())
def test_work_and_waits_fill_the_decode_window_of_every_device(trace: Trace):
    start, end = decode_window(trace)
    assert sums(trace) <= {end - start}


def test_cancelled_work_is_a_kind_of_its_own():
    trace = sample_trace("pearl", tokens=20)
    last = next(i for i, s in enumerate(trace.spans) if s.kind == "draft")
    changed = Trace(trace.header, spans=[*trace.spans], commits=trace.commits, footer=trace.footer)
    changed.spans[last] = replace(trace.spans[last], outcome="cancelled")
    drafter = next(w for w in diff(trace, changed).waterfalls if w.role == "drafter")
    span: Span = changed.spans[last]
    changes = {step.what: step.change for step in drafter.steps if step.change}
    assert changes == {"draft": span.start - span.end, "draft, cancelled": span.end - span.start}


def test_a_run_and_itself_do_not_differ():
    trace = sample_trace("speculative", tokens=20)
    found = diff(trace, trace)
    assert found.difference == 0
    assert found.first_difference is None
    assert found.not_comparable == ()
    assert {step.change for waterfall in found.waterfalls for step in waterfall.steps} == {0}
    assert all(a == b for a, b in found.by_token)
    assert all(a == b for _, a, b in found.by_time)
    assert found.by_time[-1][1] == len(trace.commits)


def test_the_first_differing_token_has_both_distributions():
    trace = sample_trace("speculative", tokens=20)
    place = 7
    commit = trace.commits[place]
    token = next(t for t in trace.pieces if t != commit.token)
    other = Trace(
        trace.header,
        spans=trace.spans,
        commits=[replace(c, token=token) if i == place else c for i, c in enumerate(trace.commits)],
        decisions=[
            replace(d, top_p=((token, 0.75), (commit.token, 0.25))) if d.position == commit.position else d
            for d in trace.decisions
        ],
        pieces=trace.pieces,
        footer=trace.footer,
    )
    found = diff(trace, other).first_difference
    assert found is not None
    assert (found.sequence, found.index) == (0, place)
    assert [side.token for side in found.sides] == [commit.token, token]
    assert list(found.sides[1].p) == [
        (token, trace.pieces[token], 0.75),
        (commit.token, trace.pieces[commit.token], 0.25),
    ]
    shorter = Trace(trace.header, spans=trace.spans, commits=trace.commits[:-1], footer=trace.footer)
    ended = diff(trace, shorter).first_difference
    assert ended is not None
    assert (ended.index, ended.sides[1].token) == (len(trace.commits) - 1, None)


def test_the_first_differing_token_has_its_probabilities_where_no_others_are_known():
    trace = sample_trace("speculative", tokens=20)
    bare = [replace(d, top_p=(), top_q=(), p=0.5, q=0.25) for d in trace.decisions]
    place = next(i for i, c in enumerate(trace.commits) if c.origin == "accepted")
    commits = [replace(c, token=-7) if i == place else c for i, c in enumerate(trace.commits)]
    one, other = (
        Trace(
            trace.header,
            spans=trace.spans,
            commits=c,
            decisions=bare,
            pieces=trace.pieces,
            footer=trace.footer,
        )
        for c in (trace.commits, commits)
    )
    found = diff(one, other).first_difference
    assert found is not None
    token = trace.commits[place].token
    text = trace.pieces[token]
    assert (found.sides[0].p, found.sides[0].q) == ([(token, text, 0.5)], [(token, text, 0.25)])


@pytest.mark.parametrize(
    ("first", "second", "temperature", "word"),
    [
        (
            (0.30001, 0.29999),
            (0.29998, 0.30002),
            0,
            "A tie: the target's logits of the two tokens would have",
        ),
        ((0.32, 0.28), (0.29, 0.31), 0, "Perhaps a tie: "),
        ((0.6, 0.1), (0.1, 0.6), 0, "Not a tie: the target's logits"),
        ((0.6, 0.1), (0.6, 0.1), 0, "Not a tie: by its own p, the target of the second run prefers "),
        ((0.30001, 0.29999), (0.29998, 0.30002), 0.7, ""),
    ],
)
def test_two_greedy_texts_part_at_a_tie_or_not(first, second, temperature, word):
    """`first` and `second`: p of the tokens 91 and 92 in each run, which decide for one each."""
    sides = []
    for token, p in ((91, first), (92, second)):
        trace = sample_trace("autoregressive", tokens=12)
        trace.header = replace(trace.header, sampling={"temperature": temperature})
        place = trace.commits[5].position
        trace.commits[5] = replace(trace.commits[5], token=token, text="")
        trace.decisions = [
            replace(d, token=token, top_p=((91, p[0]), (92, p[1]))) if d.position == place else d
            for d in trace.decisions
        ]
        sides.append(trace)
    compared = diff(*sides)
    found = compared.first_difference
    assert found.sentence.startswith(word)
    assert bool(found.sentence) is bool(word)
    assert [side.name for side in found.sides] == ["91", "92"], "ids of tokens without a text"
    shown = compared.to_dict()["first_difference"]
    assert shown["sentence"] == found.sentence
    assert shown["sides"][0]["p"] == [
        {"token": 91, "text": "", "p": first[0]},
        {"token": 92, "text": "", "p": first[1]},
    ]


def test_tokens_by_time_and_times_by_token_agree():
    found = diff(sample_trace("pearl", tokens=30), sample_trace("autoregressive", tokens=30))
    assert len(found.by_token) == 30
    for time, first, second in found.by_time:
        assert first == sum(a <= time for a, _ in found.by_token)
        assert second == sum(b <= time for _, b in found.by_token)


def test_conditions_that_differ_are_named():
    trace = sample_trace("speculative", tokens=12)
    other = Trace(
        replace(trace.header, profile="another", sampling={"temperature": 0}),
        spans=trace.spans,
        commits=trace.commits,
        footer=trace.footer,
    )
    assert diff(trace, other).not_comparable == ("profile", "sampling")
    assert diff(trace, other).to_dict()["comparable"] is False


def test_runs_without_times_or_an_end_are_refused():
    trace = sample_trace("speculative", tokens=12)
    imported = read_traces("tests/traces/imported/vllm.jsonl").traces[0]
    with pytest.raises(UsageError, match=r"has no times: its file holds none; replay it"):
        diff(trace, imported)
    with pytest.raises(UsageError, match="is still in progress"):
        diff(Trace(trace.header), trace)
