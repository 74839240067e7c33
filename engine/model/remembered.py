"""A model that remembers its logits: what was once forwarded after some tokens is not computed again.

For virtual runs. There many workers hold one model, and all methods decode one text; what their forwards take is
the profile's to say, so the same rows need not be multiplied out for each of them.
"""

from __future__ import annotations

import weakref
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engine.model.language import Output
from engine.model.slots import Rows

if TYPE_CHECKING:
    from engine.model.fuzzy import Fuzzy
    from engine.model.language import LanguageModel
    from engine.model.slots import Slots
    from engine.model.stage import Border

BYTES = 1 << 28
"""Logits are kept up to this size; then all are forgotten."""


class Remembered:
    """A language model with a memory; see `engine.model.slots.LanguageModel`.

    Logits are a function of the tokens before them alone. Rows whose logits are known are entered into the cache
    without keys and values (`Slots.absent`); a forward that needs those computes them first. Forwards that ask for
    hidden states are computed, and so is all that a cache does after a fuzzy forward: its keys are no longer those of its tokens.

    Args:
        model: What is asked where nothing is known. Its layers must see all rows: no sliding windows.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.name = model.name
        self.vocab_size = model.vocab_size
        self.context = model.context
        self.depth = model.depth
        self._known: dict[bytes, torch.Tensor] = {}
        self._blurred: weakref.WeakSet[Slots] = weakref.WeakSet()

    def new_cache(self, slots: int, capacity: int) -> Slots:
        """Return an empty cache of the model."""
        return self.model.new_cache(slots, capacity)

    def forward(
        self,
        cache: Any,
        rows: Rows,
        want: np.ndarray,
        hidden: tuple[int, ...] = (),
        fuzzy: Fuzzy | None = None,
        border: Border | None = None,  # noqa: ARG002 - each stage asks the whole model
    ) -> Output:
        """Return what is known, or run the rows; see `LanguageModel.forward`."""
        if fuzzy is not None:
            self._blurred.add(cache)
        exact = cache not in self._blurred
        if exact and not hidden and (logits := self._recall(cache, rows, want)) is not None:
            return Output(logits, {}, _cells(cache, rows))
        if (missing := _missing(cache, rows)) is not None:
            self.model.forward(cache, missing, np.empty(0, dtype=np.int64))
        out = self.model.forward(cache, rows, want, hidden, fuzzy)
        if exact:
            self._remember(cache, rows, want, out.logits)
        return out

    def _recall(self, cache: Slots, rows: Rows, want: np.ndarray) -> torch.Tensor | None:
        """Enter the rows and return the logits wanted; enter nothing and return None where some are not known."""
        before = [(slot, cache.length(slot)) for slot, _, _ in rows.segments()]
        index = cache.append(rows)
        found = [self._known.get(_key(cache, rows, index, row)) for row in want.tolist()]
        known = [line for line in found if line is not None]
        if len(known) == len(found):
            cache.absent[rows.slots, index] = True
            return torch.stack(known) if known else torch.empty((0, self.vocab_size))
        for slot, length in before:
            cache.truncate(slot, length)
        return None

    def _remember(self, cache: Slots, rows: Rows, want: np.ndarray, logits: torch.Tensor) -> None:
        if (len(self._known) + len(want)) * 4 * self.vocab_size > BYTES:
            self._known.clear()
        index = np.empty(len(rows), dtype=np.int64)
        for slot, first, end in rows.segments():
            index[first:end] = np.arange(end - first) + cache.length(slot) - (end - first)
        for row, line in zip(want.tolist(), logits, strict=True):
            self._known[_key(cache, rows, index, row)] = line.clone()


def _key(cache: Slots, rows: Rows, index: np.ndarray, row: int) -> bytes:
    """Return what the logits of a row are known by: all tokens up to it."""
    return blake2b(cache.path(int(rows.slots[row]), int(index[row])).tobytes(), digest_size=16).digest()


def _cells(cache: Slots, rows: Rows) -> int:
    """Return the query-key cells of the rows' own forward, computed or not."""
    each = [(slot, end - first) for slot, first, end in rows.segments()]
    return sum(count * cache.read(slot, count) for slot, count in each)


def _missing(cache: Slots, rows: Rows) -> Rows | None:
    """Take the rows without keys and values out of the slots of these rows, and return them; None where there are none."""
    parts = list[Rows]()
    for slot, _, _ in rows.segments():
        length = cache.length(slot)
        absent = cache.absent[slot, :length]
        if absent.any():
            start = int(absent.argmax())  # what comes behind a missing row is missing, too
            tokens, parents, flags = (
                x[slot, start:length] for x in (cache.tokens, cache.parents, cache.flags)
            )
            parts.append(Rows.of(slot, tokens, parents, flags))
            cache.truncate(slot, start)
    return Rows.join(parts) if parts else None
