"""`Slots` against a naive model, a list of rows; and a memoized model against the model itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.checkpoints.loader import load
from specscope.engine.errors import UsageError
from specscope.engine.model.memoized import MemoizedModel
from specscope.engine.model.slots import PAD, PROVISIONAL, Rows, Slots
from tests.engine.model import tiny

CAPACITY = 24
TOKENS = 3
"""Size of the vocabulary: small, so that many branches have equal tokens."""


class NaiveSlot:
    """One slot as a list of rows."""

    def __init__(self):
        self.rows: list[tuple[int, int, int]] = []

    def path(self, row):
        path = []
        while row >= 0:
            path.append(row)
            row = self.rows[row][1]
        return path[::-1]

    def tokens(self, row):
        return [self.rows[r][0] for r in self.path(row)]

    def longest_match(self, prefix):
        best = 0
        for row in range(len(self.rows)):
            path = self.path(row)
            clean = all(self.rows[r][2] == 0 for r in path)
            if clean and self.tokens(row) == list(prefix[: len(path)]):
                best = max(best, len(path))
        return best

    def keep(self, path):
        self.rows = [(self.rows[r][0], i - 1, self.rows[r][2]) for i, r in enumerate(path)]


def assert_equal(slots, slot, naive):
    n = len(naive.rows)
    assert slots.length(slot) == n
    for row in range(n):
        path = naive.path(row)
        assert slots.tokens_to(slot, row).tolist() == naive.tokens(row)
        assert slots.positions[slot, row] == len(path) - 1
        assert slots.parents[slot, row] == naive.rows[row][1]
    if n:
        want = np.zeros((n, n), dtype=bool)
        for row in range(n):
            want[row, naive.path(row)] = True
        for start in {0, n // 2, n - 1}:
            np.testing.assert_array_equal(slots.ancestor_mask(slot, start), want[start:])


@settings(max_examples=80)
@given(st.data())
def test_random_operations_agree_with_a_naive_slot(data):
    slots, naive_slots = Slots(2, CAPACITY), [NaiveSlot(), NaiveSlot()]
    for _ in range(data.draw(st.integers(1, 6), label="steps")):
        slot = data.draw(st.integers(0, 1), label="slot")
        naive, length = naive_slots[slot], len(naive_slots[slot].rows)
        room = CAPACITY - length
        n = data.draw(st.integers(1, min(6, room)), label="n") if room else 0
        chain = data.draw(st.booleans(), label="chain")
        parents, flags = [], []
        for row in range(length, length + n):
            pads = [r for r in range(length) if naive.rows[r][2] & PAD]
            pads += [length + i for i, flag in enumerate(flags) if flag & PAD]
            allowed = [r for r in range(-1, row) if r not in pads]
            parents.append(row - 1 if chain and row - 1 in allowed else data.draw(st.sampled_from(allowed)))
            flags.append(data.draw(st.sampled_from([0, 0, 0, 0, PAD, PROVISIONAL])))
        tokens = data.draw(st.lists(st.integers(0, TOKENS - 1), min_size=n, max_size=n), label="tokens")
        if n:
            indices = slots.append(Rows.of(slot, tokens, parents, flags))
            assert indices.tolist() == list(range(length, length + n))
            naive.rows += list(zip(tokens, parents, flags, strict=True))
        assert_equal(slots, slot, naive)
        prefix = np.array(data.draw(st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=12)))
        limit = data.draw(st.integers(0, 13), label="limit")
        path = slots.match(slot, prefix, limit)
        assert len(path) == naive.longest_match(prefix[:limit])
        if len(path):
            assert naive.path(int(path[-1])) == path.tolist()
            assert naive.tokens(int(path[-1])) == prefix[: len(path)].tolist()
            assert all(naive.rows[r][2] == 0 for r in path)
        if data.draw(st.booleans(), label="keep"):
            slots.keep(slot, path)
            naive.keep(path.tolist())
            assert_equal(slots, slot, naive)


BRANCH = [Rows.chain(0, [5, 6, 7, 8], 0), Rows.of(0, [7, 9, 1], [1, 4, 5])]
"""5 6 7 8 is committed; the branch is 5 6 7 9 1."""
WITH_PROVISIONAL = Rows.of(0, [1, 2, 3], [-1, 0, 1], [0, PROVISIONAL, 0])


@pytest.mark.parametrize(
    ("rows", "prefix", "limit", "path"),
    [
        (BRANCH, [5, 6, 7, 9, 1, 3], 6, [0, 1, 4, 5, 6]),
        (BRANCH, [5, 6, 7, 8, 1], 5, [0, 1, 2, 3]),
        (BRANCH, [5, 6, 7, 9, 1, 3], 3, [0, 1, 2]),
        (BRANCH, [4, 6], 2, []),
        ([WITH_PROVISIONAL], [1, 2, 3], 3, [0]),
        ([WITH_PROVISIONAL, Rows.of(0, [2, 3], [0, 3], [0, PAD])], [1, 2, 3], 3, [0, 3]),
    ],
)
def test_a_match_follows_the_longest_branch_up_to_padding_and_provisional_rows(rows, prefix, limit, path):
    slots = Slots(1, 16)
    for each in rows:
        slots.append(each)
    assert slots.match(0, np.array(prefix), limit).tolist() == path


def test_rows_beyond_the_capacity_are_refused_and_none_is_added():
    slots = Slots(2, 4, context=100)
    assert slots.append(Rows.join([Rows.chain(1, [1, 2], 0), Rows.chain(0, [4], 0)])).tolist() == [0, 1, 0]
    slots.reset(0)
    rows = Rows.join([Rows.chain(0, [1], 0), Rows.chain(1, [1, 2, 3], 2)])
    with pytest.raises(UsageError, match=r"slot 1 would hold 5 rows; its capacity is 4 .*context is 100"):
        slots.append(rows)
    assert [slots.length(0), slots.length(1)] == [0, 2]


def test_the_context_limits_positions_not_rows():
    slots = Slots(1, 10, context=3)
    slots.append(Rows.of(0, [1, 2, 3, 4, 5], [-1, 0, 1, 1, 1]))
    assert slots.length(0) == 5
    with pytest.raises(UsageError, match="position 3; the model's context is 3"):
        slots.append(Rows.of(0, [6], [2]))
    with pytest.raises(UsageError, match="position 3; the model's context is 3"):
        Slots(1, 10, context=3).append(Rows.chain(0, [1, 2, 3, 4], 0))
    assert slots.length(0) == 5


@pytest.mark.parametrize(
    ("parents", "flags", "message"),
    [
        *(([parent], None, f"row 2 has parent {parent}; it must be an earlier row") for parent in (2, 3, -2)),
        ([1], None, "row 2 has parent 1, a padding row"),
        ([0, 2], [PAD, 0], "row 3 has parent 2, a padding row"),
    ],
)
def test_a_parent_must_be_an_earlier_row_that_is_no_padding(parents, flags, message):
    slots = Slots(1, 8)
    slots.append(Rows.of(0, [1, 2], [-1, 0], [0, PAD]))
    with pytest.raises(ValueError, match=message):
        slots.append(Rows.of(0, range(len(parents)), parents, flags))
    assert slots.length(0) == 2


def test_rows_of_one_slot_must_be_contiguous_and_complete():
    rows = Rows.join([Rows.chain(0, [1], 0), Rows.chain(1, [1], 0), Rows.chain(0, [2], 1)])
    with pytest.raises(ValueError, match="must be contiguous"):
        Slots(2, 8).append(rows)
    with pytest.raises(ValueError, match="2 tokens need as many parents"):
        Rows.of(0, [1, 2], [-1])


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


def test_random_texts_give_the_model_s_logits(model):
    rng, memoized = np.random.default_rng(5), MemoizedModel(model)
    for _ in range(25):
        cache, plain, text = memoized.new_cache(1, 64), model.new_cache(1, 64), list[int]()
        for _ in range(5):
            kept = int(rng.integers(0, len(text) + 1))
            for slots in (cache, plain):
                slots.keep(0, np.arange(kept))
            more = rng.integers(0, 3, size=int(rng.integers(1, 5))).tolist()
            text = text[:kept] + more
            got, expected = extend(memoized, cache, more), extend(model, plain, more)
            assert torch.allclose(got.logits, expected.logits, atol=1e-4)
            assert got.cells == expected.cells


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
