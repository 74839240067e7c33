"""The decoder compared with transformers: prefill, rows, chains, trees and batches."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import UsageError
from specscope.engine.model import weights
from specscope.engine.model.attention import SlotAttention
from specscope.engine.model.slots import PAD, PROVISIONAL, Rows
from tests.engine.model.tiny import CONFIGS, CONTEXT, VOCAB, reference, save

torch.set_num_threads(1)
NONE = np.empty(0, dtype=np.int64)


class Both:
    """The same model as our decoder and in transformers."""

    def __init__(self, family, path):
        self.reference = reference(family)
        save(self.reference, path)
        self.decoder = load(path)

    def expected(self, tokens):
        """Return transformers' logits after each token of a text, (T, V)."""
        with torch.inference_mode():
            return self.reference(torch.tensor([list(tokens)]), use_cache=False).logits[0]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made: dict[str, Both] = {}

    def of(family):
        if family not in made:
            made[family] = Both(family, tmp_path_factory.mktemp(family))
        return made[family]

    return of


@pytest.fixture(params=CONFIGS)
def both(request, models):
    return models(request.param)


def text(n, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, n)


def assert_same(got, want, tolerance=1e-4):
    """Check shape, dtype and the error relative to the largest logit."""
    assert got.shape == want.shape
    assert got.dtype == torch.float32
    if want.numel():
        error = (got - want).abs().max() / want.abs().max()
        assert error < tolerance, f"relative error {error:.2g}"


PARTS = ((40,), (11, *[1] * 19), (12, 2), (12, 5), (12, 12), (12, 33))
"""A prefill, row by row after it, or several rows after it."""


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        *((family, PARTS[(i + step) % 6]) for i, family in enumerate(CONFIGS) for step in (0, 3)),
        *(("qwen3", sizes) for sizes in PARTS),
    ],
    ids=str,
)
def test_a_text_in_parts(models, family, sizes):
    both = models(family)
    ids, cache, logits = text(sum(sizes)), both.decoder.new_cache(1, 50), []
    for size in sizes:
        at = cache.length(0)
        rows = Rows.chain(0, ids[at : at + size], at)
        logits.append(both.decoder.forward(cache, rows, np.arange(size)).logits)
    assert_same(torch.cat(logits), both.expected(ids))


TREE = [9, 10, 10, 11, 11, 12, 9, 16, 17, 15, -1, 20]
"""Parents of rows 10 to 21: branches after the last committed row, siblings, and a second root."""


def check_tree(both, cache, parents, flags=None):
    """Forward a tree and compare each row with transformers' logits for its path."""
    decoder = both.decoder
    start = cache.length(0)
    ids = text(len(parents), seed=1)
    out = decoder.forward(cache, Rows.of(0, ids, parents, flags), np.arange(len(ids)))
    for i in range(len(ids)):
        path = cache.tokens_to(0, start + i)
        assert_same(out.logits[i], both.expected(path)[-1])


LEVELS = {
    "at once": [(TREE, None)],
    "grown level by level": [(level, None) for level in ([9, 9], [10, 11, 11], [12], [15, 14, 14])],
    "with padding and provisional rows": [
        ([9, 10, 9, 12], [PROVISIONAL, PROVISIONAL, 0, PAD]),
        ([12], None),
    ],
}


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_a_tree_agrees_with_its_paths(both, levels):
    cache = both.decoder.new_cache(1, 50)
    both.decoder.forward(cache, Rows.chain(0, text(10), 0), NONE)
    for parents, flags in levels:
        check_tree(both, cache, parents, flags)


def test_rows_after_a_kept_branch(both):
    ids = text(10)
    cache = both.decoder.new_cache(1, 50)
    both.decoder.forward(cache, Rows.chain(0, ids, 0), NONE)
    branch = text(len(TREE), seed=1)
    both.decoder.forward(cache, Rows.of(0, branch, TREE), NONE)
    kept = [*ids, branch[0], branch[2], branch[5]]  # rows 10, 12, 15
    path = cache.match(0, np.array([*kept, 96]), 14)
    assert path.tolist() == [*range(10), 10, 12, 15]
    cache.keep(0, path)
    more = text(4, seed=2)
    out = both.decoder.forward(cache, Rows.chain(0, more, 13), np.arange(4))
    assert_same(out.logits, both.expected([*kept, *more])[13:])


