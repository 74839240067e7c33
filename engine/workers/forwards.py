"""Models with their KV slots: forward what is not cached yet of some prefixes and drafts, in one packed forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from engine.errors import SpecScopeError
from engine.heads.drafting import Head
from engine.model.cache import Cache
from engine.model.fuzzy import Fuzzy
from engine.model.language import LanguageModel
from engine.model.slots import PROVISIONAL, Rows, Slots
from engine.model.stage import Border
from engine.types import NO_TREE, Packing, Prefix, Tree
from engine.workers.jobs import Stamp
from engine.workers.packing import Alignment, padded

NO_DRAFT = NO_TREE


class Forwards:
    """Models by name, `target` or `drafter`, and the KV slots of the sequences being decoded."""

    def __init__(self) -> None:
        self.models: dict[str, LanguageModel] = {}
        self._caches: dict[str, Slots] = {}
        self._room = (0, 0)
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._packing = Packing()
        self._alignment = Alignment()
        self.heads: dict[str, Head] = {}
        """Drafting heads by name; the layer of one that has a layer is among the models, under the same name."""
        self._keeps: dict[str, tuple[int, ...]] = {}

    def begin(self, slots: int, capacity: int, packing: Packing, features: tuple[int, ...] = ()) -> None:
        """Empty all slots; make more or longer ones where these are not enough.

        Args:
            slots: Sequences.
            capacity: Rows of each.
            packing: How forwards are packed.
            features: Hidden layers of the target that are kept for a drafting head, see `Output.hidden`.
        """
        self._keeps = {name: head.keeps for name, head in self.heads.items()} | {"target": features}
        if slots > self._room[0] or capacity > self._room[1]:
            self._room = (max(slots, self._room[0]), max(capacity, self._room[1]))
            self._caches = {}
        self._slots, self._free = {}, list(range(slots))[::-1]
        self._packing, self._alignment = packing, Alignment()
        for name, cache in self._caches.items():
            if isinstance(cache, Cache) and not self._keeps.get(name):
                cache.features = None
            for slot in range(slots):
                cache.reset(slot)

    def retire(self, sequence: int) -> None:
        """Give the slot of a sequence to the next one that comes."""
        if (slot := self._slots.pop(sequence, None)) is not None:
            self._free.append(slot)
            self._alignment.leave(sequence)

    def cache(self, model: str) -> Slots:
        """Return a model's cache, made at its first use in a run."""
        if model not in self._caches:
            self._caches[model] = self.models[model].new_cache(*self._room)
            for sequence, slot in self._slots.items():
                self._caches[model].reset(slot, sequence)
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
                cache.reset(slot, sequence)
        return self._slots[sequence]

    def features(self, name: str, prefix: Prefix, first: int = 0) -> torch.Tensor | None:
        """Return the hidden states that were kept for a prefix's rows, but for its last token's.

        Args:
            name: The model whose they are.
            prefix: The tokens.
            first: Row to begin with.

        Returns:
            (len(prefix) - 1 - first, k D), or None where one of the rows is not cached.
        """
        cache, slot, wanted = self.cache(name), self.slot(prefix.sequence), len(prefix) - 1
        path = cache.match(slot, prefix.tokens, wanted)
        if len(path) < max(wanted, 1):
            return None
        assert isinstance(cache, Cache), "only a decoder has hidden states"
        assert cache.features is not None, "the run keeps them"
        return cache.features[slot].index_select(0, torch.from_numpy(path[first:]).to(cache.features.device))

    def states(self, name: str, sequence: int, rows: Sequence[int]) -> torch.Tensor:
        """Return the hidden states that were kept for some rows of a slot, (R, k D)."""
        cache = self.cache(name)
        assert isinstance(cache, Cache), "only a decoder has hidden states"
        assert cache.features is not None, "the model keeps them"
        return cache.features[self.slot(sequence), list(rows)]

    def follow(self, prefixes: Sequence[Prefix]) -> None:
        """Take note of how far each sequence has come since the last round; padding the KV cache depends on it."""
        self._alignment.follow(prefixes)

    def extend(
        self,
        name: str,
        prefixes: Sequence[Prefix],
        drafts: Sequence[Tree],
        stamps: list[Stamp],
        kind: str,
        *,
        logits: bool = True,
        fuzzy: Fuzzy | None = None,
        border: Border | None = None,
        vectors: Callable[[int], torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Forward what is not cached of each prefix + draft, all in one packed forward.

        Args:
            name: The model's.
            prefixes: B prefixes of different sequences.
            drafts: The draft after each prefix.
            stamps: Takes the forward's stamp.
            kind: The span's kind.
            logits: Whether logits are wanted.
            fuzzy: How the layers are run, where that is not in order.
            border: Of a stage of a split model: what comes in and what goes on.
            vectors: Of a drafting head, for one prefix: returns what it reads beside the tokens, (rows, D), given the first
                row that is forwarded. The draft is then one of mask tokens, whose rows serve this forward only.

        Returns:
            For each prefix the logits from its last row on, (1 + N, V); without `logits` empty ones.
        """
        start = time.perf_counter_ns()
        cache = self.cache(name)
        each = zip(prefixes, drafts, strict=True)
        parts = [
            self._part(cache, i, prefix, draft, logits, vectors) for i, (prefix, draft) in enumerate(each)
        ]
        return self._forward(name, parts, stamps, kind, start, fuzzy, border)

    def export(self, name: str, prefix: Prefix, start: int, stamps: list[Stamp]) -> bytes:
        """Return the KV rows of a prefix from `start` on, all but its last token's; every one of them is cached."""
        began, slot, end = time.perf_counter_ns(), self.slot(prefix.sequence), len(prefix) - 1
        path = self._held(name, prefix, end)
        data = self.cache(name).pick(slot, path[start:])
        stamps.append(Stamp("communicate", began, time.perf_counter_ns(), end - start, start))
        return data

    def take_over(self, name: str, prefix: Prefix, start: int, data: bytes, stamps: list[Stamp]) -> None:
        """Put exported rows behind the first `start` of the prefix, which are cached here."""
        began, slot, end = time.perf_counter_ns(), self.slot(prefix.sequence), len(prefix) - 1
        cache = self.cache(name)
        cache.keep(slot, self._held(name, prefix, start))
        cache.plant(slot, prefix.tokens[start:end], data)
        stamps.append(Stamp("communicate", began, time.perf_counter_ns(), end - start, start))

    def _held(self, name: str, prefix: Prefix, count: int) -> np.ndarray:
        """Return where the first `count` rows of a prefix are, (count,) int64.

        Raises:
            SpecScopeError: They are not cached.
        """
        path = self.cache(name).match(self.slot(prefix.sequence), prefix.tokens, count)
        if len(path) < count:
            raise SpecScopeError(
                f"only {len(path)} of {count} KV rows of the {name} are here; none can be moved"
            )
        return path

    def branch(
        self,
        name: str,
        prefixes: Sequence[Prefix],
        levels: Sequence[Tree],
        stamps: list[Stamp],
        kind: str,
        *,
        fuzzy: Fuzzy | None = None,
        provisional: bool = False,
        vectors: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        """Hang the nodes of one level on the tree that grows after each prefix, all in one packed forward; nothing is dropped.

        Args:
            name: The model's.
            prefixes: The tokens before each tree; `extend` has forwarded them, and all levels above hang on them.
            levels: Each tree's level of N nodes; their parents are indices into the whole tree.
            stamps: Takes the forward's stamp.
            kind: The span's kind.
            fuzzy: As for `extend`.
            provisional: Whether the rows serve this tree only; then they never count as cached.
            vectors: Of a drafting head, for one prefix: what it reads beside the tokens, (N, D).

        Returns:
            For each prefix the logits after each node, (N, V).
        """
        start, parts = time.perf_counter_ns(), list[_Part]()
        for number, (prefix, (ids, parents)) in enumerate(zip(prefixes, levels, strict=True)):
            slot = self.slot(prefix.sequence)
            flags = [PROVISIONAL] * len(ids) if provisional else None
            rows = Rows.of(slot, ids, np.asarray(parents, dtype=np.int64) + len(prefix), flags, vectors)
            cached = self.cache(name).length(slot)
            parts.append(_Part(number, prefix.sequence, slot, rows, cached, len(ids)))
        return self._forward(name, parts, stamps, kind, start, fuzzy)

    def _forward(
        self,
        name: str,
        parts: list[_Part],
        stamps: list[Stamp],
        kind: str,
        start: int,
        fuzzy: Fuzzy | None,
        border: Border | None = None,
    ) -> list[torch.Tensor]:
        """Run one forward over all parts; return the logits that each wants."""
        cache = self.cache(name)
        parts.sort(key=lambda part: part.slot)  # neighbours in the cache stand next to each other
        rows, want, context = self._pack(cache, parts)
        hidden = self._keeps.get(name, ())
        out = self.models[name].forward(cache, rows, want, hidden, fuzzy=fuzzy, border=border)
        if hidden and isinstance(cache, Cache):
            states = [out.hidden[layer] for layer in hidden]
            cache.remember(rows, states[0] if len(states) == 1 else torch.cat(states, 1))
        if not self._packing.unpad_inputs:
            for part in parts:  # padding is forgotten: a tree's next level is numbered by true rows
                cache.truncate(part.slot, part.cached + len(part.rows))
        if out.logits.is_cuda:
            torch.cuda.current_stream(out.logits.device).synchronize()
        end, times = time.perf_counter_ns(), fuzzy.times() if fuzzy else ()
        stamps.append(
            Stamp(kind, start, end, len(rows), context, cells=out.cells, batch=len(parts), parts=times)
        )
        if len(parts) == 1:
            return [out.logits]
        found = zip(parts, out.logits.split([part.wanted for part in parts]), strict=True)
        return [lines for _, lines in sorted(found, key=lambda item: item[0].number)]

    def _part(
        self,
        cache: Slots,
        number: int,
        prefix: Prefix,
        draft: Tree,
        logits: bool,
        vectors: Callable[[int], torch.Tensor] | None,
    ) -> _Part:
        """Bring a sequence's slot back to what fits the prefix, and return what is still to be forwarded."""
        slot, length = self.slot(prefix.sequence), len(prefix)
        path = cache.match(slot, prefix.tokens, length - 1 if logits else length)
        cache.keep(slot, path)
        have, (ids, parents) = len(path), draft
        tokens = np.concatenate([prefix.tokens[have:], np.asarray(ids, dtype=np.int64)])
        after = np.arange(have - 1, length - 1, dtype=np.int64)
        tree = np.asarray(parents, dtype=np.int64) + length
        flags, beside = None, None
        if vectors is not None:
            flags = [0] * (length - have) + [PROVISIONAL] * len(ids)
            beside = vectors(have)
        rows = Rows.of(slot, tokens, np.concatenate([after, tree]), flags, beside)
        return _Part(number, prefix.sequence, slot, rows, have, 1 + len(ids) if logits else 0)

    def _pack(self, cache: Slots, parts: Sequence[_Part]) -> tuple[Rows, np.ndarray, int]:
        """Return the packed rows, which of them have their logits wanted, and how many rows are cached before them."""
        context = sum(part.cached for part in parts)
        cache.align(0)
        if not self._packing.unpad_kv:
            length = self._alignment.length({part.sequence: part.cached for part in parts})
            cache.align(length, max(len(part.rows) for part in parts))
            context = length * len(parts)
        counts = [len(part.rows) for part in parts]
        if not self._packing.unpad_inputs:
            counts = [max(counts)] * len(parts)
        rows = [padded(part.rows, count) for part, count in zip(parts, counts, strict=True)]
        want, first = list[np.ndarray](), 0
        for part, count in zip(parts, counts, strict=True):
            last = first + len(part.rows)
            want.append(np.arange(last - part.wanted, last))
            first += count
        return Rows.join(rows), want[0] if len(want) == 1 else np.concatenate(want), context


class _Part(NamedTuple):
    """What a forward does for one sequence."""

    number: int
    """Its place in the call."""
    sequence: int
    slot: int
    rows: Rows
    cached: int
    wanted: int
    """Its last rows, whose logits are wanted."""
