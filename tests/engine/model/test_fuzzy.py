"""Fuzzy forwards: algorithm 2 of EasySpec against transformers' own layers, and the ordinary forward where every layer is alone."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine.errors import UsageError
from engine.model.fuzzy import Fuzzy, layer_groups
from engine.model.similarity import similarity
from engine.model.slots import Rows
from engine.pairs.load import load
from tests.engine.model import tiny

LAYERS = 10
TOKENS = [5, 9, 40, 3, 77, 12, 60, 31, 8, 2]


@pytest.fixture(scope="module", params=["llama-gqa-tied-bias", "qwen2", "qwen3"])
def models(request, tmp_path_factory):
    """A decoder of 10 layers, and transformers' model of the same weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny._SIZES, "num_hidden_layers", LAYERS)
        reference = tiny.reference(request.param, seed=3)
    path = tmp_path_factory.mktemp("fuzzy") / request.param
    tiny.save(reference, path)
    return load(str(path), device="cpu", dtype=torch.float32, name="drafter"), reference


def forward(decoder, tokens, fuzzy: Fuzzy | None = None, hidden: tuple[int, ...] = ()):
    cache = decoder.new_cache(1, 32)
    rows = Rows.chain(0, tokens, 0)
    return decoder.forward(cache, rows, np.arange(len(tokens)), hidden, fuzzy), cache


def algorithm_2(model, tokens, groups) -> torch.Tensor:
    """Logits by transformers' modules, line by line as the paper has it."""
    inner = model.model
    h = inner.embed_tokens(torch.tensor([tokens]))
    places = inner.rotary_emb(h, torch.arange(len(tokens))[None])
    mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
    for group in groups:
        layers = [inner.layers[i] for i in group]
        attended = [
            layer.self_attn(layer.input_layernorm(h), position_embeddings=places, attention_mask=mask)[0]
            for layer in layers
        ]
        for layer, out in zip(layers, attended, strict=True):
            h = h + out
            h = h + layer.mlp(layer.post_attention_layernorm(h))
    return model.lm_head(inner.norm(h))[0]


@pytest.mark.parametrize("size", range(1, 6))
@torch.no_grad()
def test_a_fuzzy_forward_is_algorithm_2(models, size):
    decoder, reference = models
    groups = layer_groups(LAYERS, size)
    out, _ = forward(decoder, TOKENS, Fuzzy(groups))
    torch.testing.assert_close(out.logits, algorithm_2(reference, TOKENS, groups), atol=2e-4, rtol=1e-4)


def test_with_every_layer_alone_it_is_the_ordinary_forward_bit_for_bit(models):
    decoder, _ = models
    plain, cache = forward(decoder, TOKENS, hidden=(0, 3, -1))
    alone, other = forward(decoder, TOKENS, Fuzzy(layer_groups(LAYERS, 1)), hidden=(0, 3, -1))
    assert torch.equal(plain.logits, alone.logits)
    assert torch.equal(cache.tensor, other.tensor)
    assert all(torch.equal(plain.hidden[i], alone.hidden[i]) for i in plain.hidden)


def test_a_larger_group_says_something_else(models):
    decoder, _ = models
    logits = [forward(decoder, TOKENS, Fuzzy(layer_groups(LAYERS, size)))[0].logits for size in range(1, 6)]
    for a, b in pairwise(logits):
        assert not torch.allclose(a, b, atol=1e-3)


class Half:
    """One of two devices, whose other half is computed here, too."""

    ways = 2

    def __init__(self, rank: int, table: dict) -> None:
        self.rank, self._table = rank, table

    def swap(self, mine, count, like):
        turn = self._table.setdefault(self.rank, [])
        turn.append(mine)
        other = self._table.get("theirs")
        theirs = other[len(turn) - 1] if other else {i: torch.zeros_like(like) for i in range(count)}
        return [mine[i] if i in mine else theirs[i] for i in range(count)]


def test_each_device_computes_its_own_layers_only(models):
    decoder, _ = models
    seen: dict[int, list[int]] = {0: [], 1: []}
    for rank in (0, 1):
        share = Half(rank, {})
        groups = layer_groups(LAYERS, 4)
        fuzzy = Fuzzy(groups, share, watch=lambda i, _, rank=rank: seen[rank].append(i))
        forward(decoder, TOKENS, fuzzy)
        parts = fuzzy.times()
        mine = ([1, 3], [4, 6]) if rank == 0 else ([2], [5, 7])
        expected = [
            [*(("attention", i) for i in own), ("exchange", first)]
            for own, first in zip(mine, (1, 4), strict=True)
        ]
        assert [(p.kind, p.layer) for p in parts] == [*expected[0], *expected[1]]
        assert all(a.end <= b.start for a, b in pairwise(parts))
        assert fuzzy.times() == ()
    assert seen == {0: [0, 1, 3, 4, 6, 8, 9], 1: [0, 2, 5, 7, 8, 9]}


@pytest.mark.parametrize("size", [0, -1, LAYERS + 1])
def test_a_size_out_of_range_is_refused(size):
    with pytest.raises(
        UsageError, match=rf"layer-parallel size is {size}; it must be at least 1 and at most 10"
    ):
        layer_groups(LAYERS, size)


# How near fuzzy forwards come (Table 5).


def test_similarity_is_1_where_a_layer_adds_nothing(models):
    """With layers that leave the state as it is, a stale state is the layer's own."""
    decoder, _ = models
    same = copy.deepcopy(decoder)
    for layer in same.layers:
        for linear in (layer.out, layer.down):
            linear.across.zero_()
            if linear.bias is not None:
                linear.bias.zero_()
    found = similarity(same, TOKENS, 4)
    assert found[:4] == pytest.approx([1] * 4, abs=1e-6)


@pytest.mark.parametrize("size", [2, 4])
def test_similarity_is_what_the_hidden_states_say(models, size):
    """h by two plain forwards for each row: exact rows before it, and the row itself exact or fuzzy."""
    decoder, _ = models
    groups = layer_groups(LAYERS, size)
    cosines = []
    every = tuple(range(LAYERS))
    for n in range(1, len(TOKENS) + 1):
        exact, cache = forward(decoder, TOKENS[:n], hidden=every)
        cache.truncate(0, n - 1)
        row = Rows.chain(0, TOKENS[n - 1 : n], n - 1)
        fuzzy = decoder.forward(cache, row, np.zeros(1, dtype=np.int64), every, Fuzzy(groups)).hidden
        for group in groups:
            for layer in group[1:]:
                a, b = exact.hidden[layer][-1], fuzzy[group.start][0]
                cosines.append(float(torch.dot(a, b) / a.norm() / b.norm()))
    found = similarity(decoder, TOKENS, size)
    assert found.h == pytest.approx(np.mean(cosines), abs=1e-4)
    assert all(-1 < value < 0.9999 for value in found)


def test_similarity_needs_a_layer_that_reads_an_older_state(models):
    decoder, _ = models
    with pytest.raises(UsageError, match="with 10 layers and size 1 every layer reads its own hidden state"):
        similarity(decoder, TOKENS, 1)
