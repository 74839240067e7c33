"""Rows and the slots that hold them.

A row is a token, the slot it belongs to and its parent: the row it comes after. Positions and masks follow from
the parents. A slot holds the rows of one sequence: a trunk (row i comes after row i - 1) and behind it tree rows,
each hanging on any earlier row. Everything here is numpy book-keeping; `engine.model.cache` adds the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


PAD = 1
"""Flag of a padding row: it costs what a row costs and is nobody's ancestor."""
PROVISIONAL = 2
"""Flag of a row that serves its own propose only and never counts as cached."""


@dataclass(frozen=True, slots=True)
class Rows:
    """T new rows, packed without padding. The rows of one slot stand next to each other."""

    tokens: np.ndarray
    """Token ids, (T,) int64."""
    slots: np.ndarray
    """Slot of each row, (T,) int64."""
    parents: np.ndarray
    """Row index inside the slot, (T,) int64; new rows count on from the cached ones; -1 is no parent."""
    flags: np.ndarray
    """PAD and PROVISIONAL bits, (T,) uint8."""
    vectors: Tensor | None = None
    """What a drafting head reads beside the tokens, (T, D): the target's hidden state of the token before."""

    @classmethod
    def of(
        cls,
        slot: int,
        tokens: Sequence[int] | np.ndarray,
        parents: Sequence[int] | np.ndarray,
        flags: Sequence[int] | np.ndarray | None = None,
        vectors: Tensor | None = None,
    ) -> Rows:
        """Return rows of one slot."""
        ids = np.array(tokens, dtype=np.int64)
        n = len(ids)
        bits = np.zeros(n, dtype=np.uint8) if flags is None else np.array(flags, dtype=np.uint8)
        above = np.array(parents, dtype=np.int64)
        if not n == len(above) == len(bits):
            raise ValueError(f"{n} tokens need as many parents and flags, not {len(above)} and {len(bits)}")
        return cls(ids, np.full(n, slot, dtype=np.int64), above, bits, vectors)

    @classmethod
    def chain(cls, slot: int, tokens: Sequence[int] | np.ndarray, start: int) -> Rows:
        """Return rows that follow each other after cached row start - 1, where start is the slot's length."""
        return cls.of(slot, tokens, np.arange(start - 1, start + len(tokens) - 1))

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Return one batch of the rows of several slots; without vectors, where there are several."""
        if len(parts) == 1:
            return parts[0]
        tokens, slots, parents, flags = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("tokens", "slots", "parents", "flags")
        )
        return cls(tokens, slots, parents, flags)

    def segments(self) -> list[tuple[int, int, int]]:
        """Return (slot, first row, end row) of each slot's rows.

        Raises:
            ValueError: The rows of one slot are not next to each other.
        """
        runs = [(slot, len(list(run))) for slot, run in groupby(self.slots.tolist())]
        ends = list(accumulate(count for _, count in runs))
        if len({slot for slot, _ in runs}) < len(runs):
            raise ValueError("the rows of one slot must stand next to each other")
        return [(slot, end - count, end) for (slot, count), end in zip(runs, ends, strict=True)]

    def __len__(self) -> int:
        return len(self.tokens)


class Slots:
    """The rows of several sequences, without their tensors.

    Args:
        slots: Number of sequences held at once.
        capacity: Rows a slot can hold, tree rows included.
        context: Positions the model knows; the capacity when not given.
    """

    def __init__(self, slots: int, capacity: int, context: int | None = None) -> None:
        self.slots = slots
        self.capacity = capacity
        self.context = capacity if context is None else context
        shape = (slots, capacity)
        self.tokens = np.zeros(shape, dtype=np.int64)
        self.parents = np.zeros(shape, dtype=np.int64)
        self.positions = np.zeros(shape, dtype=np.int64)
        self.flags = np.zeros(shape, dtype=np.uint8)
        self.absent = np.zeros(shape, dtype=bool)
        """Rows without keys and values (`engine.model.remembered`)."""
        self.sequences = list(range(slots))
        """The sequence that each slot holds."""
        self.aligned = 0
        """Rows that attention takes for cached in every slot: those behind a slot's own are padding. 0 for none."""
        self._extents = [_EMPTY] * slots

    def length(self, slot: int) -> int:
        """Return the number of rows held, tree rows included."""
        return self._extents[slot].length

    def chain(self, slot: int) -> int:
        """Return how many rows, from row 0 on, come each after the row before, so that their mask is causal."""
        return self._extents[slot].chain

    def append(self, rows: Rows) -> np.ndarray:
        """Add rows and return the row index each got inside its slot, (T,) int64. On an error nothing is added.

        Raises:
            UsageError: A slot would exceed its capacity, or a row the model's context.
            ValueError: A parent does not come before its row or is a padding row.
        """
        extents = {slot: self._write(slot, rows, first, end) for slot, first, end in rows.segments()}
        index = [np.arange(self._extents[slot].length, extent.length) for slot, extent in extents.items()]
        for slot, extent in extents.items():
            self._extents[slot] = extent
        return index[0] if len(index) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *index])

    def truncate(self, slot: int, length: int) -> None:
        """Forget all rows from `length` on."""
        self._extents[slot] = _Extent(*(min(length, n) for n in self._extents[slot]))

    def reset(self, slot: int, sequence: int | None = None) -> None:
        """Forget all rows; from now on the slot holds this sequence, by default the one of its own number."""
        self._extents[slot] = _EMPTY
        self.sequences[slot] = slot if sequence is None else sequence

    def align(self, length: int, more: int = 0) -> None:  # noqa: ARG002 - tensors need it
        """Let attention take each slot's cached rows for that many: it reads the padding behind them, and masks it.

        Args:
            length: At least what every slot of the next forward holds; 0 ends it.
            more: New rows per slot that the next forward brings at most.
        """
        self.aligned = length

    def read(self, slot: int, count: int) -> int:
        """Return how many rows attention reads for the last `count` rows of a slot, themselves included."""
        return max(self._extents[slot].length, self.aligned + count)

    def match(self, slot: int, prefix: np.ndarray, limit: int) -> np.ndarray:
        """Return the rows of the longest path from the root whose tokens begin `prefix[:limit]`, (n,) int64.

        Padding and provisional rows are not matched, nor is anything behind them.
        """
        length, _, trunk = self._extents[slot]
        limit = min(limit, len(prefix))
        n = min(trunk, limit)
        differs = self.tokens[slot, :n] != prefix[:n]
        n = int(differs.argmax()) if differs.any() else n
        last = self._match_tree(slot, prefix[:limit], n, trunk) if trunk < length and n < limit else n - 1
        return np.arange(n) if last < trunk else self._rows_to(slot, last)

    def keep(self, slot: int, path: np.ndarray) -> None:
        """Make the rows of a path from the root (as `match` returns it) the trunk and drop all others."""
        n = len(path)
        moved = n > 0 and int(path[-1]) != n - 1  # indices grow along a path, so its last one tells
        if moved:
            self.tokens[slot, :n] = self.tokens[slot, path]
            self.flags[slot, :n] = self.flags[slot, path]
            self.absent[slot, :n] = self.absent[slot, path]
            self.parents[slot, :n] = np.arange(-1, n - 1)
            self.positions[slot, :n] = np.arange(n)
        trunk = _run(self.flags[slot, :n] == 0) if moved else min(n, self._extents[slot].trunk)
        self._extents[slot] = _Extent(n, n, trunk)

    def pick(self, slot: int, path: np.ndarray) -> bytes:  # noqa: ARG002 - tokens are all there is
        """Return the keys and values of rows, (n,) int64, as bytes; nothing where some have none."""
        return b""

    def plant(self, slot: int, tokens: np.ndarray, data: bytes) -> None:
        """Add rows that another copy of the model computed, one after the other behind the slot's length.

        Args:
            slot: Holds a chain.
            tokens: Ids of the N new rows, (N,) int64.
            data: What `pick` returned there.
        """
        first = self.length(slot)
        self.append(Rows.chain(slot, tokens, first))
        self.absent[slot, first : first + len(tokens)] = not data

    def path(self, slot: int, row: int) -> np.ndarray:
        """Return the token ids from the root to a row, (position + 1,) int64."""
        return self.tokens[slot, self._rows_to(slot, row)]

    def mask(self, slot: int, start: int) -> np.ndarray:
        """Return which rows each row from `start` on descends from, itself included: (length - start, length) bool."""
        length, chain, _ = self._extents[slot]
        rows = np.arange(start, length)
        mask = np.zeros((length - start, length), dtype=bool)
        current = rows
        while (in_tree := current >= chain).any():
            mask[rows[in_tree] - start, current[in_tree]] = True
            current = np.where(in_tree, self.parents[slot, current], current)
        mask[:, :chain] = np.arange(chain) <= current[:, None]
        return mask

    def _write(self, slot: int, rows: Rows, first: int, end: int) -> _Extent:
        """Write rows behind the slot's length; they count once the returned extent is stored."""
        start, chain, trunk = self._extents[slot]
        stop = start + end - first
        if stop > self.capacity:
            raise UsageError(
                f"slot {slot} would hold {stop} rows; its capacity is {self.capacity} (the model's context is "
                f"{self.context} positions): shorten the prompt or lower max_new_tokens"
            )
        parents, flags = rows.parents[first:end], rows.flags[first:end]
        self.tokens[slot, start:stop] = rows.tokens[first:end]
        self.parents[slot, start:stop] = parents
        self.flags[slot, start:stop] = flags
        self.absent[slot, start:stop] = False
        index = np.arange(start, stop)
        plain = not any(flags.tolist()) and parents.tolist() == list(range(start - 1, stop - 1))
        if plain and trunk == start:
            self.positions[slot, start:stop] = index
            chain, trunk, deepest = stop, stop, stop - 1
        else:
            self._check_parents(slot, index, parents)
            linked = _run(parents == index - 1)
            if trunk == start:
                trunk += min(linked, _run(flags == 0))
            if chain == start:
                chain += linked
            deepest = self._place(slot, start, parents)
        if deepest >= self.context:
            raise UsageError(
                f"slot {slot} would reach position {deepest}; the model's context is {self.context} positions "
                f"(capacity {self.capacity} rows): shorten the prompt or lower max_new_tokens"
            )
        return _Extent(stop, chain, trunk)

    def _check_parents(self, slot: int, index: np.ndarray, parents: np.ndarray) -> None:
        wrong = (parents < -1) | (parents >= index)
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"row {index[row]} has parent {parents[row]}; a parent comes before its row, or is -1"
            )
        padded = (self.flags[slot, parents] & PAD != 0) & (parents >= 0)
        if padded.any():
            row = int(padded.argmax())
            raise ValueError(
                f"row {index[row]} has parent {parents[row]}, a padding row: these have no children"
            )

    def _place(self, slot: int, start: int, parents: np.ndarray) -> int:
        """Write the positions of the rows from `start` on and return the largest."""
        positions = self.positions[slot]
        for row, parent in enumerate(parents.tolist(), start):
            positions[row] = positions[parent] + 1 if parent >= 0 else 0
        return int(positions[start : start + len(parents)].max())

    def _match_tree(self, slot: int, prefix: np.ndarray, matched: int, trunk: int) -> int:
        """Return the last row of the longest match, when the trunk's first `matched` rows match; -1 for none."""
        length = self._extents[slot].length
        positions = self.positions[slot, trunk:length]
        fits = (self.flags[slot, trunk:length] == 0) & (positions < len(prefix))
        fits &= prefix[np.minimum(positions, len(prefix) - 1)] == self.tokens[slot, trunk:length]
        best, depth, alive = matched - 1, matched, set[int]()
        for row in (np.flatnonzero(fits) + trunk).tolist():
            parent = int(self.parents[slot, row])
            if parent < matched or parent in alive:
                alive.add(row)
                if self.positions[slot, row] >= depth:
                    best, depth = row, int(self.positions[slot, row]) + 1
        return best

    def _rows_to(self, slot: int, row: int) -> np.ndarray:
        """Return the rows of the path from the root to a row."""
        chain = self._extents[slot].chain
        tail: list[int] = []
        while row >= chain:
            tail.append(row)
            row = int(self.parents[slot, row])
        return np.concatenate([np.arange(row + 1), np.array(tail[::-1], dtype=np.int64)])


class _Extent(NamedTuple):
    length: int
    """Rows held."""
    chain: int
    """Rows, from row 0 on, that come each after the row before."""
    trunk: int
    """The same, without any flag."""


_EMPTY = _Extent(0, 0, 0)


def _run(condition: np.ndarray) -> int:
    """Return how many leading elements are true."""
    return len(condition) if condition.all() else int(condition.argmin())
