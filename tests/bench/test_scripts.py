"""The scripts' results on small models and virtual time. Times are not tested."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

import specscope
from specscope.app.bench.cuda import LlamaShape
from specscope.app.bench.figures import BenchPlan
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.model.attention import attend
from specscope.engine.types import Limits, Sampling
from specscope.traces.database.store import Store
from specscope.traces.facts.checks import check
from specscope.traces.view.document import view_model
from tests.bench import attention, groups, health, placements, rounds, schedules, shapes, tracing, viewer
from tests.engine.heads.random_heads import make_head
from tests.traces.samples import sample_trace

SMALL = BenchPlan(1, 1, 1.0, 1, 12, 1)
CASES = (attention.Case(3, 1), attention.Case(3, 4), attention.Case(3, 6, tree=True))


def variable_lengths(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, **more):
    assert (scale, window_size) == (1.0, (-1, 0))
    assert max_q == int(cu_seq_q.diff().max())
    assert max_k == int(more["seqused_k"].max())
    out, bounds = list[torch.Tensor](), cu_seq_q.tolist()
    for i, used in enumerate(more["seqused_k"].tolist()):
        q, first = query[bounds[i] : bounds[i + 1]], int(cu_seq_k[i])
        keys, values = (t[first : first + used].transpose(0, 1)[None] for t in (key, value))
        mask = torch.full((len(q), used), -torch.inf).triu(used - len(q) + 1)
        rows = attend(q.transpose(0, 1)[None], keys, values, mask, 0.0, grouped=more["enable_gqa"])
        out.append(rows[0].transpose(0, 1))
    return torch.cat(out)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_ways_of_attention_have_one_result(monkeypatch, case):
    monkeypatch.setattr(attention, "SHORTEST", 5)
    monkeypatch.setattr(attention, "LONGEST", 40)
    size = LlamaShape("small", 2, 64, 128, 4, 2)
    ragged = attention.Ragged(size, case, torch.device("cpu"))
    monkeypatch.setattr(attention, "_varlen_attn", lambda: variable_lengths)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    times = ragged.times(1)
    assert list(times) == ["loop", "masked", *([] if case.tree else ["varlen"])]
    assert all(figure.valid and figure.median > 0 for figure in times.values())


def test_moving_the_drafter_costs_time_only_if_drafting_takes_longer_than_verifying():
    figures, left_out = placements.virtual("pearl-4xA100", SMALL, lambda _: None)
    assert left_out == {}
    assert all(figure.valid for figure in figures.values()), "the same tokens everywhere"
    assert figures["llama-2-7-70 separate"].values == (1.0,)
    assert figures["llama-2-7-70 co-located"].median < 0.7
    assert figures["llama-2-7-70 pipeline, 4 stages"].median == pytest.approx(1, abs=1e-4)
    assert figures["llama-3.1-8-70 pipeline, 4 stages"].median == pytest.approx(0.99, abs=0.005)


def test_heads_of_each_group_size_draft_chains_and_trees(tmp_path: Path):
    target = Pair.find().target_path
    for masks in (2, 0):
        make_head(tmp_path / f"k{masks}", "parallelspec_eagle", target, masks=masks)
    figures = groups.measure(tmp_path, SMALL, lambda _: None, "8xA100")
    assert {name: figure.detail["nodes"] for name, figure in figures.items()} == {
        "chain K = 0": 1,
        "tree K = 0": 4,
        "chain K = 2": 3,
        "tree K = 2": 20,
    }
    assert all(figure.valid for figure in figures.values()), "the same tokens with every head"
    ElementTree.fromstring(groups.chart(figures, "virtual"))
    make_head(tmp_path / "again", "parallelspec_eagle", target, masks=2)
    with pytest.raises(UsageError, match="must have one head for each K"):
        groups.find(tmp_path, Pair.find())


def test_a_repeated_run_is_a_run_of_that_many_spans():
    base = sample_trace("speculative")
    trace = viewer.repeated(base, 500)
    check(trace)
    assert 500 <= len(trace.spans) < 500 + len(base.spans)
    (run,) = view_model([trace])["runs"]
    assert run["headline"] == view_model([base])["runs"][0]["headline"]


def test_timed_rows_are_stored(tmp_path: Path):
    trace = sample_trace()
    with Store(tmp_path / "bench.db") as store:
        assert tracing.cost_of_event(store, trace) > 0
        assert tracing.spans_per_second(store, trace.header, 250) > 0
        stored = [store.load(run.header.run_id) for run in store.runs()[0]]
    assert sorted(len(t.spans) for t in stored) == sorted([250, len(trace.spans)])


def test_schedules_are_compared_on_scripted_drafts_of_varying_difficulty(monkeypatch):
    monkeypatch.setattr(schedules, "FIXED", (2,))
    monkeypatch.setattr(schedules, "PHASE", 8)
    pair, limits = Pair.find("bundled"), Limits(24)
    source = schedules.phases(pair.vocab_size, pair.eos)
    with specscope.open(pair, runtime="virtual", profile="pearl-4xA100", tokens=source) as cluster:
        table = dict(schedules.table(cluster, ["speculative"], Sampling(), limits, certain=True))
    assert list(table) == [f"speculative, {name}" for name in ("fixed 2", *schedules.AVERAGE)]
    fixed = table["speculative, fixed 2"]
    assert fixed["asked on average"] == 2
    assert 1 < fixed["tokens/forward"] < 3
    assert 0 < fixed["lost per token"] < 2
    assert len({figures["speed-up"] for figures in table.values()}) > 1


def test_the_notes_of_a_pair_are_those_of_its_loops():
    with specscope.open("bundled", runtime="virtual", profile="pearl-4xA100") as cluster:
        rows = list(health.notes(cluster, ["autoregressive"], 60))
    assert len(rows) == 24
    assert all(note.startswith("The text repeats") for *_, note in rows if note)
    assert [(temperature, i) for _, temperature, i, note in rows if note] == [(0.0, 5)]


def test_a_pair_of_a_real_shape_agrees_often_and_all_methods_decode_it(tmp_path: Path):
    size = LlamaShape("small", 6, 64, 128, 4, 2)
    agreement = shapes.write_pair(tmp_path, size, torch.device("cpu"))
    assert abs(agreement - shapes.AGREEMENT) < 0.05
    with specscope.open(
        target=tmp_path / "target", drafter=tmp_path / "drafter", runtime="local-thread"
    ) as cluster:
        figures = shapes.race(cluster, 1, 24, lambda _: None)
    assert len(figures) == len(shapes.METHODS) - 1
    assert all(figure.valid and figure.detail["parts_at"] is None for figure in figures.values())
    assert figures["speculative_over_autoregressive"].detail["acceptance_rate"] > 0.5


def test_rounds_of_the_device_are_compared_with_the_host_s():
    with specscope.open("bundled", runtime="local-thread", device="cpu", forward="static") as cluster:
        found = rounds.race(cluster, "eagle", 1, 24)
    assert found.valid
    assert 5 < found.detail["device_rounds"] <= found.detail["rounds"] < 24


@pytest.mark.parametrize(
    ("tokens", "expected"), [([5, 7, 8], None), ([5, 9, 8], (1, 0.5)), ([5, 6, 8], (1, math.inf))]
)
def test_texts_that_part_have_the_difference_of_the_two_logits(tokens, expected):
    tops = [((5, 1.0),), ((7, math.exp(0.5) / 4), (9, 0.25)), ((8, 1.0),)]
    plain = SimpleNamespace(
        token_ids=lambda: [5, 7, 8],
        header=SimpleNamespace(prompt_ids=[[1, 2]]),
        decisions=[SimpleNamespace(position=2 + i, top_p=top) for i, top in enumerate(tops)],
    )
    found = shapes.parting(SimpleNamespace(token_ids=lambda: tokens), plain)
    assert found == (expected if expected is None else pytest.approx(expected))
