"""Draft lengths over time: the viewer's section against the rounds and decisions of real runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import specscope
from specscope.engine.trace.events import Chain
from specscope.engine.types import Limits, Sampling
from specscope.traces.view.document import view_model
from specscope.traces.view.lengths import lengths
from specscope.traces.waiting import decoding_clock
from tests.traces.samples import sample_trace

PROMPTS = ("Tell me a story.", "Once upon a time")


@pytest.fixture(scope="module")
def cluster():
    with specscope.open("bundled", runtime="virtual", profile="pearl-4xA100") as opened:
        yield opened


def unsure(cluster, method: str, schedule: str = "threshold", **more):
    config = {"gamma": 4, "schedule": schedule}
    return cluster.run(method, PROMPTS[0], config=config, sampling=Sampling(0.7), limits=Limits(50), **more)


@pytest.fixture(scope="module", params=["speculative", "pearl"])
def trace(request, cluster):
    return unsure(cluster, request.param)


def test_each_drafted_token_belongs_to_one_draft(trace):
    rows = lengths(trace)
    assert [(r["step"], r["asked"], r["drafted"], r["stop"]) for r in rows] == [
        (c.step, c.asked, c.drafted, c.stop) for c in trace.chains
    ]
    assert sum(r["accepted"] for r in rows) == sum(r.accepted for r in trace.rounds)
    assert all(r["accepted"] + r["lost"] == r["drafted"] for r in rows), "the run has ended"
    assert sum(r["drafted"] for r in rows) == sum(d.draft_span >= 0 for d in trace.decisions)
    assert any(r["accepted"] and r["lost"] for r in rows)
    assert {"full", "uncertain"} <= {r["stop"] for r in rows}


def test_the_time_is_the_end_of_the_last_forward(trace):
    clock, spans = decoding_clock(trace), {s.id: s for s in trace.spans}
    for row in lengths(trace):
        own = [s for s in trace.spans if s.kind == "draft" and row["first"] <= s.id <= row["last"]]
        assert len(own) == row["drafted"]
        if own:
            assert row["t"] == clock(spans[row["last"]].end)


def test_a_run_in_progress_has_tokens_that_are_not_decided(trace):
    first = trace.chains[0]
    steps = {r.step for r in trace.rounds[:1]}
    cut = replace(
        trace,
        chains=trace.chains[:2],
        rounds=[r for r in trace.rounds if r.step in steps],
        decisions=[d for d in trace.decisions if d.step in steps],
        footer=None,
    )
    rows = lengths(cut)
    assert rows[0]["asked"] == first.asked
    assert any(r["accepted"] + r["lost"] < r["drafted"] for r in rows)


def test_a_draft_that_never_began_has_the_time_of_its_round():
    trace = sample_trace("speculative", tokens=4)
    ended = trace.rounds[-1]
    trace.add(Chain(ended.step, 0, 30, 0, 0, "off", -1))
    trace.add(Chain(ended.step + 1, 0, 31, 0, 0, "off", -1))  # its round is not over
    (row,) = lengths(trace)
    assert (row["t"], row["first"], row["accepted"], row["lost"]) == (
        decoding_clock(trace)(ended.time),
        -1,
        0,
        0,
    )


def test_sequences_under_load_keep_their_drafts_apart(cluster):
    trace = cluster.run(
        "speculative",
        *PROMPTS,
        config={"gamma": 4, "schedule": "average"},
        limits=Limits(30),
        load=specscope.Load((0.0, 0.0), batch=2),
    )
    rows, accepted = lengths(trace), Counter[int]()
    for r in rows:
        accepted[r["sequence"]] += r["accepted"]
        assert r["accepted"] + r["lost"] == r["drafted"]
    for sequence in (0, 1):
        assert accepted[sequence] == sum(r.accepted for r in trace.rounds if r.sequence == sequence)
    assert any(s.sequence == -1 for s in trace.spans), "the sequences share forwards"


def test_the_document_has_the_section_and_no_text_of_a_prompt(trace):
    (run,) = view_model([trace], redact_prompt=True)["runs"]
    assert run["lengths"] == lengths(trace)
