"""The difference of two runs: waterfalls that sum to it, the first differing token, conditions."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings

from specscope.engine.errors import UsageError
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.waiting import decode_window, timeline, work
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.diff import Candidate, FirstDifference, Side, diff
from tests.traces.samples import KINDS, sample_trace, with_header
from tests.traces.strategies import traces


@pytest.mark.parametrize(("first", "second"), product(KINDS, KINDS))
def test_every_waterfall_sums_exactly_to_the_difference(first: str, second: str):
    found = diff(sample_trace(first, tokens=30), sample_trace(second, tokens=24))
    assert found.difference == found.decode[1] - found.decode[0]
    assert found.waterfalls[0].role == "target"
    for waterfall in found.waterfalls:
        assert sum(step.change for step in waterfall.steps) == found.difference
        assert all(step.label.startswith("waits for") == step.wait for step in waterfall.steps)
        assert sum(step.first for step in waterfall.steps) == found.decode[0]
        assert sum(step.second for step in waterfall.steps) == found.decode[1]


def test_tokens_by_time_and_times_by_token_agree():
    found = diff(sample_trace("pearl", tokens=30), sample_trace("autoregressive", tokens=30))
    assert len(found.by_token) == 30
    for time, *counts in found.by_time:
        assert counts == [sum(pair[i] <= time for pair in found.by_token) for i in (0, 1)]


@settings(max_examples=25, deadline=None)
@given(traces())
def test_work_and_waits_fill_the_decode_window_of_every_device(trace: Trace):
    start, end = decode_window(trace)
    waited = dict.fromkeys((d.name for d in trace.header.devices), 0)
    for wait in timeline(trace).waits:
        waited[wait.device] += wait.end - wait.start
    for device, kinds in work(trace).items():
        assert sum(kinds.values()) + waited[device] == end - start


def test_cancelled_work_is_a_kind_of_its_own():
    trace = sample_trace("pearl", tokens=20)
    last = next(s for s in trace.spans if s.kind == "draft")
    spans = [replace(s, outcome="cancelled") if s == last else s for s in trace.spans]
    drafter = next(w for w in diff(trace, replace(trace, spans=spans)).waterfalls if w.role == "drafter")
    changes = {step.what: step.change for step in drafter.steps if step.change}
    assert changes == {"draft": last.start - last.end, "draft, cancelled": last.end - last.start}


def test_a_run_and_itself_do_not_differ():
    trace = sample_trace("speculative", tokens=20)
    found = diff(trace, trace)
    assert (found.difference, found.first_difference, found.not_comparable) == (0, None, ())
    assert {step.change for waterfall in found.waterfalls for step in waterfall.steps} == {0}
    assert all(a == b for a, b in found.by_token)
    assert all(a == b for _, a, b in found.by_time)
    assert found.by_time[-1][1] == len(trace.commits)


def replaced(trace: Trace, place: int, token: int) -> Trace:
    """Return a run with another token at a place."""
    commits = [replace(c, token=token) if i == place else c for i, c in enumerate(trace.commits)]
    return replace(trace, commits=commits)


def test_the_first_differing_token_has_both_distributions():
    trace, place = sample_trace("speculative", tokens=20), 7
    commit = trace.commits[place]
    token = next(t for t in trace.pieces if t != commit.token)
    top = ((token, 0.75), (commit.token, 0.25))
    decisions = [replace(d, top_p=top) if d.position == commit.position else d for d in trace.decisions]
    found = diff(trace, replace(replaced(trace, place, token), decisions=decisions)).first_difference
    assert (found.sequence, found.index) == (0, place)
    assert [side.token for side in found.sides] == [commit.token, token]
    assert list(found.sides[1].p) == [(t, trace.pieces[t], p) for t, p in top]
    ended = diff(trace, replace(trace, commits=trace.commits[:-1])).first_difference
    assert (ended.index, ended.sides[1].token) == (len(trace.commits) - 1, None)


def test_the_first_differing_token_has_its_probabilities_where_no_others_are_known():
    trace = sample_trace("speculative", tokens=20)
    bare = [replace(d, top_p=(), top_q=(), p=0.5, q=0.25) for d in trace.decisions]
    trace = replace(trace, decisions=bare)
    place = next(i for i, c in enumerate(trace.commits) if c.origin == "accepted")
    side = diff(trace, replaced(trace, place, -7)).first_difference.sides[0]
    token = trace.commits[place].token
    assert (side.p, side.q) == ([(token, trace.pieces[token], 0.5)], [(token, trace.pieces[token], 0.25)])


NEAR, OTHER = (0.30001, 0.29999), (0.29998, 0.30002)


@pytest.mark.parametrize(
    ("first", "second", "temperature", "word"),
    [
        (NEAR, OTHER, 0, "A tie: the target's logits of the two tokens would have"),
        ((0.32, 0.28), (0.29, 0.31), 0, "Perhaps a tie: "),
        ((0.6, 0.1), (0.1, 0.6), 0, "Not a tie: the target's logits"),
        ((0.6, 0.1), (0.6, 0.1), 0, "Not a tie: by its own p, the target of the second run prefers "),
        (NEAR, OTHER, 0.7, ""),
    ],
)
def test_two_greedy_texts_part_at_a_tie_or_not(first, second, temperature, word):
    """`first` and `second`: p of the tokens 91 and 92 in each run, which decide for one each."""
    sides = []
    for token, p in ((91, first), (92, second)):
        trace = with_header(sample_trace("autoregressive", tokens=12), sampling={"temperature": temperature})
        place, top = trace.commits[5].position, ((91, p[0]), (92, p[1]))
        trace.commits[5] = replace(trace.commits[5], token=token, text="")
        trace.decisions = [
            replace(d, token=token, top_p=top) if d.position == place else d for d in trace.decisions
        ]
        sides.append(trace)
    compared = diff(*sides)
    found, shown = compared.first_difference, compared.to_dict()["first_difference"]
    assert found.sentence.startswith(word)
    assert bool(found.sentence) is bool(word)
    assert [side.name for side in found.sides] == ["91", "92"], "ids of tokens without a text"
    assert shown["sentence"] == found.sentence
    known = [{"token": token, "text": "", "p": p} for token, p in zip((91, 92), first, strict=True)]
    assert shown["sides"][0]["p"] == known


def test_a_token_that_is_not_among_the_best_ones_is_not_the_targets_best():
    """The recorder knows the p of the decided token beside the best two."""
    trace = with_header(sample_trace("autoregressive", tokens=12), sampling={"temperature": 0})
    place = trace.commits[5].position
    rows = [
        replace(d, token=91, p=0.1, top_p=((92, 0.5), (93, 0.4))) if d.position == place else d
        for d in trace.decisions
    ]
    wrong = replace(replaced(trace, 5, 91), decisions=rows)
    found = diff(wrong, replaced(trace, 5, 92)).first_difference
    assert found.sentence == "Not a tie: by its own p, the target of the first run prefers 92."
    assert [one.token for one in found.sides[0].p] == [92, 93, 91]


@pytest.mark.parametrize(
    ("p", "word"),
    [
        # another token has at most 1 - 0.9: the logits are log 9 apart at least
        ([(91, 0.9)], "Not a tie: the target's logits of the two tokens would have to move by at least 4.4"),
        (
            [(91, 0.5), (93, 0.4)],
            "Not a tie: the target's logits of the two tokens would have to move by at least 3.2",
        ),
        ([(91, 0.5)], "Whether it is a tie is unknown: neither run has"),
        ([], "Whether it is a tie is unknown: neither run has"),
    ],
)
def test_where_a_token_has_no_p_the_rest_bounds_it(p, word):
    other = [(92 if token == 91 else token, share) for token, share in p]
    sides = [
        Side(token, "", "plain", [Candidate(i, "", x) for i, x in rows], ())
        for token, rows in ((91, p), (92, other))
    ]
    assert FirstDifference(0, 1, tuple(sides), greedy=True).sentence.startswith(word)
    assert FirstDifference(0, 1, (sides[0], Side(None, "", "", (), ())), greedy=True).sentence == ""


def test_conditions_that_differ_are_named_and_runs_without_times_or_an_end_refused():
    trace = sample_trace("speculative", tokens=12)
    found = diff(trace, with_header(trace, profile="another", sampling={"temperature": 0}))
    assert found.not_comparable == ("profile", "sampling")
    assert found.to_dict()["comparable"] is False
    imported = read_traces(Path(__file__).parent / "imported" / "vllm.jsonl").traces[0]
    with pytest.raises(UsageError, match=r"has no times: its file holds none; replay it"):
        diff(trace, imported)
    with pytest.raises(UsageError, match="is still in progress"):
        diff(Trace(trace.header), trace)
