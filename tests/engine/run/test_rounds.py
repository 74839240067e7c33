"""Rounds of the device have the texts and rows of rounds with a host between their forwards."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import specscope
from specscope.engine.methods import METHODS
from specscope.engine.trace.events import Commit
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker import rounds
from specscope.engine.worker.rounds import Rounds
from tests.engine.methods.pairs import make_pair
from tests.engine.model.tiny import CONTEXT

PROMPTS = [(5, 9, 33, 7, 60, 2), (1,), (8, 8, 9, 41)]
WARM = Sampling(0.9, top_k=50, top_p=0.95, seed=3)
SAMPLINGS = [Sampling(), Sampling(1.0, seed=1), WARM, Sampling(1.4, top_k=5, seed=9)]
WAYS = {
    "speculative": [{"gamma": 1}, {"gamma": 4}, {"gamma": 3, "drafts": "greedy"}],
    "autoregressive": [{}],
    "assisted": [{"schedule": "heuristic", "start": 3}, {"schedule": "constant", "confidence": 0.2}],
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of tiny models on one device, where they take turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda _: {0})
        pair, _ = make_pair(tmp_path_factory.mktemp("pair"), "llama", "other")
        with specscope.open(pair, device="cpu", runtime="local-thread", forward="static") as opened:
            yield opened


@pytest.fixture
def ahead(monkeypatch):
    """Let rounds begin before they are asked for, as on a GPU."""
    monkeypatch.setattr(rounds, "AHEAD", {"cpu"})


@pytest.fixture
def counted(monkeypatch):
    """Count the rounds of the device: [asked for, in all]."""
    counts, run, launch = [0, 0], Rounds.run, Rounds._launch

    def counting(self, job):
        found = run(self, job)
        counts[0] += found is not None
        return found

    def launching(self, *args):
        counts[1] += 1
        return launch(self, *args)

    monkeypatch.setattr(Rounds, "run", counting)
    monkeypatch.setattr(Rounds, "_launch", launching)
    return counts


def on_the_host(cluster, *args, **more):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rounds, "run", lambda self, job: None)
        return cluster.run(*args, **more)


def rows(trace):
    """Return the rows of a trace without times, cells and probabilities, and its done spans."""
    done = [span for span in trace.spans if span.outcome == "done"]
    number = {-1: -1} | {id_: i for i, id_ in enumerate(sorted(span.id for span in done))}
    timeless, inexact = (
        {"time": 0, "start": 0, "end": 0, "cells": 0},
        {"p": 0, "q": 0, "top_p": (), "top_q": ()},
    )

    def strip(row, **more):
        links = ("verify_span", "span", "draft_span", "target_span", "id")
        spans = {name: number[getattr(row, name)] for name in links if hasattr(row, name)}
        given = timeless | spans | more
        return replace(row, **{k: v for k, v in given.items() if hasattr(row, k)})

    tables = (done, trace.rounds, trace.commits, trace.chains)
    return [
        *([strip(row) for row in table] for table in tables),
        [strip(d, **inexact) for d in trace.decisions],
    ]


def check(trace, expected):
    assert trace.status == "done"
    assert [trace.text, trace.token_ids()] == [expected.text, expected.token_ids()]
    for found, wanted in zip(rows(trace), rows(expected), strict=True):
        assert found == wanted
    for field in ("p", "q", "u"):
        values = [np.array([getattr(d, field) for d in t.decisions], float) for t in (trace, expected)]
        np.testing.assert_allclose(*values, atol=1e-5, rtol=1e-4)
    for field in ("top_p", "top_q"):
        values = [[p for d in t.decisions for _, p in getattr(d, field)] for t in (trace, expected)]
        np.testing.assert_allclose(*values, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("begins", ["as asked", "ahead"])
@pytest.mark.parametrize("method", WAYS)
def test_rounds_of_the_device_write_the_host_s_rows(method, begins, sampling, cluster, counted, monkeypatch):
    monkeypatch.setattr(rounds, "AHEAD", {"cpu"} if begins == "ahead" else set())
    for config in WAYS[method]:
        for prompt in PROMPTS:
            how = {"config": config, "sampling": sampling, "limits": Limits(30)}
            check(cluster.run(method, prompt, **how), on_the_host(cluster, method, prompt, **how))
    if method == "speculative" or begins == "ahead":
        assert counted[0] > 8
    assert (counted[1] > counted[0]) <= (begins == "ahead")


def test_every_length_of_an_output_has_the_host_s_rows(cluster, ahead):
    for tokens in range(1, 12):
        for method, config in (("speculative", {"gamma": 3}), ("autoregressive", {})):
            how = {"config": config, "sampling": WARM, "limits": Limits(tokens)}
            check(cluster.run(method, PROMPTS[0], **how), on_the_host(cluster, method, PROMPTS[0], **how))


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=str)
def test_a_round_that_begins_after_the_end_is_cancelled(sampling, cluster, ahead):
    """An EOS at every place of the text: within a draft, and as the target's own token."""
    text = cluster.run("autoregressive", PROMPTS[0], sampling=sampling, limits=Limits(24)).token_ids()
    cancelled = 0
    for eos in dict.fromkeys(text):
        for method, config in (("speculative", {"gamma": 3}), ("autoregressive", {})):
            how = {"config": config, "sampling": sampling, "limits": Limits(40, eos=(eos,))}
            trace, expected = (
                cluster.run(method, PROMPTS[0], **how),
                on_the_host(cluster, method, PROMPTS[0], **how),
            )
            check(trace, expected)
            late = [span for span in trace.spans if span.outcome == "cancelled"]
            assert len(late) in (0, 5 if method == "speculative" else 2)
            roles = [(span.kind, span.model) for span in late]
            drafts = [("draft", "drafter")] * 3 if method == "speculative" else []
            assert roles in ([], [*drafts, ("verify", "target"), ("sample", "target")])
            cancelled += bool(late)
            check_intervals(trace)
    assert cancelled > 5


