"""A model split by tensors has the logits of the whole model, with padding and without."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from specscope.engine.checkpoints.checkpoint import Checkpoint, pack
from specscope.engine.checkpoints.config import read_config
from specscope.engine.checkpoints.loader import load
from specscope.engine.model import weights
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.shard import Part, Shard, padded
from specscope.engine.model.slots import Rows
from tests.engine.model import tiny
from tests.engine.model.test_stage import TOKENS, steps
from tests.engine.model.together import on_ranks

FAMILIES = tuple(tiny.CONFIGS)


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


@pytest.mark.parametrize("ways", [1, 2, 3, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_rank_has_the_logits_of_the_whole_model(family, ways, paths):
    expected = decode(load(paths[family]))
    for logits in split(paths[family], ways):
        for rows, expected_rows in zip(logits, expected, strict=True):
            torch.testing.assert_close(rows, expected_rows, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ways", [2, 3])
def test_matrices_in_packed_layout_and_matrices_stored_as_int8_are_split_too(
    ways, paths, tmp_path, monkeypatch
):
    monkeypatch.setattr(weights, "PACKED_FROM", 0)
    source = paths["llama-gqa-tied-bias"]
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    save_file(pack(load_file(source / "model.safetensors")), tmp_path / "model.safetensors")
    for path in (source, tmp_path):
        expected = decode(load(path))
        for logits in split(path, ways):
            for rows, expected_rows in zip(logits, expected, strict=True):
                torch.testing.assert_close(rows, expected_rows, atol=1e-5, rtol=1e-5)


def test_all_ranks_have_the_same_bits(paths):
    for logits in zip(*split(paths["qwen3"], 3), strict=True):
        assert all(torch.equal(rows, logits[0]) for rows in logits)


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
def test_a_layer_takes_two_sums_and_the_head_one_gather(static, paths):
    def act(ranks):
        model = load(paths["llama"], ranks=ranks, static=static)
        model.forward(model.new_cache(1, 8), Rows.chain(0, TOKENS[:3], 0), np.arange(1))
        return ranks.calls

    assert on_ranks(2, act) == [["add"] * 6 + ["join"]] * 2


@pytest.mark.parametrize("static", [False, True])
def test_a_forward_reports_its_time_of_communication_only(static, paths):
    def act(ranks):
        model = load(paths["llama"], ranks=ranks, static=static)
        cache = model.new_cache(1, 8)
        model.forward(cache, Rows.chain(0, [1], 0), np.arange(1))
        return model.forward(cache, Rows.chain(0, [2], 1), np.arange(1)).communicated

    assert on_ranks(2, act) == [7, 7]
    whole = load(paths["llama"])
    assert whole.forward(whole.new_cache(1, 8), Rows.chain(0, [1], 0), np.arange(1)).communicated == 0


def test_rows_of_a_split_head_are_rows_of_the_whole_one(paths):
    chosen = torch.tensor([96, 0, 48, 49, 50])
    for family in ("llama", "llama-gqa-tied-bias"):
        expected = load(paths[family]).head.rows(chosen)
        for rows in on_ranks(3, lambda ranks, path=paths[family]: load(path, ranks=ranks).head.rows(chosen)):
            torch.testing.assert_close(rows, expected)


def test_padding_is_zero_and_only_the_last_ranks_have_it(paths):
    shape = ModelShape.of(read_config(paths["llama3-rope"]), paths["llama3-rope"] / "config.json")
    shards = [Shard(shape, rank, 3) for rank in range(3)]
    assert [(s.shape.heads, s.shape.kv_heads, s.shape.inner) for s in shards] == [(4, 1, 19)] * 3
    assert [s.vocabulary for s in shards] == [Part(0, 0, 33), Part(0, 33, 66), Part(0, 66, 99)]
    tensor = torch.ones(2, 3)
    assert padded(tensor, Part(0, 4, 8)).tolist() == [[1.0] * 3] * 2 + [[0.0] * 3] * 2
    assert padded(tensor, Part(1, 0, 4)).tolist() == [[1.0, 1.0, 1.0, 0.0]] * 2
