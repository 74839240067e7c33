"""`Slots` compared with a naive model: a list of (token, parent, flag) per row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.engine.errors import UsageError
from specscope.engine.model.slots import PAD, PROVISIONAL, Rows, Slots

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


def test_provisional_rows_do_not_match_after_keep():
    for path in ([0, 2, 3], [0, 1]):
        slots = Slots(1, 16)
        slots.append(Rows.of(0, [1, 2, 2, 3], [-1, 0, 0, 2], [0, PROVISIONAL, PROVISIONAL, 0]))
        slots.keep(0, np.array(path))
        assert slots.length(0) == len(path)
        assert slots.match(0, np.array([1, 2, 3]), 3).tolist() == [0]


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
