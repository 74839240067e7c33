"""A model that remembers says what the model itself says, whatever was known before, and computes nothing twice."""

import numpy as np
import pytest
import torch

from engine.model.decoder import Decoder
from engine.model.fuzzy import Fuzzy
from engine.model.remembered import Remembered
from engine.model.slots import PROVISIONAL, Rows
from engine.pairs.load import load
from tests.engine.model import tiny

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
NOTHING = np.empty(0, dtype=np.int64)


class Counted:
    """A decoder that counts the rows it is given."""

    def __init__(self, model: Decoder) -> None:
        self._model, self.rows = model, 0
        self.name, self.vocab_size, self.context, self.depth = (
            "target",
            model.vocab_size,
            model.context,
            model.depth,
        )
        self.new_cache = model.new_cache

    def forward(self, cache, rows, want, hidden=(), fuzzy=None):
        self.rows += len(rows)
        return self._model.forward(cache, rows, want, hidden, fuzzy)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Decoder:
    path = tmp_path_factory.mktemp("model")
    tiny.save(tiny.reference("llama-gqa-tied-bias"), path)
    return load(path)


def say(model, cache, tokens, parents=None, flags=None, fuzzy=None, slot=0):
    """Forward rows behind what the cache holds and return the logits of all of them."""
    start = cache.length(slot)
    parents = range(start - 1, start + len(tokens) - 1) if parents is None else parents
    rows = Rows.of(slot, tokens, list(parents), flags)
    return model.forward(cache, rows, np.arange(len(tokens)), fuzzy=fuzzy)


def test_what_one_cache_was_told_no_other_computes(model):
    counted = Counted(model)
    remembered = Remembered(counted)
    one, other = remembered.new_cache(1, 32), remembered.new_cache(2, 32)
    first = say(remembered, one, TEXT)
    assert counted.rows == len(TEXT)
    again = say(remembered, other, TEXT, slot=1)
    assert counted.rows == len(TEXT)
    assert torch.equal(first.logits, again.logits)
    assert first.cells == again.cells == len(TEXT) ** 2


def test_rows_without_keys_are_computed_when_a_forward_needs_them(model):
    counted = Counted(model)
    remembered, plain = Remembered(counted), model.new_cache(1, 32)
    say(remembered, remembered.new_cache(1, 32), TEXT)
    late = remembered.new_cache(1, 32)
    say(remembered, late, TEXT)
    counted.rows = 0
    new = say(remembered, late, [7, 8])
    assert counted.rows == len(TEXT) + 2
    say(model, plain, TEXT)
    expected = say(model, plain, [7, 8])
    assert torch.allclose(new.logits, expected.logits, atol=1e-4)
    assert new.cells == expected.cells
    counted.rows = 0
    say(remembered, late, [9])
    assert counted.rows == 1


def test_a_tree_s_accepted_path_stays_as_absent_or_computed_as_it_was(model):
    remembered, plain = Remembered(model), model.new_cache(1, 32)
    tree, parents = [11, 12, 13, 14], [9, 9, 10, 12]
    for cache in (remembered.new_cache(1, 32), remembered.new_cache(1, 32)):  # computed, then remembered
        say(remembered, cache, TEXT)
        say(remembered, cache, tree, parents)
        path = cache.match(0, np.array([*TEXT, 11, 13, 14]), 13)
        cache.keep(0, path)
        got = say(remembered, cache, [15, 2])
    say(model, plain, [*TEXT, 11, 13, 14])
    expected = say(model, plain, [15, 2])
    assert torch.allclose(got.logits, expected.logits, atol=1e-4)


def test_random_ways_through_a_text_say_what_the_model_says(model):
    rng = np.random.default_rng(5)
    remembered = Remembered(model)
    for _ in range(40):
        cache, plain = remembered.new_cache(1, 64), model.new_cache(1, 64)
        text: list[int] = []
        for _ in range(5):
            kept = int(rng.integers(0, len(text) + 1))
            for each in (cache, plain):
                each.keep(0, np.arange(kept))
            more = rng.integers(0, 3, size=int(rng.integers(1, 5))).tolist()
            text = text[:kept] + more
            got, expected = say(remembered, cache, more), say(model, plain, more)
            assert torch.allclose(got.logits, expected.logits, atol=1e-4)
            assert got.cells == expected.cells


def test_a_fuzzy_forward_finds_exact_keys_and_is_never_remembered(model):
    counted = Counted(model)
    remembered, plain = Remembered(counted), model.new_cache(1, 32)
    fuzzy = Fuzzy([range(model.depth)])
    say(remembered, remembered.new_cache(1, 32), TEXT)
    cache = remembered.new_cache(1, 32)
    say(remembered, cache, TEXT)  # known: no keys
    flags = [PROVISIONAL] * 2
    got = say(remembered, cache, [7, 8], flags=flags, fuzzy=fuzzy)
    say(model, plain, TEXT)
    expected = say(model, plain, [7, 8], flags=flags, fuzzy=fuzzy)
    assert torch.allclose(got.logits, expected.logits, atol=1e-4)
    exact = say(remembered, remembered.new_cache(1, 32), [*TEXT, 7, 8]).logits[-2:]
    assert not torch.allclose(exact, got.logits, atol=1e-3)


def test_rows_moved_without_keys_are_computed_where_they_went(model):
    remembered, plain = Remembered(model), model.new_cache(1, 32)
    say(remembered, remembered.new_cache(1, 32), [*TEXT, 7, 8])
    here, there = (remembered.new_cache(1, 32) for _ in range(2))
    say(remembered, here, [*TEXT, 7, 8])  # known: no keys
    say(remembered, there, TEXT)
    moved = np.arange(len(TEXT), len(TEXT) + 2)
    assert here.pick(0, moved) == b""
    there.plant(0, np.array([7, 8]), b"")
    say(model, plain, [*TEXT, 7, 8])
    got, expected = say(remembered, there, [4, 6]), say(model, plain, [4, 6])
    assert torch.allclose(got.logits, expected.logits, atol=1e-4)


def test_hidden_states_are_computed(model):
    remembered = Remembered(model)
    for _ in range(2):
        cache = remembered.new_cache(1, 32)
        rows = Rows.chain(0, TEXT, 0)
        out = remembered.forward(cache, rows, NOTHING, hidden=(-1,))
        assert out.hidden[-1].shape == (len(TEXT), model.shape.width)


def test_it_forgets_when_its_memory_is_full(model, monkeypatch):
    counted = Counted(model)
    remembered = Remembered(counted)
    monkeypatch.setattr("engine.model.remembered.BYTES", 4 * model.vocab_size * 12)
    say(remembered, remembered.new_cache(1, 32), TEXT)
    say(remembered, remembered.new_cache(1, 32), [8, 7, 6])
    counted.rows = 0
    say(remembered, remembered.new_cache(1, 32), TEXT)
    assert counted.rows == len(TEXT)
