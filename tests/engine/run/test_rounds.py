"""Rounds of the device have the texts and rows of rounds with a host between their forwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker import rounds
from specscope.engine.worker.rounds import Rounds

PROMPT = "Tell me a story about a fox who lost its hat."
PROMPTS = [PROMPT, "Hello", "Once upon a time there was a"]
WARM = Sampling(0.9, top_k=50, top_p=0.95, seed=3)
SAMPLINGS = [Sampling(), Sampling(1.0, seed=1), WARM, Sampling(1.4, top_k=5, seed=9)]
WAYS = {
    "speculative": [{"gamma": 1}, {"gamma": 4}, {"gamma": 3, "drafts": "greedy"}],
    "autoregressive": [{}],
    "assisted": [{"schedule": "heuristic", "start": 3}, {"schedule": "constant", "confidence": 0.2}],
}


@pytest.fixture(scope="module")
def cluster():
    """A cluster on one device, whose models take turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda _: {0})
        pair = Pair.find("bundled")
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


def rows(trace, *, spans=True):
    """Return the rows of a trace without times, cells and probabilities; cancelled spans apart."""
    timeless = {"time": 0, "start": 0, "end": 0, "cells": 0}
    inexact = {"p": 0, "q": 0, "top_p": (), "top_q": ()}
    numbers = {} if spans else {"verify_span": 0, "span": 0, "draft_span": 0}

    def strip(row, **more):
        given = timeless | numbers | more
        return replace(row, **{k: v for k, v in given.items() if hasattr(row, k)})

    done = [strip(span) for span in trace.spans if span.outcome == "done"] if spans else []
    tables = [[strip(row) for row in table] for table in (trace.rounds, trace.commits, trace.chains)]
    return [done, *tables, [strip(d, **inexact) for d in trace.decisions]]


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
        assert counted[0] > 20
    assert (counted[1] > counted[0]) <= (begins == "ahead")
