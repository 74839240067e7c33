"""EMS-SD's example (Table 1, Figure 2: two samples, two steps) with every packing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from specscope.engine.layout import Layout, Packing, Separate
from specscope.engine.methods import METHODS
from specscope.engine.methods.ems import Batch
from specscope.engine.trace.events import Commit, Header, Round
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Draft, DraftToken
from specscope.traces.metrics import measure
from specscope.traces.padding import batches, shortfalls
from specscope.traces.view.caches import packings
from tests.engine.worker.harness import scripted_cluster

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


@pytest.mark.parametrize("packing", VARIANTS, ids=str)
def test_the_example_has_the_tokens_padding_cells_and_ratios_of_the_table(packing, monkeypatch):
    """A third step shows the KV padding of the second one."""
    layout = Layout(Separate(drafters=0), batch=2, packing=packing)
    monkeypatch.setitem(METHODS, "ems", replace(METHODS["ems"], decode=decode, layout=lambda _: layout))
    with scripted_cluster(successor, successor) as cluster:
        trace = cluster.run("ems", *PROMPTS, limits=cluster.limits(40))
    by_step = [[r for r in trace.rounds if r.step == step] for step in (1, 2)]
    assert [tuple(r.drafted for r in rounds) for rounds in by_step] == PREDICTED
    assert [tuple(r.emitted for r in rounds) for rounds in by_step] == ACCEPTED
    assert [trace.token_ids(i) for i in (0, 1)] == [[*range(12, 19)], [*range(502, 510)]]

    steps = {forward["step"]: forward["shares"] for forward in packings(trace)}
    inputs = [tuple(share["padded_rows"] - share["rows"] for share in steps[step]) for step in (1, 2)]
    assert inputs == ([(0, 0), (0, 0)] if packing.unpad_inputs else [(0, 3), (3, 0)])
    kv_padding = [[s["padded_cached"] - s["cached"] for s in steps[step]] for step in (1, 2, 3)]
    after = [tuple(b - a for a, b in zip(before, now, strict=True)) for before, now in pairwise(kv_padding)]
    assert after == ([(0, 0), (0, 0)] if packing.unpad_kv else [(0, 3), (4, 0)])
    assert shortfalls(trace) == {1: {0: 0, 1: 3}, 2: {0: 4, 1: 0}, 3: {}}  # no padding after the last step

    rows = [(6, 3), (3, 6), (1, 1)] if packing.unpad_inputs else [(6, 6), (6, 6), (1, 1)]
    cached = [(1, 1), (5, 2), (7, 8)] if packing.unpad_kv else [(1, 1), (5, 5), (11, 11)]
    cells = [sum(r * (c + r) for r, c in zip(*both, strict=True)) for both in zip(rows, cached, strict=True)]
    spans = [s for s in trace.spans if s.kind == "verify"]
    expected = list(zip(map(sum, rows), map(sum, cached), cells, [-1] * 3, strict=True))
    assert [(s.rows, s.context, s.cells, s.sequence) for s in spans] == expected

    m = measure(trace)
    assert m.padding_ratio == pytest.approx((4 / (4 + 2 + 1) + 3 / (1 + 6 + 1)) / 2)
    assert m.padding_share == pytest.approx((3 + 4) / (3 + 4 + 7 + 8))
    assert m.acceptance_length == pytest.approx((4 + 1 + 2 + 6 + 1 + 1) / 6)
    assert m.least_acceptance_length == pytest.approx((4 + 2 + 1) / 3)


def test_the_least_acceptance_length_is_a_batchs_and_the_mean_over_the_batches():
    """Samples 0 and 1, then 2 and 3: the slowest have 2 and 4 tokens per verification."""
    trace = _trace([[2, 6], [2, 6], [], []])
    later = _trace([[], [], [5, 4], [7, 4]])
    trace.header = replace(trace.header, prompts=("",) * 4, prompt_ids=((1,),) * 4)
    for r in later.rounds:
        trace.add(replace(r, sequence=r.sequence + 2))
    assert batches(trace) == [[0, 1], [2, 3]]
    assert measure(trace).least_acceptance_length == pytest.approx((2 + 4) / 2)


def _trace(lengths: list[list[int]]):

    n = max(len(counts) for counts in lengths)
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
