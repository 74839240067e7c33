"""Rows and the cache slots that hold them.

A row is a token with its slot and its parent, the preceding row of its sequence. Parents determine
positions and attention masks. A slot holds the rows of one sequence: first the committed
prefix, in which row i - 1 is the parent of row i, then tree rows, whose parent may be any earlier
row. This module keeps the books in numpy; `specscope.engine.model.cache` adds keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specscope.engine.errors import UsageError

PAD = 1
"""Flag of a padding row: computed like any row, but never the parent of another."""
_STRIDE = 7919
"""Distance of the tokens of timed forwards: a prime, so that few vocabularies repeat any."""
PROVISIONAL = 2
"""Flag of a row that serves one draft only: `Slots.match` never returns it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """T new rows, packed without padding. The rows of one slot are contiguous."""

    tokens: np.ndarray
    """Token ids, (T,) int64."""
    slots: np.ndarray
    """Slot of each row, (T,) int64."""
    parents: np.ndarray
    """Parent of each row as an index inside its slot, (T,) int64; -1 for a root.

    The indices of new rows continue the cached rows' indices."""
    flags: np.ndarray
    """PAD and PROVISIONAL bits, (T,) uint8."""
    vectors: Tensor | None = None
    """For a drafting head: the target's hidden state at the preceding token, (T, D)."""

    @classmethod
    def of(
        cls,
        slot: int,
        tokens: Sequence[int] | np.ndarray,
        parents: Sequence[int] | np.ndarray,
        flags: Sequence[int] | np.ndarray | None = None,
        vectors: Tensor | None = None,
    ) -> Rows:
        ids = np.array(tokens, dtype=np.int64)
        n = len(ids)
        bits = np.zeros(n, dtype=np.uint8) if flags is None else np.array(flags, dtype=np.uint8)
        indices = np.array(parents, dtype=np.int64)
        if not n == len(indices) == len(bits):
            raise ValueError(f"{n} tokens need as many parents and flags, not {len(indices)} and {len(bits)}")
        return cls(ids, np.full(n, slot, dtype=np.int64), indices, bits, vectors)

    @classmethod
    def chain(cls, slot: int, tokens: Sequence[int] | np.ndarray, start: int) -> Rows:
        """Return a chain of rows after cached row start - 1; start is the slot's length."""
        return cls.of(slot, tokens, np.arange(start - 1, start + len(tokens) - 1))

    @classmethod
    def timed(cls, slot: int, count: int, start: int, vocab: int) -> Rows:
        """Return a chain of different tokens, to time a forward.

        Equal ones would choose the same experts of a mixture, as no text does.
        """
        return cls.chain(slot, (start + np.arange(count)) * _STRIDE % vocab, start)

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Concatenate the rows of several slots; all of them have vectors, or none."""
        if len(parts) == 1:
            return parts[0]
        tokens, slots, parents, flags = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("tokens", "slots", "parents", "flags")
        )
        vectors = [part.vectors for part in parts if part.vectors is not None]
        return cls(tokens, slots, parents, flags, torch.cat(vectors) if vectors else None)

    def padded(self, count: int) -> Rows:
        """Return the rows of one slot, at least one, with padding rows: `count` in all.

        A padding row has the position of the last row.
        """
        if count == len(self):
            return self
        index = np.arange(count)
        last = np.minimum(index, len(self) - 1)
        flags = np.where(index < len(self), self.flags[last], PAD).astype(np.uint8)
        return Rows(self.tokens[last], self.slots[last], self.parents[last], flags)

    def segments(self) -> list[tuple[int, int, int]]:
        """Return (slot, first, end) for each slot; its rows are self[first:end], contiguous."""
        runs = [(slot, len(list(run))) for slot, run in groupby(self.slots.tolist())]
        ends = list(accumulate(count for _, count in runs))
        if len({slot for slot, _ in runs}) < len(runs):
            raise ValueError("the rows of one slot must be contiguous")
        return [(slot, end - count, end) for (slot, count), end in zip(runs, ends, strict=True)]

    def __len__(self) -> int:
        return len(self.tokens)


class Slots:
    """The rows of several sequences, without keys and values."""

    def __init__(self, slots: int, capacity: int, context: int | None = None) -> None:
        self.slots = slots
        self.capacity = capacity
        self.context = capacity if context is None else context
        shape = (slots, capacity)
        self.tokens = np.zeros(shape, dtype=np.int64)
        self.parents = np.zeros(shape, dtype=np.int64)
        self.positions = np.zeros(shape, dtype=np.int64)
        self.flags = np.zeros(shape, dtype=np.uint8)
        self.missing_kv = np.zeros(shape, dtype=bool)
        """Rows whose keys and values were not computed (`specscope.engine.model.memoized`)."""
        self.sequences = list(range(slots))
        """The number of the sequence in each slot."""
        self.seed = 0
        """The run's seed, for models that draw their tokens (`engine.simulate.oracle`)."""
        self.kind, self.deeper = "", False
        """The kind of the present forward's stamp, and whether it is a draft's next level; for the
        same models."""
        self.padded_length = 0
        """Cached rows per slot that attention reads, padding included; 0 without padding."""
        self._extents = [_EMPTY] * slots
        self._most = [0] * slots

    def length(self, slot: int) -> int:
        return self._extents[slot].length

    def most_rows(self, slot: int) -> int:
        """Return the most rows that a sequence left in a slot, or that it holds now."""
        return max(self._most[slot], self._extents[slot].length)

    def chain_length(self, slot: int) -> int:
        """Return the length of the slot's leading chain, whose attention mask is causal."""
        return self._extents[slot].chain

    def append(self, rows: Rows) -> np.ndarray:
        """Add rows; on an error none is added. Return each row's index in its slot, (T,) int64.

        Raises:
            UsageError: A slot would exceed its capacity, or a row the model's context.
            ValueError: A parent does not precede its row or is a padding row.
        """
        extents = {slot: self._write(slot, rows, first, end) for slot, first, end in rows.segments()}
        index = [np.arange(self._extents[slot].length, extent.length) for slot, extent in extents.items()]
        for slot, extent in extents.items():
            self._extents[slot] = extent
        return index[0] if len(index) == 1 else np.concatenate([np.empty(0, dtype=np.int64), *index])

    def truncate(self, slot: int, length: int) -> None:
        self._extents[slot] = _Extent(*(min(length, n) for n in self._extents[slot]))

    def reset(self, slot: int, sequence: int | None = None) -> None:
        """Drop all rows and assign the slot to `sequence`; default: the slot's number."""
        self._most[slot] = self.most_rows(slot)
        self._extents[slot] = _EMPTY
        self.sequences[slot] = slot if sequence is None else sequence

    def pad(self, length: int, new_rows: int = 0) -> None:  # noqa: ARG002 - tensors need it
        """Let attention read `length` cached rows of every slot, and mask those that are padding.

        `length` is at least the length of every slot in the next forward, which has at most
        `new_rows` new rows per slot; 0 turns padding off.
        """
        self.padded_length = length

    def rows_read(self, slot: int, count: int) -> int:
        """Return how many rows attention reads for a slot's last `count` rows, including these."""
        return max(self._extents[slot].length, self.padded_length + count)

    def match(self, slot: int, prefix: np.ndarray, limit: int) -> np.ndarray:
        """Return the row indices, (n,) int64, of the longest path that matches `prefix[:limit]`.

        It begins at the root. Padding and provisional rows, and rows after them, never match.
        """
        length, _, committed = self._extents[slot]
        limit = min(limit, len(prefix))
        n = min(committed, limit)
        differs = self.tokens[slot, :n] != prefix[:n]
        n = int(differs.argmax()) if differs.any() else n
        last = (
            self._match_tree(slot, prefix[:limit], n, committed)
            if committed < length and n < limit
            else n - 1
        )
        return np.arange(n) if last < committed else self._rows_to(slot, last)

    def keep(self, slot: int, path: np.ndarray) -> None:
        """Make a path, as `match` returns it, the committed prefix; drop all other rows."""
        n = len(path)
        moved = n > 0 and int(path[-1]) != n - 1  # indices grow along a path
        if moved:
            self.tokens[slot, :n] = self.tokens[slot, path]
            self.flags[slot, :n] = self.flags[slot, path]
            self.missing_kv[slot, :n] = self.missing_kv[slot, path]
            self.parents[slot, :n] = np.arange(-1, n - 1)
            self.positions[slot, :n] = np.arange(n)
        committed = _leading(self.flags[slot, :n] == 0) if moved else min(n, self._extents[slot].committed)
        self._extents[slot] = _Extent(n, n, committed)

    def export_kv(self, slot: int, path: np.ndarray) -> bytes:  # noqa: ARG002 - no tensors here
        """Return keys and values of the rows `path`, (n,) int64, as bytes.

        Empty where one of the rows has no keys and values.
        """
        return b""

    def import_kv(self, slot: int, tokens: np.ndarray, data: bytes) -> None:
        """Append a chain of rows, (N,) ids, and what another copy's `export_kv` returned."""
        first = self.length(slot)
        self.append(Rows.chain(slot, tokens, first))
        self.missing_kv[slot, first : first + len(tokens)] = not data

    def tokens_to(self, slot: int, row: int) -> np.ndarray:
        """Return the token ids from the root to a row, (position + 1,) int64."""
        return self.tokens[slot, self._rows_to(slot, row)]

    def ancestor_mask(self, slot: int, start: int) -> np.ndarray:
        """Return mask[i, j]: whether row start + i is row j or descends from it.

        Shape (length - start, length), bool.
        """
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
        start, chain, committed = self._extents[slot]
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
        self.missing_kv[slot, start:stop] = False
        index = np.arange(start, stop)
        plain = not any(flags.tolist()) and parents.tolist() == list(range(start - 1, stop - 1))
        if plain and committed == start:
            self.positions[slot, start:stop] = index
            chain, committed, deepest = stop, stop, stop - 1
        else:
            self._check_parents(slot, index, parents)
            chained = _leading(parents == index - 1)
            if committed == start:
                committed += min(chained, _leading(flags == 0))
            if chain == start:
                chain += chained
            deepest = self._place(slot, start, parents)
        if deepest >= self.context:
            raise UsageError(
                f"slot {slot} would reach position {deepest}; the model's context is {self.context} positions "
                f"(capacity {self.capacity} rows): shorten the prompt or lower max_new_tokens"
            )
        return _Extent(stop, chain, committed)

    def _check_parents(self, slot: int, index: np.ndarray, parents: np.ndarray) -> None:
        invalid = (parents < -1) | (parents >= index)
        if invalid.any():
            row = int(invalid.argmax())
            raise ValueError(f"row {index[row]} has parent {parents[row]}; it must be an earlier row, or -1")
        padding = (self.flags[slot, parents] & PAD != 0) & (parents >= 0)
        if padding.any():
            row = int(padding.argmax())
            raise ValueError(f"row {index[row]} has parent {parents[row]}, a padding row; choose another")

    def _place(self, slot: int, start: int, parents: np.ndarray) -> int:
        """Write the positions of the rows from `start` on; return the largest."""
        positions = self.positions[slot]
        for row, parent in enumerate(parents.tolist(), start):
            positions[row] = positions[parent] + 1 if parent >= 0 else 0
        return int(positions[start : start + len(parents)].max())

    def _match_tree(self, slot: int, prefix: np.ndarray, matched: int, committed: int) -> int:
        """Return the last row of the longest match, -1 for none; `matched` committed rows match."""
        length = self._extents[slot].length
        positions = self.positions[slot, committed:length]
        candidates = (self.flags[slot, committed:length] == 0) & (positions < len(prefix))
        candidates &= prefix[np.minimum(positions, len(prefix) - 1)] == self.tokens[slot, committed:length]
        best, depth, on_path = matched - 1, matched, set[int]()
        for row in (np.flatnonzero(candidates) + committed).tolist():
            parent = int(self.parents[slot, row])
            if parent < matched or parent in on_path:
                on_path.add(row)
                if self.positions[slot, row] >= depth:
                    best, depth = row, int(self.positions[slot, row]) + 1
        return best

    def _rows_to(self, slot: int, row: int) -> np.ndarray:
        """Return the row indices of the path from the root to a row, (position + 1,) int64."""
        chain = self._extents[slot].chain
        tail: list[int] = []
        while row >= chain:
            tail.append(row)
            row = int(self.parents[slot, row])
        return np.concatenate([np.arange(row + 1), np.array(tail[::-1], dtype=np.int64)])


class _Extent(NamedTuple):
    length: int
    chain: int
    committed: int
    """Length of the leading chain of rows without flags."""


_EMPTY = _Extent(0, 0, 0)


def _leading(condition: np.ndarray) -> int:
    """Return how many leading elements are true."""
    return len(condition) if condition.all() else int(condition.argmin())