def test_sequences_of_different_lengths_in_one_batch(both):
    """First whole texts; then one row, a chain and a tree; then one row each."""
    cache = both.decoder.new_cache(3, 40)
    texts = {slot: text(n, seed=slot) for slot, n in ((2, 17), (0, 3), (1, 9))}
    first = [Rows.chain(slot, ids, 0) for slot, ids in texts.items()]
    more = [Rows.chain(1, [5], 9), Rows.chain(0, [6, 7, 8], 3), Rows.of(2, [3, 4, 5], [16, 16, 17])]
    paths = {2: [*texts[2], 3, 5], 1: [*texts[1], 5], 0: [*texts[0], 6, 7, 8]}
    last = [Rows.of(2, [9], [19]), Rows.chain(1, [9], 10), Rows.chain(0, [9], 6)]
    for parts, want, expected in (
        (first, range(29), [both.expected(ids) for ids in texts.values()]),
        (more, [6, 0, 3], [both.expected(ids)[-1:] for ids in paths.values()]),
        (last, range(3), [both.expected([*ids, 9])[-1:] for ids in paths.values()]),
    ):
        out = both.decoder.forward(cache, Rows.join(parts), np.array([*want]))
        assert_same(out.logits, torch.cat(expected))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_trees(models, data):
    both = models(data.draw(st.sampled_from(["qwen2-window", "qwen3"])))
    decoder = both.decoder
    cache = decoder.new_cache(1, 64)
    committed = data.draw(st.integers(0, 12), label="committed")
    if committed:
        decoder.forward(cache, Rows.chain(0, text(committed), 0), NONE)
    for step in range(data.draw(st.integers(1, 3), label="steps")):
        length = cache.length(0)
        n = data.draw(st.integers(1, 8), label="n")
        parents = [data.draw(st.integers(max(-1, length - 6), length + i - 1)) for i in range(n)]
        ids = text(n, seed=step)
        out = decoder.forward(cache, Rows.of(0, ids, parents), np.arange(n))
        row = data.draw(st.integers(0, n - 1), label="row")
        assert_same(out.logits[row], both.expected(cache.tokens_to(0, length + row))[-1])


def test_hidden_states(both):
    ids, count = text(12), both.decoder.shape.layers
    requested = (*range(count + 1), -1)
    cache, states = both.decoder.new_cache(1, 20), []
    out = both.decoder.forward(cache, Rows.chain(0, ids, 0), np.array([11]), requested)
    model = both.reference.base_model
    inner = getattr(model, "decoder", model)
    layers = getattr(inner, "layers", None) or inner.h
    hooks = [layer.register_forward_hook(lambda *a: states.append(a[2])) for layer in layers]
    hooks.append(layers[0].register_forward_pre_hook(lambda _, given: states.append(given[0][0])))
    with torch.inference_mode():
        final = model(torch.from_numpy(ids)[None], use_cache=False).last_hidden_state[0]
    for hook in hooks:
        hook.remove()
    assert set(out.hidden) == set(requested)
    assert_same(out.hidden[-1], final)
    for i, state in enumerate(states):
        assert_same(out.hidden[i], state if i == 0 else state[0])
    assert_same(out.logits, both.expected(ids)[-1:])


@pytest.mark.parametrize(("count", "want"), [(9, [7, 2, 2]), (4, [3, 1, 0, 2]), (9, []), (0, [])], ids=str)
def test_logits_have_the_order_of_the_wanted_rows(models, count, want):
    both, ids = models("llama"), text(9)
    rows, want = Rows.chain(0, ids[:count], 0), np.array(want, dtype=np.int64)
    assert_same(
        both.decoder.forward(both.decoder.new_cache(1, 9), rows, want).logits, both.expected(ids)[want]
    )


def test_a_cache_may_hold_more_tree_rows_than_the_context_has_positions(models):
    both = models("llama")
    ids = text(CONTEXT)
    cache = both.decoder.new_cache(1, CONTEXT + 4)
    both.decoder.forward(cache, Rows.chain(0, ids[:-1], 0), NONE)
    leaf = CONTEXT - 2
    out = both.decoder.forward(cache, Rows.of(0, [ids[-1], 5, 6], [leaf] * 3), np.arange(3))
    assert_same(out.logits[0], both.expected(ids)[-1])
    with pytest.raises(UsageError, match=f"position {CONTEXT}; the model's context is {CONTEXT}"):
        both.decoder.forward(cache, Rows.of(0, [1], [CONTEXT]), np.arange(1))
    assert cache.length(0) == CONTEXT + 2


