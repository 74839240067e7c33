"""A memoized model agrees with the model itself and computes no row twice."""

import numpy as np
import pytest
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.model.fuzzy import Fuzzy
from specscope.engine.model.memoized import MemoizedModel
from specscope.engine.model.slots import PROVISIONAL, Rows
from tests.engine.model import tiny

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


class Counted:
    """A decoder that counts the rows of its forwards."""

    name = "target"

    def __init__(self, model):
        self._model, self.rows, self.new_cache = model, 0, model.new_cache
        self.vocab_size, self.context, self.depth = model.vocab_size, model.context, model.depth

    def forward(self, cache, rows, want, hidden=(), fuzzy=None, **options):
        self.rows += len(rows)
        return self._model.forward(cache, rows, want, hidden, fuzzy)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny.save(tiny.reference("llama-gqa-tied-bias"), path)
    return load(path)


def extend(model, cache, tokens, parents=None, flags=None, fuzzy=None, slot=0):
    """Forward rows after the cached ones and return the logits of all of them."""
    start = cache.length(slot)
    parents = range(start - 1, start + len(tokens) - 1) if parents is None else parents
    rows = Rows.of(slot, tokens, list(parents), flags)
    return model.forward(cache, rows, np.arange(len(tokens)), fuzzy=fuzzy)


def test_a_second_cache_computes_known_rows_only_when_a_forward_needs_their_keys(model):
    counted, plain = Counted(model), model.new_cache(1, 32)
    memoized = MemoizedModel(counted)
    late = memoized.new_cache(2, 32)
    first = extend(memoized, memoized.new_cache(1, 32), TEXT)
    again = extend(memoized, late, TEXT, slot=1)
    assert counted.rows == len(TEXT)
    assert torch.equal(first.logits, again.logits)
    assert first.cells == again.cells == len(TEXT) ** 2
    new = extend(memoized, late, [7, 8], slot=1)
    assert counted.rows == 2 * len(TEXT) + 2
    extend(model, plain, TEXT)
    expected = extend(model, plain, [7, 8])
    assert torch.allclose(new.logits, expected.logits, atol=1e-4)
    assert new.cells == expected.cells
    extend(memoized, late, [9], slot=1)
    assert counted.rows == 2 * len(TEXT) + 3


def test_a_kept_branch_gives_the_model_s_logits_computed_or_memoized(model):
    memoized, plain = MemoizedModel(model), model.new_cache(1, 32)
    tree, parents = [11, 12, 13, 14], [9, 9, 10, 12]
    for cache in (memoized.new_cache(1, 32), memoized.new_cache(1, 32)):  # computed, then memoized
        extend(memoized, cache, TEXT)
        extend(memoized, cache, tree, parents)
        path = cache.match(0, np.array([*TEXT, 11, 13, 14]), 13)
        cache.keep(0, path)
        got = extend(memoized, cache, [15, 2])
    extend(model, plain, [*TEXT, 11, 13, 14])
    expected = extend(model, plain, [15, 2])
    assert torch.allclose(got.logits, expected.logits, atol=1e-4)


def test_random_texts_give_the_model_s_logits(model):
    rng = np.random.default_rng(5)
    memoized = MemoizedModel(model)
    for _ in range(25):
        cache, plain = memoized.new_cache(1, 64), model.new_cache(1, 64)
        text: list[int] = []
        for _ in range(5):
            kept = int(rng.integers(0, len(text) + 1))
            for slots in (cache, plain):
                slots.keep(0, np.arange(kept))
            more = rng.integers(0, 3, size=int(rng.integers(1, 5))).tolist()
            text = text[:kept] + more
            got, expected = extend(memoized, cache, more), extend(model, plain, more)
            assert torch.allclose(got.logits, expected.logits, atol=1e-4)
            assert got.cells == expected.cells


def test_a_fuzzy_forward_reads_exact_keys_and_is_not_memoized(model):
    counted = Counted(model)
    memoized, plain = MemoizedModel(counted), model.new_cache(1, 32)
    fuzzy = Fuzzy([range(model.depth)])
    extend(memoized, memoized.new_cache(1, 32), TEXT)
    cache = memoized.new_cache(1, 32)
    extend(memoized, cache, TEXT)  # memoized: no keys
    flags = [PROVISIONAL] * 2
    got = extend(memoized, cache, [7, 8], flags=flags, fuzzy=fuzzy)
    extend(model, plain, TEXT)
    expected = extend(model, plain, [7, 8], flags=flags, fuzzy=fuzzy)
    assert torch.allclose(got.logits, expected.logits, atol=1e-4)
    exact = extend(memoized, memoized.new_cache(1, 32), [*TEXT, 7, 8]).logits[-2:]
    assert not torch.allclose(exact, got.logits, atol=1e-3)


def test_rows_imported_without_keys_are_computed_when_needed(model):
    memoized, plain = MemoizedModel(model), model.new_cache(1, 32)
    extend(memoized, memoized.new_cache(1, 32), [*TEXT, 7, 8])
    source, target = (memoized.new_cache(1, 32) for _ in range(2))
    extend(memoized, source, [*TEXT, 7, 8])  # memoized: no keys
    extend(memoized, target, TEXT)
    moved = np.arange(len(TEXT), len(TEXT) + 2)
    assert source.export_kv(0, moved) == b""
    target.import_kv(0, np.array([7, 8]), b"")
    extend(model, plain, [*TEXT, 7, 8])
    got, expected = extend(memoized, target, [4, 6]), extend(model, plain, [4, 6])
    assert torch.allclose(got.logits, expected.logits, atol=1e-4)


def test_a_full_memory_is_cleared_and_hidden_states_are_computed(model, monkeypatch):
    counted = Counted(model)
    memoized = MemoizedModel(counted)
    monkeypatch.setattr("specscope.engine.model.memoized.BYTES", 4 * model.vocab_size * 12)
    for text in (TEXT, [8, 7, 6], TEXT):
        extend(memoized, memoized.new_cache(1, 32), text)
    assert counted.rows == 2 * len(TEXT) + 3
    rows = Rows.chain(0, TEXT, 0)
    out = memoized.forward(memoized.new_cache(1, 32), rows, np.empty(0, dtype=np.int64), hidden=(-1,))
    assert out.hidden[-1].shape == (len(TEXT), model.shape.width)
