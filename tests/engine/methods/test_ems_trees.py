"""EMS-SD with a token tree per sequence (limitation 4): trees and texts equal `tree`'s."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.placement import Placement
from specscope.engine.layout import Layout
from specscope.engine.runtimes.virtual import VirtualLoop
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.metrics import measure
from specscope.traces.view.tokens import trees
from tests.engine.methods.pairs import make_pair
from tests.engine.methods.test_ems import BASES, NARROW, PROMPTS, VARIANTS, own, story, verifies
from tests.engine.methods.test_tree import PerRow, Ranked, second_is_right
from tests.engine.worker.harness import Racks, TestCluster


def ranked_cluster() -> TestCluster:
    """The target's token, 100 + the position, is always the drafter's second choice."""
    models = {
        "target": Ranked("target", lambda path: [100 + len(path)]),
        "drafter": Ranked("drafter", second_is_right),
    }
    place = Placement("virtual", Racks(models, PerRow()), Layout(), VirtualLoop, "flat", 4)
    return TestCluster(Pair.find("bundled"), place)


def test_a_level_of_all_trees_is_one_forward_and_all_trees_are_verified_in_one():
    """Levels have 2, 4 and 4 nodes after 1, 2 and 4 rows, as with `tree`; fewer near the end."""
    config = {"base": "speculative", "width": 4, "gamma": 3, "batch": 2}
    with ranked_cluster() as cluster:
        prompts = [1, 2, 3], [1, 2, 3, 4, 5]
        trace = cluster.run("ems", *prompts, config=config, limits=cluster.limits(8))
    assert [(r.step, r.sequence, r.drafted, r.accepted, r.emitted) for r in trace.rounds] == [
        (step, sequence, *row)
        for step, row in ((1, (10, 2, 3)), (2, (10, 2, 3)), (3, (6, 2, 2)))
        for sequence in (0, 1)
    ]
    drafts = [(s.rows, s.context) for s in trace.spans if s.kind == "draft"]
    cached = [(2 + 4, 3 + 5, 5 + 7), (5 + 7, 6 + 8, 8 + 10), (8 + 10, 9 + 11)]
    rows = (2 * 1, 2 * 2, 2 * 4)
    assert drafts == [(n, c) for round_ in cached for n, c in zip(rows, round_, strict=False)]
    assert [(s.rows, s.context) for s in verifies(trace)] == [(22, 6), (22, 12), (14, 18)]
    shown = [(t["step"], t["sequence"], t["drafted"], max(t["nodes"]["level"])) for t in trees(trace)]
    assert shown == [(r.step, r.sequence, r.drafted, 2 if r.drafted == 10 else 1) for r in trace.rounds]


def levels(trace: Trace) -> dict[tuple[int, int], list[int]]:
    """Return the nodes of each level, by (step, sequence)."""
    counters: dict[tuple[int, int], Counter[int]] = {}
    for d in trace.decisions:
        if d.node >= 0:
            counters.setdefault((d.step, d.sequence), Counter())[d.position] += 1
    return {key: [count for _, count in sorted(counts.items())] for key, counts in counters.items()}


@pytest.mark.parametrize("base", BASES)
def test_both_models_compute_exactly_the_cells_of_the_packing(threads, base):
    settings, sampling = BASES[base][2], NARROW if base == "trees" else Sampling()
    cells = dict[str, int]()
    for variant, packing in VARIANTS.items():
        config = {**settings, **packing}
        trace = threads.run("ems", *PROMPTS, config=config, sampling=sampling, limits=Limits(16))
        check_cells(trace, variant, sizes=5 if base == "trees" else 1)
        cells[variant] = sum(s.cells for s in verifies(trace))
        assert variant != "vanilla" or cells[variant] == measure(trace).attention_cells
    assert cells["both"] < min(cells["inputs"], cells["kv"])
    assert base == "speculative" or max(cells["inputs"], cells["kv"]) < cells["vanilla"]


def check_cells(trace: Trace, variant: str, sizes: int) -> None:
    """Check rows and cells of each forward; at least so many sizes of drafts are verified."""
    pads_kv, pads_inputs = variant in ("vanilla", "inputs"), variant in ("vanilla", "kv")
    padding, verified = [0] * len(PROMPTS), set[int]()
    drafts = {step: [s for s in trace.spans if (s.kind, s.step) == ("draft", step)] for step in range(1, 17)}
    grown = levels(trace)
    for span, (step, counts) in zip(verifies(trace), enumerate(own(trace), 1), strict=True):
        present = [r.sequence for r in trace.rounds if r.step == step]
        rows, cached = [n for n, _ in counts], [n for _, n in counts]
        verified |= set(rows)

        def cost(rows, cached, present):
            if pads_kv:
                cached = [max(n + padding[s] for n, s in zip(cached, present, strict=True))] * len(rows)
            if pads_inputs:
                rows = [max(rows)] * len(rows)
            cells = sum(r * (c + r) for r, c in zip(rows, cached, strict=True))
            return sum(rows), sum(cached), cells

        assert (span.rows, span.context, span.cells) == cost(rows, cached, present)
        trees_of = {s: (n + 1, grown.get((step, s), [])) for s, n in zip(present, cached, strict=True)}
        for level, draft in enumerate(drafts[step][1:], 1):
            growing = [s for s in present if len(trees_of[s][1]) > level]
            new = [trees_of[s][1][level - 1] for s in growing]
            before = [trees_of[s][0] + sum(trees_of[s][1][: level - 1]) for s in growing]
            assert (draft.rows, draft.context, draft.cells) == cost(new, before, growing)
        brought = {r.sequence: r.emitted for r in trace.rounds if r.step == step}
        stay = {r.sequence for r in trace.rounds if r.step == step + 1}
        for sequence in stay:
            padding[sequence] += max(brought[s] for s in stay) - brought[sequence]
    assert len(verified) >= sizes, "drafts of different sizes were verified together"


def test_24_sequences_with_the_largest_trees_have_enough_rows_of_q(tmp_path):
    pair, _ = make_pair(tmp_path, "qwen3", "other")
    config = {"base": "speculative", "batch": 24, "width": 4, "gamma": 16}
    sampling, prompts = Sampling(1.0, seed=3), [[3 + i, 7] for i in range(24)]
    with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
        trace = cluster.run("ems", *prompts, config=config, sampling=sampling, limits=Limits(20))
        last = cluster.run("tree", prompts[23], config={"width": 4, "depth": 16},
                           sampling=replace(sampling, seed=26), limits=Limits(20))  # fmt: skip
    assert max(r.drafted for r in trace.rounds) > 60
    assert story(trace, 23) == story(last)