def check_intervals(trace):
    times = sorted((span.start, span.end) for span in trace.spans)
    assert all(start <= end for start, end in times)
    assert all(a[1] <= b[0] for a, b in pairwise(times)), "one worker does one thing at a time"


def test_the_context_may_be_full(cluster, ahead):
    prompt = PROMPTS[0] * 5
    for tokens in (CONTEXT - len(prompt) - 1, CONTEXT - len(prompt)):
        for method, config in (("speculative", {"gamma": 5}), ("autoregressive", {})):
            how = {"config": config, "sampling": WARM, "limits": Limits(tokens)}
            check(cluster.run(method, prompt, **how), on_the_host(cluster, method, prompt, **how))


def test_a_draft_that_is_verified_otherwise_is_verified_as_before(cluster, ahead, counted):
    """Also a draft of no tokens, and further drafts, which then wait for their verification."""

    async def decode(run, cfg):
        while not run.done:
            draft = await run.drafter.propose(run.x, 3)
            if run.step % 3 == 0:
                draft = draft[: run.step % 2]
            run.commit(await run.target.verify(run.x, draft))

    def as_method(trace_of):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(METHODS, "speculative", replace(METHODS["speculative"], decode=decode))
            return trace_of(cluster, "speculative", PROMPTS[2], sampling=WARM, limits=Limits(30))

    trace = as_method(lambda cluster, *args, **more: cluster.run(*args, **more))
    assert trace.status == "done"
    assert trace.text == as_method(on_the_host).text
    assert counted[0] == 3, "it is not tried again"
    assert {span.kind for span in trace.spans if span.outcome == "cancelled"} >= {"verify", "sample"}


def test_a_run_can_be_cancelled_and_another_follows(cluster, ahead):
    how = {"config": {"gamma": 3}, "sampling": WARM, "limits": Limits(30)}
    expected = cluster.run("speculative", PROMPTS[2], **how)
    for stop_at in (3, 9, 20):
        cancel, seen = threading.Event(), []

        def listen(event, cancel=cancel, seen=seen, stop_at=stop_at):
            seen.append(event)
            if sum(isinstance(one, Commit) for one in seen) >= stop_at:
                cancel.set()

        assert (
            cluster.run("speculative", PROMPTS[2], listener=listen, cancel=cancel, **how).status
            == "cancelled"
        )
        check(cluster.run("speculative", PROMPTS[2], **how), expected)


def test_methods_follow_each_other_on_one_cluster(cluster, ahead):
    """Trees leave rows in the caches; a parallel method has a drafter of its own."""
    order = [
        "tree",
        "speculative",
        "autoregressive",
        "pearl",
        "speculative",
        "hybrid",
        "ouroboros",
        "assisted",
    ]
    for method in order:
        for sampling in SAMPLINGS[:2]:
            how = {"sampling": sampling, "limits": Limits(14)}
            trace, expected = (
                cluster.run(method, PROMPTS[2], **how),
                on_the_host(cluster, method, PROMPTS[2], **how),
            )
            assert (trace.status, trace.text) == ("done", expected.text)
