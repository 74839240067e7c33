"""Models with their KV slots: forward what is not cached yet of some prefixes and drafts, in one packed forward."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from engine.errors import SpecScopeError
from engine.model.slots import LanguageModel, Rows, Slots
from engine.runtime.jobs import Stamp
from engine.types import Prefix

Tree = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids and parents of a draft; parents are indices into it, -1 for the prefix's last token."""
NO_DRAFT: Tree = ((), ())


class Forwards:
    """Models by name, `target` or `drafter`, and the KV slots of the sequences being decoded."""

    def __init__(self) -> None:
        self.models: dict[str, LanguageModel] = {}
        self._caches: dict[str, Slots] = {}
        self._room = (0, 0)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []

    def begin(self, slots: int, capacity: int) -> None:
        """Empty all slots; make more or longer ones where these are not enough."""
        if slots > self._room[0] or capacity > self._room[1]:
            self._room = (max(slots, self._room[0]), max(capacity, self._room[1]))
            self._caches = {}
        self._slots, self._free = {}, list(range(slots))[::-1]
        for cache in self._caches.values():
            for slot in range(slots):
                cache.reset(slot)

    def retire(self, sequence: int) -> None:
        """Give the slot of a sequence to the next one that comes."""
        if (slot := self._slots.pop(sequence, None)) is not None:
            self._free.append(slot)

    def cache(self, model: str) -> Slots:
        """Return a model's cache, made at its first use in a run."""
        if model not in self._caches:
            self._caches[model] = self.models[model].new_cache(*self._room)
        return self._caches[model]

    def slot(self, sequence: int) -> int:
        """Return the slot of a sequence; a new sequence takes a free one.

        Raises:
            SpecScopeError: All slots are taken.
        """
        if sequence not in self._slots:
            if not self._free:
                raise SpecScopeError(
                    f"sequence {sequence} finds no free KV slot; a finished one must leave first"
                )
            slot = self._slots[sequence] = self._free.pop()
            for cache in self._caches.values():
                cache.reset(slot)
        return self._slots[sequence]

    def extend(
        self,
        name: str,
        prefixes: Sequence[Prefix],
        drafts: Sequence[Tree],
        stamps: list[Stamp],
        kind: str,
        *,
        logits: bool = True,
    ) -> list[torch.Tensor]:
        """Forward what is not cached of each prefix + draft, all in one packed forward.

        Args:
            name: The model's.
            prefixes: B prefixes of different sequences.
            drafts: The draft after each prefix.
            stamps: Takes the forward's stamp.
            kind: The span's kind.
            logits: Whether logits are wanted.

        Returns:
            For each prefix the logits from its last row on, (1 + N, V); without `logits` empty ones.
        """
        start = time.perf_counter_ns()
        cache = self.cache(name)
        parts, wants, kept, rows = list[Rows](), list[np.ndarray](), 0, 0
        for prefix, (ids, parents) in zip(prefixes, drafts, strict=True):
            slot, length = self.slot(prefix.sequence), len(prefix)
            path = cache.match(slot, prefix.tokens, length - 1 if logits else length)
            cache.keep(slot, path)
            have = len(path)
            tokens = np.concatenate([prefix.tokens[have:], np.asarray(ids, dtype=np.int64)])
            after = np.arange(have - 1, length - 1, dtype=np.int64)
            tree = np.asarray(parents, dtype=np.int64) + length
            parts.append(Rows.of(slot, tokens, np.concatenate([after, tree])))
            wants.append(np.arange(rows + length - 1 - have, rows + len(tokens)) if logits else _NOTHING)
            kept, rows = kept + have, rows + len(tokens)
        want = wants[0] if len(wants) == 1 else np.concatenate(wants)
        out = self.models[name].forward(cache, Rows.join(parts), want).logits
        if out.is_cuda:
            torch.cuda.current_stream(out.device).synchronize()
        stamps.append(Stamp(kind, start, time.perf_counter_ns(), rows, kept))
        return [out] if len(wants) == 1 else list(out.split([len(w) for w in wants]))


_NOTHING = np.empty(0, dtype=np.int64)