def test_forwards_alternate_between_caches_of_different_sizes(models):
    both, one, two = models("qwen3"), text(10, seed=1), text(4, seed=2)
    caches, got = [both.decoder.new_cache(1, size) for size in (16, 4)], [[], []]
    for i in range(10):
        for k, ids in enumerate((one, two)):
            if i < len(ids):
                rows = Rows.chain(0, ids[i : i + 1], i)
                got[k].append(both.decoder.forward(caches[k], rows, np.array([0])).logits)
    assert_same(torch.cat(got[0]), both.expected(one))
    assert_same(torch.cat(got[1]), both.expected(two))
    with pytest.raises(UsageError, match="slot 0 would hold 5 rows; its capacity is 4"):
        both.decoder.forward(caches[1], Rows.chain(0, [1], 4), np.arange(1))


@pytest.mark.parametrize(
    ("rows", "want", "hidden", "message"),
    [
        (Rows.chain(0, [1, VOCAB], 0), [0], (), f"token id {VOCAB} is not in the target's vocabulary of {VOCAB}"),
        (Rows.chain(0, [-1], 0), [0], (), "token id -1 is not in"),
        (Rows.chain(0, [1, 2], 0), [2], (), "wanted row 2 is not one of the rows 0 to 1"),
        (Rows.chain(0, [1], 0), [0], (4,), "hidden layers are .*; they must be -1 to 3"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_refused_and_add_no_rows(models, rows, want, hidden, message):
    decoder = models("llama").decoder
    cache = decoder.new_cache(1, 8)
    with pytest.raises(UsageError, match=message):
        decoder.forward(cache, rows, np.array(want), hidden)
    assert cache.length(0) == 0


def test_a_failed_forward_adds_no_rows(models, monkeypatch):
    both, ids = models("llama"), text(12)
    cache = both.decoder.new_cache(1, 20)
    both.decoder.forward(cache, Rows.chain(0, ids[:6], 0), NONE)
    with monkeypatch.context() as patch:
        patch.setattr(SlotAttention, "run", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            both.decoder.forward(cache, Rows.chain(0, ids[6:], 6), NONE)
    assert cache.length(0) == 6
    out = both.decoder.forward(cache, Rows.chain(0, ids[6:], 6), np.arange(6))
    assert_same(out.logits, both.expected(ids)[6:])


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch has no MKL")
@pytest.mark.parametrize(
    ("family", "intel"), [("llama-gqa-tied-bias", True), ("narrow-heads", False), ("qwen3-bias", True)]
)
def test_packed_matrices(family, intel, tmp_path, models, monkeypatch):
    """Pack all matrices of a tiny model, not only large ones; check 19 rows, 1 row and a tree."""
    both, ids = models(family), text(20)
    save(both.reference, tmp_path)
    monkeypatch.setattr(weights, "PACKED_FROM", 0)
    monkeypatch.setattr(weights, "is_intel", lambda: intel)
    decoder = load(tmp_path)
    assert not decoder.layers[0].qkv.transposed.numel(), "the product has its own copy"
    assert load(tmp_path, dtype=torch.bfloat16).layers[0].qkv.transposed.numel()
    cache = decoder.new_cache(1, 24)
    first = decoder.forward(cache, Rows.chain(0, ids[:19], 0), np.arange(19)).logits
    last = decoder.forward(cache, Rows.chain(0, ids[19:], 19), np.arange(1)).logits
    assert_same(torch.cat([first, last]), both.expected(ids))
    cache.keep(0, np.arange(19))
    tree = decoder.forward(cache, Rows.of(0, [*ids[19:], 3, 5], [18, 18, 19]), np.arange(3)).logits
    assert_same(tree[:1], last)
    assert_same(tree[1:2], both.expected([*ids[:19], 3])[-1:])


@pytest.mark.parametrize("family", ["llama", "qwen3-bias"])
def test_bfloat16(family, tmp_path, models):
    both, ids = models(family), text(20)
    save(both.reference, tmp_path)
    decoder = load(tmp_path, dtype=torch.bfloat16)
    cache, logits = decoder.new_cache(1, 24), []
    for start, end in ((0, 12), *((i, i + 1) for i in range(12, 20))):
        rows = Rows.chain(0, ids[start:end], start)
        logits.append(decoder.forward(cache, rows, np.arange(end - start)).logits)
    assert_same(torch.cat(logits), both.expected(ids), tolerance=0.05)
