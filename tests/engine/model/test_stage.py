"""Stages of a split model agree with the whole model; KV rows can move between two copies of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.model.slots import Rows
from specscope.engine.model.stage import StageIO, from_bytes, layer_stages, to_bytes
from tests.engine.model import tiny

TOKENS = [5, 9, 40, 3, 77, 12, 60, 31]


@pytest.mark.parametrize(
    ("layers", "count", "sizes"), [(8, 2, [4, 4]), (8, 3, [2, 3, 3]), (80, 4, [20] * 4), (3, 3, [1] * 3)]
)
def test_stages_split_the_layers_evenly_and_in_order(layers, count, sizes):
    stages = layer_stages(layers, count)
    assert [len(stage) for stage in stages] == sizes
    assert [i for stage in stages for i in stage] == list(range(layers))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(UsageError, match="stages is 4; it must be at least 1 and at most 3"):
        layer_stages(3, 4)


@pytest.fixture(
    scope="module", params=["llama-gqa-tied-bias", "llama3-rope", "qwen2-window", "qwen3", "mistral-window"]
)
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("stages") / request.param
    tiny.save(tiny.reference(request.param, seed=3), path)
    return str(path)


def is_tied(path: str) -> bool:
    return json.loads((Path(path) / "config.json").read_text())["tie_word_embeddings"]


def steps():
    """Prefill two sequences; extend one by a chain, one by a tree, then both by one row."""
    first = Rows.join([Rows.chain(0, TOKENS, 0), Rows.chain(1, TOKENS[:3], 0)])
    yield first, np.array([7, 10])
    yield Rows.chain(0, [8, 2, 4], 8), np.arange(3)
    yield Rows.of(1, [7, 8, 9, 10], [2, 2, 3, 4]), np.array([0, 3])
    yield Rows.join([Rows.chain(0, [1], 11), Rows.of(1, [6], [5])]), np.array([1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [2, 3])
def test_the_stages_in_order_give_the_logits_of_the_whole_model(path, count, dtype):
    whole = load(path, dtype=dtype)
    parts = [load(path, dtype=dtype, stage=(i, count)) for i in range(count)]
    caches = [part.new_cache(2, 40) for part in parts]
    whole_cache = whole.new_cache(2, 40)
    for rows, want in steps():
        expected = whole.forward(whole_cache, rows, want)
        states = b""
        for part, cache in zip(parts, caches, strict=True):
            stage_io = StageIO(states)
            out = part.forward(cache, rows, want, stage_io=stage_io)
            if stage_io.outgoing is not None:
                assert out.logits.shape == (len(want), 0)
                assert len(stage_io.outgoing) == len(rows) * 32 * dtype.itemsize
            states = stage_io.outgoing or b""
            if part.is_first:
                assert out.cells == expected.cells, "cells count the first layer"
        assert stage_io.outgoing is None, "the last stage sends no states"
        assert torch.equal(out.logits, expected.logits)
    together = torch.cat([cache.tensor for cache in caches])
    assert torch.equal(together, whole_cache.tensor)


def test_a_stage_holds_only_its_layers(path):
    parts = [load(path, stage=(i, 3)) for i in range(3)]
    assert [len(part.layers) for part in parts] == [1, 1, 1]
    assert [part.new_cache(1, 8).tensor.shape[0] for part in parts] == [1, 1, 1]
    assert [len(part.embedding) for part in parts] == [97, 0, 97 if is_tied(path) else 0]
    with pytest.raises(UsageError, match="stages is 4"):
        load(path, stage=(0, 4))


def test_a_wrong_number_of_incoming_states_is_refused_and_adds_no_rows(path):
    last = load(path, stage=(1, 2))
    cache = last.new_cache(1, 8)
    stage_io = StageIO(to_bytes(torch.zeros(2, 32)))
    with pytest.raises(SpecScopeError, match="256 bytes for 3 rows"):
        last.forward(cache, Rows.chain(0, [1, 2, 3], 0), np.array([2]), stage_io=stage_io)
    assert cache.length(0) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_give_the_tensor_back(dtype):
    x = torch.randn(3, 4, 5).to(dtype)[:, 1:3]
    assert torch.equal(from_bytes(to_bytes(x), (3, 2, 5), x), x)
    assert from_bytes(b"", (0, 5), x).shape == (0, 5)


def test_imported_rows_equal_the_exported_ones(path):
    model = load(path)
    source, target = (model.new_cache(1, 32) for _ in range(2))
    for cache in (source, target):
        model.forward(cache, Rows.chain(0, TOKENS, 0), np.empty(0, dtype=np.int64))
    # export the path to the last node of a tree
    model.forward(source, Rows.of(0, [7, 8, 9], [7, 7, 9]), np.empty(0, dtype=np.int64))
    target.import_kv(0, np.array([8, 9]), source.export_kv(0, np.array([9, 10])))
    assert target.length(0) == 10
    assert target.tokens_to(0, 9).tolist() == [*TOKENS, 8, 9]
    source.keep(0, np.array([*range(8), 9, 10]))
    assert torch.equal(source.tensor[:, :, :, :10], target.tensor[:, :, :, :10])
    last = np.array([0])
    outs = [model.forward(cache, Rows.chain(0, [4], 10), last).logits for cache in (source, target)]
    assert torch.equal(*outs)
