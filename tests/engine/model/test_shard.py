"""Models split by tensors and by layers agree with the whole model; KV rows move between copies."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specscope.engine.checkpoints.checkpoint import Checkpoint, pack
from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.model import weights
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from specscope.engine.model.stage import StageIO, layer_stages, to_bytes
from tests.engine.model import tiny
from tests.engine.model.together import on_ranks

FAMILIES = tuple(family for family in tiny.CONFIGS if family != "olmoe")  # all of its heads are one norm's


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Return the directory of each tiny model by family."""
    folder = tmp_path_factory.mktemp("shards")
    for family in FAMILIES:
        tiny.save(tiny.reference(family, seed=3), folder / family)
    return {family: folder / family for family in FAMILIES}


def decode(model):
    """Return the whole logits of chains, a tree and batches, one tensor per forward."""
    cache = model.new_cache(2, 40)
    return [model.forward(cache, rows, want).logits for rows, want in steps()]


def split(path, ways):
    """Return the logits that each rank of a split model computes."""
    return on_ranks(ways, lambda ranks: decode(load(path, ranks=ranks)))


def check_split(path, ways):
    """Check that all ranks have the same bits, and nearly the whole model's logits."""
    first, *others = split(path, ways)
    assert all(map(torch.equal, first, other) for other in others)
    for rows, expected in zip(first, decode(load(path)), strict=True):
        torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "ways"),
    [*((family, 2 + i % 3) for i, family in enumerate(FAMILIES)), *(("llama", ways) for ways in (1, 3, 4))],
)
def test_every_rank_has_the_logits_of_the_whole_model(family, ways, paths):
    check_split(paths[family], ways)


@pytest.mark.parametrize("ways", [2, 3])
def test_matrices_in_packed_layout_and_matrices_stored_as_int8_are_split_too(
    ways, paths, tmp_path, monkeypatch
):
    monkeypatch.setattr(weights, "PACKED_FROM", 0)
    source = paths["llama-gqa-tied-bias"]
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file(pack(load_file(source / "model.safetensors")), tmp_path / "model.safetensors")
    for path in (source, tmp_path):
        check_split(path, ways)


def test_a_rank_reads_and_stores_its_part_only(paths, monkeypatch):
    read = []
    take = Checkpoint.take

    def recorded(self, key, device, dtype, part=None):
        tensor = take(self, key, device, dtype, part)
        read.append((key, tensor.numel()))
        return tensor

    monkeypatch.setattr(Checkpoint, "take", recorded)
    path = paths["llama"]
    sizes = ModelShape.of(read_config(path), path / "config.json").tensors()
    rank = on_ranks(2, lambda ranks: load(path, ranks=ranks))[1]
    assert rank.new_cache(1, 8).tensor.shape[2] == 4, "keys and values of 2 of 4 KV heads"
    for key, size in read:
        whole = math.prod(sizes[key])
        parts = {whole} if "norm" in key or "embed" in key else {whole // 2, -(-97 // 2) * 32, 97 // 2 * 32}
        assert size in parts, key


@pytest.mark.parametrize("static", [False, True])
def test_a_layer_takes_two_sums_and_the_head_one_gather_and_a_forward_reports_their_time(static, paths):
    def act(ranks):
        model = load(paths["llama"], ranks=ranks, forward="static" if static else "eager")
        cache = model.new_cache(1, 8)
        model.forward(cache, Rows.chain(0, [1], 0), np.arange(1))
        calls = [*ranks.calls]
        return calls, model.forward(cache, Rows.chain(0, [2], 1), np.arange(1)).communicated

    assert on_ranks(2, act) == [(["add"] * 6 + ["join"], 7)] * 2
    whole = load(paths["llama"])
    assert whole.forward(whole.new_cache(1, 8), Rows.chain(0, [1], 0), np.arange(1)).communicated == 0


def test_rows_of_a_split_head_are_rows_of_the_whole_one(paths):
    chosen = torch.tensor([96, 0, 48, 49, 50])
    for family in ("llama", "llama-gqa-tied-bias"):
        expected = load(paths[family]).head.rows(chosen)
        for rows in on_ranks(3, lambda ranks, path=paths[family]: load(path, ranks=ranks).head.rows(chosen)):
            torch.testing.assert_close(rows, expected)


TOKENS = [5, 9, 40, 3, 77, 12, 60, 31]


@pytest.mark.parametrize(
    ("layers", "count", "sizes"), [(8, 2, [4, 4]), (8, 3, [2, 3, 3]), (80, 4, [20] * 4), (3, 3, [1] * 3)]
)
def test_stages_split_the_layers_evenly_and_in_order(layers, count, sizes):
    stages = layer_stages(layers, count)
    assert [len(stage) for stage in stages] == sizes
    assert [i for stage in stages for i in stage] == list(range(layers))
    with pytest.raises(UsageError, match=f"stages is {layers + 1}; it must be at least 1 and at most"):
        layer_stages(layers, layers + 1)


@pytest.fixture(
    scope="module", params=["llama-gqa-tied-bias", "llama3-rope", "qwen2-window", "qwen3", "mistral-window"]
)
def path(request, paths):
    return str(paths[request.param])


def steps():
    """Prefill two sequences; extend one by a chain, one by a tree, then both by one row."""
    first = Rows.join([Rows.chain(0, TOKENS, 0), Rows.chain(1, TOKENS[:3], 0)])
    yield first, np.array([7, 10])
    yield Rows.chain(0, [8, 2, 4], 8), np.arange(3)
    yield Rows.of(1, [7, 8, 9, 10], [2, 2, 3, 4]), np.array([0, 3])
    yield Rows.join([Rows.chain(0, [1], 11), Rows.of(1, [6], [5])]), np.array([1])


@pytest.mark.parametrize(("count", "dtype"), [(2, torch.bfloat16), (3, torch.float32)])
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
    tied = json.loads((Path(path) / "config.json").read_text())["tie_word_embeddings"]
    assert [len(part.embedding) for part in parts] == [97, 0, 97 if tied else 0]


def test_a_wrong_number_of_incoming_states_is_refused_and_adds_no_rows(path):
    last = load(path, stage=(1, 2))
    cache = last.new_cache(1, 8)
    stage_io = StageIO(to_bytes(torch.zeros(2, 32)))
    with pytest.raises(SpecScopeError, match="256 bytes for 3 rows"):
        last.forward(cache, Rows.chain(0, [1, 2, 3], 0), np.array([2]), stage_io=stage_io)
    assert cache.length(0) == 0


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
