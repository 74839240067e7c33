"""Runs with a host between all forwards, and the comparison of their rows with others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import specscope
from specscope.engine.trace.trace import Trace
from specscope.engine.worker.rounds import Rounds
from specscope.traces.facts.checks import check_rows


@contextmanager
def counting() -> Iterator[list[int]]:
    """Count this process's rounds of the device: those that jobs asked for, all, those ahead."""
    counts, run, launch = [0, 0, 0], Rounds.run, Rounds._launch

    def running(self, job):
        found = run(self, job)
        counts[0] += found is not None
        return found

    def launching(self, *args):
        counts[1] += 1
        counts[2] += args[-1] is None
        return launch(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rounds, "run", running)
        patch.setattr(Rounds, "_launch", launching)
        yield counts


def on_the_host(cluster: specscope.Cluster, *args: Any, **more: Any) -> Trace:
    """Run on threads of this process, without rounds of the device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rounds, "run", lambda self, job: None)
        return cluster.run(*args, **more)


def rows(trace):
    """Return the rows of a trace without times, cells and probabilities, and its done spans."""
    done = sorted((span for span in trace.spans if span.outcome == "done"), key=lambda span: span.id)
    number = {-1: -1} | {span.id: i for i, span in enumerate(done)}
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


def check(trace: Trace, expected: Trace, tolerance: float = 1e-5) -> None:
    """Check that two traces are equal but for times, cells and rounding, and for cancelled work."""
    assert trace.status == "done"
    check_rows(trace)
    assert [trace.text, trace.token_ids()] == [expected.text, expected.token_ids()]
    names = ("spans", "rounds", "commits", "chains", "decisions")
    for name, found, wanted in zip(names, rows(trace), rows(expected), strict=True):
        others = [pair for pair in zip(found, wanted, strict=True) if pair[0] != pair[1]]
        assert not others, f"{len(others)} of {len(found)} {name} differ, first {others[0]}"
    for field in ("p", "q", "u"):
        values = [np.array([getattr(d, field) for d in t.decisions], float) for t in (trace, expected)]
        np.testing.assert_allclose(*values, atol=tolerance, rtol=10 * tolerance)
    for field in ("top_p", "top_q"):
        values = [[p for d in t.decisions for _, p in getattr(d, field)] for t in (trace, expected)]
        np.testing.assert_allclose(*values, atol=tolerance, rtol=10 * tolerance)
