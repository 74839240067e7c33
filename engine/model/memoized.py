"""A language model that memoizes its logits, for virtual runs.

In a virtual run many workers share one model, and all methods decode the same text. A profile gives
the duration of each forward, so the same rows need not be computed again for each worker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from specscope.engine.model.fuzzy import Fuzzy
from specscope.engine.model.language import LanguageModel, Output, never
from specscope.engine.model.slots import Rows, Slots
from specscope.engine.model.stage import StageIO

BYTES = 1 << 28
"""Most bytes of memoized logits; at this size all are dropped."""


class MemoizedModel:
    """A `specscope.engine.model.language.LanguageModel` that memoizes its logits.

    Logits depend only on the tokens up to their row. If all wanted logits are memoized, the rows
    enter the cache without keys and values (`Slots.missing_kv`); a later forward computes these if
    it needs them. A forward that returns hidden states is always computed. So is every forward on a
    cache that a fuzzy forward has used: its keys then depend on more than its tokens.

    Args:
        model: The model to memoize; it must have no sliding windows.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.name = model.name
        self.vocab_size = model.vocab_size
        self.context = model.context
        self.depth = model.depth
        self._memo: dict[bytes, torch.Tensor] = {}
        self._fuzzy_caches: weakref.WeakSet[Slots] = weakref.WeakSet()

    def new_cache(self, slots: int, capacity: int) -> Slots:
        return self.model.new_cache(slots, capacity)

    def forward(
        self,
        cache: Any,
        rows: Rows,
        want: np.ndarray,
        hidden: tuple[int, ...] = (),
        fuzzy: Fuzzy | None = None,
        stage_io: StageIO | None = None,  # noqa: ARG002 - each stage runs the whole model
        stopped: Callable[[], bool] = never,
    ) -> Output:
        if fuzzy is not None:
            self._fuzzy_caches.add(cache)
        exact = cache not in self._fuzzy_caches
        if exact and not hidden and (logits := self._recall(cache, rows, want)) is not None:
            return Output(logits, {}, _cells(cache, rows))
        if (missing := _take_missing(cache, rows)) is not None:
            self.model.forward(cache, missing, np.empty(0, dtype=np.int64))
        out = self.model.forward(cache, rows, want, hidden, fuzzy, stopped=stopped)
        if exact:
            self._store(cache, rows, want, out.logits)
        return out

    def _recall(self, cache: Slots, rows: Rows, want: np.ndarray) -> torch.Tensor | None:
        """Append the rows and return their logits, (W, V); None, and no rows, if some miss."""
        lengths = [(slot, cache.length(slot)) for slot, _, _ in rows.segments()]
        indices = cache.append(rows)
        keys = [_key(cache, rows, indices, row) for row in want.tolist()]
        if all(key in self._memo for key in keys):
            cache.missing_kv[rows.slots, indices] = True
            logits = [self._memo[key] for key in keys]
            return torch.stack(logits) if logits else torch.empty((0, self.vocab_size))
        for slot, length in lengths:
            cache.truncate(slot, length)
        return None

    def _store(self, cache: Slots, rows: Rows, want: np.ndarray, logits: torch.Tensor) -> None:
        if (len(self._memo) + len(want)) * 4 * self.vocab_size > BYTES:
            self._memo.clear()
        indices = np.empty(len(rows), dtype=np.int64)
        for slot, first, end in rows.segments():
            indices[first:end] = np.arange(end - first) + cache.length(slot) - (end - first)
        for row, line in zip(want.tolist(), logits, strict=True):
            self._memo[_key(cache, rows, indices, row)] = line.clone()


def _key(cache: Slots, rows: Rows, indices: np.ndarray, row: int) -> bytes:
    tokens = cache.tokens_to(int(rows.slots[row]), int(indices[row]))
    return blake2b(tokens.tobytes(), digest_size=16).digest()


def _cells(cache: Slots, rows: Rows) -> int:
    counts = [(slot, end - first) for slot, first, end in rows.segments()]
    return sum(count * cache.rows_read(slot, count) for slot, count in counts)


def _take_missing(cache: Slots, rows: Rows) -> Rows | None:
    """Remove the rows without keys and values from the slots of `rows`; return them, or None."""
    parts = list[Rows]()
    for slot, _, _ in rows.segments():
        length = cache.length(slot)
        missing = cache.missing_kv[slot, :length]
        if missing.any():
            start = int(missing.argmax())  # all rows after it lack them, too
            tokens, parents, flags = (
                x[slot, start:length] for x in (cache.tokens, cache.parents, cache.flags)
            )
            parts.append(Rows.of(slot, tokens, parents, flags))
            cache.truncate(slot, start)
    return Rows.join(parts) if parts else None
