"""Fuzzy forwards against EasySpec's algorithm 2, and padding, which changes no logits."""

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import UsageError
from specscope.engine.model.attention import PaddedAttention, attention_parts
from specscope.engine.model.fuzzy import Fuzzy, layer_groups
from specscope.engine.model.similarity import similarity
from specscope.engine.model.slots import PAD, Rows
from specscope.engine.types import Prefix
from specscope.engine.worker.forwards import Alignment
from tests.engine.model import tiny

LAYERS = 10
TOKENS = [5, 9, 40, 3, 77, 12, 60, 31, 8, 2]


@pytest.fixture(scope="module", params=["llama-gqa-tied-bias", "qwen2", "qwen3"])
def models(request, tmp_path_factory):
    """Return a decoder of 10 layers and transformers' model with the same weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny._SIZES, "num_hidden_layers", LAYERS)
        reference = tiny.reference(request.param, seed=3)
    path = tmp_path_factory.mktemp("fuzzy") / request.param
    tiny.save(reference, path)
    return load(str(path), device="cpu", dtype=torch.float32, name="drafter"), reference


def forward(decoder, tokens, fuzzy=None, hidden=()):
    cache = decoder.new_cache(1, 32)
    rows = Rows.chain(0, tokens, 0)
    return decoder.forward(cache, rows, np.arange(len(tokens)), hidden, fuzzy), cache


def algorithm_2(model, tokens, groups):
    """Return the logits (T, V) of the paper's algorithm 2, with transformers' modules."""
    inner = model.model
    h = inner.embed_tokens(torch.tensor([tokens]))
    rotations = inner.rotary_emb(h, torch.arange(len(tokens))[None])
    mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
    for group in groups:
        layers = [inner.layers[i] for i in group]
        attended = [
            layer.self_attn(layer.input_layernorm(h), position_embeddings=rotations, attention_mask=mask)[0]
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
    logits = forward(decoder, TOKENS, Fuzzy(groups))[0].logits
    torch.testing.assert_close(logits, algorithm_2(reference, TOKENS, groups), atol=2e-4, rtol=1e-4)
    assert torch.allclose(logits, forward(decoder, TOKENS)[0].logits, atol=1e-3) == (size == 1)


@pytest.mark.parametrize("size", [0, -1, LAYERS + 1])
def test_a_size_out_of_range_is_refused(size):
    message = f"layer-parallel size is {size}; it must be at least 1 and at most 10"
    with pytest.raises(UsageError, match=message):
        layer_groups(LAYERS, size)


@pytest.mark.parametrize("size", [2, 4])
def test_similarity_agrees_with_the_hidden_states(models, size):
    """Compute h with two forwards per row, exact and fuzzy, after exact rows."""
    decoder, _ = models
    groups, cosines, layers = layer_groups(LAYERS, size), list[float](), tuple(range(LAYERS))
    for n in range(1, len(TOKENS) + 1):
        exact, cache = forward(decoder, TOKENS[:n], hidden=layers)
        cache.truncate(0, n - 1)
        row = Rows.chain(0, TOKENS[n - 1 : n], n - 1)
        fuzzy = decoder.forward(cache, row, np.zeros(1, dtype=np.int64), layers, Fuzzy(groups)).hidden
        for layer, start in [(layer, group.start) for group in groups for layer in group[1:]]:
            a, b = exact.hidden[layer][-1], fuzzy[start][0]
            cosines.append(float(torch.cosine_similarity(a, b, dim=0)))
    result = similarity(decoder, TOKENS, size)
    assert result.h == pytest.approx(np.mean(cosines), abs=1e-4)
    assert all(-1 < value < 0.9999 for value in result)
    with pytest.raises(UsageError, match="with 10 layers and size 1 every layer reads its own hidden state"):
        similarity(decoder, TOKENS, 1)


FAMILIES = ("llama3-rope", "mistral-window", "qwen3")
LENGTHS = (9, 3, 14, 1)
NEW = (4, 1, 2, 5)


@pytest.fixture(scope="module", params=FAMILIES)
def decoder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    tiny.save(tiny.reference(request.param, seed=3), path)
    return load(path)


def rows_of(slot, count, start):
    return Rows.chain(slot, (np.arange(count) * 7 + slot + start) % (tiny.VOCAB - 2) + 1, start)


def forward_separately(decoder):
    logits = []
    for slot, (length, new) in enumerate(zip(LENGTHS, NEW, strict=True)):
        cache = decoder.new_cache(len(LENGTHS), 64)
        decoder.forward(cache, rows_of(slot, length, 0), np.empty(0, dtype=np.int64))
        logits.append(decoder.forward(cache, rows_of(slot, new, length), np.arange(new)).logits)
    return logits


def forward_together(decoder, inputs, kv):
    """Prefill all slots, then run one forward over them, with padded inputs or KV caches.

    Returns:
        The output, the expected number of cells, and the cache.
    """
    cache = decoder.new_cache(len(LENGTHS), 24)  # padding makes it grow
    cache.tensor.fill_(1e4)  # finite values of padding must not matter
    prefill = [rows_of(slot, length, 0) for slot, length in enumerate(LENGTHS)]
    decoder.forward(cache, Rows.join(prefill), np.empty(0, dtype=np.int64))
    most = max(NEW) if inputs else 0
    parts = [rows_of(s, n, LENGTHS[s]).padded(max(n, most)) for s, n in enumerate(NEW)]
    starts = np.cumsum([0, *map(len, parts)])
    cache.pad(30 if kv else 0, max(map(len, parts)))
    want = np.concatenate([np.arange(n) + start for n, start in zip(NEW, starts, strict=False)])
    out = decoder.forward(cache, Rows.join(parts), want)
    reads = [30 + len(p) if kv else length + len(p) for p, length in zip(parts, LENGTHS, strict=True)]
    return out, sum(len(p) * r for p, r in zip(parts, reads, strict=True)), cache


@pytest.mark.parametrize("inputs", [False, True])
@pytest.mark.parametrize("kv", [False, True])
def test_padding_changes_the_cells_but_not_the_logits(decoder, inputs, kv):
    out, cells, _ = forward_together(decoder, inputs, kv)
    torch.testing.assert_close(out.logits, torch.cat(forward_separately(decoder)), rtol=1e-4, atol=1e-4)
    if decoder.layers[0].window is None:
        assert out.cells == cells


def test_only_slots_padded_to_equal_lengths_share_a_call(decoder):
    for inputs, kv, calls in ((True, True, 1), (True, False, 4), (False, True, 4), (False, False, 4)):
        _, _, cache = forward_together(decoder, inputs, kv)
        ends = np.cumsum([0, *(max(NEW) if inputs else n for n in NEW)])
        segments = [(slot, int(ends[slot]), int(ends[slot + 1])) for slot in range(len(NEW))]
        parts = list(attention_parts(cache, cache.buffers(int(ends[-1])), segments))
        assert len(parts) == calls
        assert isinstance(parts[0], PaddedAttention) == (calls == 1)
    rows = Rows.chain(1, [5, 6, 7], 4).padded(5)
    assert rows.parents.tolist() == [3, 4, 5, 5, 5], "padding has the parent of the last row"
    assert (rows.flags.tolist(), set(rows.slots.tolist())) == ([0, 0, 0, PAD, PAD], {1})


def test_a_sequence_with_fewer_new_tokens_gets_more_padding():
    alignment = Alignment()

    def record(**lengths):
        alignment.record([Prefix(int(i[1:]), np.zeros(n, dtype=np.int64)) for i, n in lengths.items()])

    record(s0=10, s1=4)
    assert alignment.length({0: 9, 1: 3}) == 9  # only the prompts differ
    record(s0=14, s1=5)
    record(s0=14, s1=5)  # a second call in one round changes nothing
    assert alignment.length({1: 4}) == 4 + 3
    record(s0=16, s1=11)
    assert alignment.length({0: 15}) == alignment.length({0: 15, 1: 10}) == 15 + 4
    record(s1=12, s2=40)  # a new sequence starts without padding
    assert alignment.length({1: 11, 2: 39}) == 39
    alignment.remove(1)
    assert alignment.length({1: 11}) == 11
