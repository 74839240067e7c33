"""EMS-SD's example (Table 1, Figure 2: two samples, two steps) with every packing; appendix B."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from engine.layout import Layout, Packing, Separate
from engine.methods import METHODS
from engine.run.batch import Batch
from engine.types import Draft, DraftToken
from tests.engine.workers.harness import scripted_cluster
from traces.metrics import measure
from traces.padding import shortfalls
from traces.view.packings import packings

PREDICTED = [(5, 2), (2, 5)]
"""Per step: the draft tokens of sample 0 and of sample 1."""
ACCEPTED = [(4, 1), (2, 6)]
"""Per step: the emitted tokens, the target's own included."""
PROMPTS = ([10, 11], [500, 501])
VARIANTS = [Packing(inputs, kv) for inputs in (False, True) for kv in (False, True)]


def successor(path: np.ndarray) -> int:
    return int(path[-1]) + 1


def draft(x, length: int, right: int) -> Draft:
    """Return a chain whose first `right` tokens are the target's."""
    ids = [int(x.tokens[-1]) + 1 + i if i < right else 7 for i in range(length)]
    return Draft(tuple(DraftToken(token, i - 1) for i, token in enumerate(ids)))


async def decode(run, cfg) -> None:
    batch = Batch(run, 2)
    for lengths, accepted in zip([*PREDICTED, (0, 0)], [*ACCEPTED, (1, 1)], strict=True):
        drafts = [draft(x, n, min(a - 1, n)) for x, n, a in zip(batch.xs, lengths, accepted, strict=True)]
        batch.commit(await batch.verify(drafts))


@pytest.fixture(params=VARIANTS, ids=str)
def example(request, monkeypatch):
    """Return the example's trace; a third step shows the KV padding of the second one."""
    method = replace(
        METHODS["ems"],
        decode=decode,
        layout=lambda _: Layout(Separate(drafters=0), batch=2, packing=request.param),
    )
    monkeypatch.setitem(METHODS, "ems", method)
    with scripted_cluster(successor, successor) as cluster:
        return request.param, cluster.run("ems", *PROMPTS, limits=cluster.limits(40))


def test_the_example_accepts_the_tokens_of_the_table(example):
    _, trace = example
    by_step = [[r for r in trace.rounds if r.step == step] for step in (1, 2)]
    assert [tuple(r.drafted for r in rounds) for rounds in by_step] == PREDICTED
    assert [tuple(r.emitted for r in rounds) for rounds in by_step] == ACCEPTED
    assert trace.token_ids(0) == list(range(12, 12 + 4 + 2 + 1))
    assert trace.token_ids(1) == list(range(502, 502 + 1 + 6 + 1))


def test_the_example_has_the_padding_of_the_table(example):
    packing, trace = example
    steps = {forward["step"]: forward["shares"] for forward in packings(trace)}
    inputs = [tuple(share["padded_rows"] - share["rows"] for share in steps[step]) for step in (1, 2)]
    assert inputs == ([(0, 0), (0, 0)] if packing.unpad_inputs else [(0, 3), (3, 0)])
    kv_padding = [[s["padded_cached"] - s["cached"] for s in steps[step]] for step in (1, 2, 3)]
    after = [tuple(b - a for a, b in zip(before, now, strict=True)) for before, now in pairwise(kv_padding)]
    assert after == ([(0, 0), (0, 0)] if packing.unpad_kv else [(0, 3), (4, 0)])
    padding = shortfalls(trace)
    assert [padding[1], padding[2]] == [(0, 3), (4, 0)]


def test_rows_cached_rows_and_cells_of_each_forward(example):
    packing, trace = example
    rows = [(6, 3), (3, 6), (1, 1)] if packing.unpad_inputs else [(6, 6), (6, 6), (1, 1)]
    cached = [(1, 1), (5, 2), (7, 8)] if packing.unpad_kv else [(1, 1), (5, 5), (11, 11)]
    spans = [s for s in trace.spans if s.kind == "verify"]
    assert [s.rows for s in spans] == [sum(n) for n in rows]
    assert [s.context for s in spans] == [sum(n) for n in cached]
    cells = [sum(r * (c + r) for r, c in zip(*both, strict=True)) for both in zip(rows, cached, strict=True)]
    assert [s.cells for s in spans] == cells
    assert {s.sequence for s in spans} == {-1}


def test_the_examples_ratios(example):
    _, trace = example
    trace.rounds[:] = [r for r in trace.rounds if r.step < 3]
    trace.commits[:] = [c for c in trace.commits if c.step < 3]
    m = measure(trace)
    assert m.padding_ratio == pytest.approx((3 + 4) / (4 + 1 + 2 + 6))
    assert m.padding_share == pytest.approx((3 + 4) / (2 * 4 + 2 * 6))
    assert m.acceptance_length == pytest.approx((4 + 1 + 2 + 6) / 4)
    assert m.least_acceptance_length == pytest.approx((4 + 2) / 2)


def test_appendix_b_wastes_30_percent_at_accuracy_0_9():
    """Accepted lengths are geometric, at most 8; a large batch nearly always has one of 8."""
    draws = random.Random(1)

    def accepted() -> int:
        return next((n for n in range(1, 8) if draws.random() >= 0.9), 8)

    trace = _trace([[accepted() for _ in range(24)] for _ in range(600)])
    assert measure(trace).padding_share == pytest.approx(0.29, abs=0.005)
    expected = (1 - 0.9**8) / 0.1
    assert measure(trace).padding_ratio == pytest.approx((8 - expected) / expected, abs=0.01)
    assert measure(trace).acceptance_length == pytest.approx(expected, abs=0.05)


def _trace(lengths: list[list[int]]):
    from engine.trace.events import Commit, Header, Round
    from engine.trace.trace import Trace

    n = len(lengths[0])
    ids = ((1,),) * n
    trace = Trace(
        Header("run", "", "ems", "EMS-SD", {}, ("",) * n, ids, {}, {}, "virtual", "flat", (), "", "")
    )
    for step, counts in enumerate(lengths, 1):
        for sequence, count in enumerate(counts):
            trace.add(Round(step, sequence, "verify", 7, count - 1, count, step, 0))
            for _ in range(count):
                trace.add(Commit(step, sequence, 1, 7, "accepted", "", step))
    return trace
