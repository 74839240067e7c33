"""Models with their KV slots: one packed forward over the rows of sequences not cached yet.

The vanilla method gives all sequences of a forward the same lengths (EMS-SD, section 3.1), because
PyTorch's attention needs aligned tensors. It pads the new rows where one sequence has fewer drafted
tokens than another, and the KV cache where one had fewer tokens accepted. Both are real work:
padding rows pass every layer, and every row attends to the padding in its sequence's cache, which a
mask hides. Cache padding is after a sequence's own rows; the number of keys read is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from specscope.engine.errors import RunCancelled, SpecScopeError
from specscope.engine.heads.drafting import Head
from specscope.engine.layout import Packing
from specscope.engine.model.cache import Cache
from specscope.engine.model.clock import Clock
from specscope.engine.model.compiler import Compiler
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.fused import FusedDrafts
from specscope.engine.model.fuzzy import Fuzzy
from specscope.engine.model.language import LanguageModel, never
from specscope.engine.model.slots import PROVISIONAL, Rows, Slots
from specscope.engine.model.stage import StageIO
from specscope.engine.types import NO_TREE, Prefix, Sampling, Tree
from specscope.engine.worker.jobs import Begin, Stamp


def next_size(size: tuple[int, int], slots: int, capacity: int) -> tuple[int, int]:
    """Return the size of caches for a run: the present one if it holds the run, else the run's.

    A size is the number of slots and of rows per slot.
    """
    return (slots, capacity) if slots > size[0] or capacity > size[1] else size


class Forwards:
    """A worker's models by name (`target`, `drafter`), and the KV slots of the active sequences."""

    def __init__(self) -> None:
        self.models: dict[str, LanguageModel] = {}
        self.caches: dict[str, Slots] = {}
        """Of the models used since the last change of `size`."""
        self.size = (0, 0)
        """Slots of each cache, and rows of each slot."""
        self.run = Begin(Sampling(), 0, 0, 0, Packing())
        """The present run."""
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._alignment = Alignment()
        self.heads: dict[str, Head] = {}
        """Drafting heads by name; a head's layer is in `models` under the same name."""
        self.target = "target"
        """Name of the target, or of the last stage of a split one, beside which heads draft."""
        self._kept_states: dict[str, tuple[int, ...]] = {}
        self.fused: dict[str, FusedDrafts] = {}
        """Of the models with static forwards that are not split by tensors, and of their heads
        whose layer reads predicted states."""
        self.clock = Clock()

    def begin(self, run: Begin) -> None:
        """Empty all slots; make new caches if these are too few or too short."""
        self.run, self._alignment = run, Alignment()
        self._kept_states = self.kept_states(run.features)
        if (size := next_size(self.size, run.slots, run.capacity)) != self.size:
            self.size, self.caches = size, {}
        self._slots, self._free = {}, list(range(run.slots))[::-1]
        for compiler in self._compilers():
            compiler.begin()
        for cache in self.caches.values():
            cache.seed = run.sampling.seed
            for slot in range(run.slots):
                cache.reset(slot)

    def close(self) -> None:
        for compiler in self._compilers():
            compiler.close()

    def _compilers(self) -> Iterable[Compiler]:
        decoders = (model for model in self.models.values() if isinstance(model, Decoder))
        return (decoder.compiler for decoder in decoders if decoder.compiler is not None)

    def clear(self) -> None:
        self.size, self.caches = (0, 0), {}

    def kept_states(self, features: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the hidden states that each model keeps; `features` are the target's."""
        return {name: head.keeps for name, head in self.heads.items()} | {self.target: features}

    def retire(self, sequence: int) -> None:
        if (slot := self._slots.pop(sequence, None)) is not None:
            self._free.append(slot)
            self._alignment.remove(sequence)

    def cache(self, model: str) -> Slots:
        if model not in self.caches:
            self.caches[model] = self.models[model].new_cache(*self.size)
            self.caches[model].seed = self.run.sampling.seed
            for sequence, slot in self._slots.items():
                self.caches[model].reset(slot, sequence)
        return self.caches[model]

    def slot(self, sequence: int) -> int:
        """Return a sequence's slot; a new one takes a free one (SpecScopeError: there is none)."""
        if sequence not in self._slots:
            if not self._free:
                raise SpecScopeError(
                    f"sequence {sequence} finds no free KV slot; a finished one must leave first"
                )
            slot = self._slots[sequence] = self._free.pop()
            for cache in self.caches.values():
                cache.reset(slot, sequence)
        return self._slots[sequence]

    def features(self, name: str, prefix: Prefix, first: int = 0) -> torch.Tensor | None:
        """Return hidden states of a prefix's rows from `first` on, without its last token's.

        (len(prefix) - 1 - first, k D); None if a row is not cached.
        """
        cache, slot, count = self.cache(name), self.slot(prefix.sequence), len(prefix) - 1
        path = cache.match(slot, prefix.tokens, count)
        if len(path) < max(count, 1):
            return None
        assert isinstance(cache, Cache), "only a decoder has hidden states"
        assert cache.features is not None, "the run keeps them"
        return cache.features[slot].index_select(0, torch.from_numpy(path[first:]).to(cache.features.device))

    def states(self, name: str, sequence: int, rows: Sequence[int]) -> torch.Tensor:
        """Return the hidden states kept for R rows of a sequence's slot, (R, k D)."""
        cache = self.cache(name)
        assert isinstance(cache, Cache), "only a decoder has hidden states"
        assert cache.features is not None, "the model keeps them"
        return cache.features[self.slot(sequence), list(rows)]

    def cached(self, name: str, prefix: Prefix) -> int:
        return len(self.cache(name).match(self.slot(prefix.sequence), prefix.tokens, len(prefix)))

    def keeps(self, name: str) -> tuple[int, ...]:
        """Return the hidden states that the run keeps of a model's rows."""
        return self._kept_states.get(name, ())

    def record_lengths(self, prefixes: Sequence[Prefix]) -> None:
        """Record each sequence's length after a round, for the padding of KV rows."""
        self._alignment.record(prefixes)

    def extend(
        self,
        name: str,
        prefixes: Sequence[Prefix],
        drafts: Sequence[Tree],
        stamps: list[Stamp],
        kind: str,
        *,
        logits: bool = True,
        prompts: Sequence[Prefix] = (),
        fuzzy: Fuzzy | None = None,
        stage_io: StageIO | None = None,
        vectors: Callable[[Sequence[int]], Sequence[torch.Tensor]] | None = None,
        stopped: Callable[[], bool] = never,
    ) -> list[torch.Tensor]:
        """Forward the uncached rows of every prefix + draft in one packed forward.

        The prefixes are of different sequences; `prompts` are those of further ones, cached without
        logits by the same forward. `vectors` is for a drafting head: it maps the first forwarded
        row of each prefix to what the head reads beside its tokens, (rows, D). The drafts then hold
        mask tokens, whose rows only this forward uses.

        Returns:
            For each prefix the logits of its last row and of its N draft rows, (1 + N, V); empty
            without `logits`.
        """
        start = self.clock.mark()
        cache = self.cache(name)
        pairs = enumerate(zip(prefixes, drafts, strict=True))
        masks = vectors is not None
        blocks = [self._uncached(cache, i, prefix, draft, logits, masks) for i, (prefix, draft) in pairs]
        if vectors is not None:
            given = vectors([block.cached for block in blocks])
            blocks = [block.reading(inputs) for block, inputs in zip(blocks, given, strict=True)]
        for i, prompt in enumerate(prompts, len(blocks)):
            blocks.append(self._uncached(cache, i, prompt, NO_TREE, False, False))
        out = self._forward(name, blocks, stamps, kind, start, fuzzy, stage_io, stopped)
        return out[: len(prefixes)]

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
        vectors: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Forward one more level of the tree after every prefix, in one packed forward.

        The prefixes and all levels above are cached, and no cached row is dropped. The parents of a
        level's N nodes are row indices in the tree. `provisional` rows are used by this tree only;
        they never count as cached. `vectors`: what a drafting head reads beside the tokens, (N, D).

        Returns:
            For each prefix the logits after each node, (N, V).
        """
        start, blocks = self.clock.mark(), list[_Block]()
        for number, (prefix, (ids, parents)) in enumerate(zip(prefixes, levels, strict=True)):
            slot = self.slot(prefix.sequence)
            flags = [PROVISIONAL] * len(ids) if provisional else None
            inputs = None if vectors is None else vectors[number]
            rows = Rows.of(slot, ids, np.asarray(parents, dtype=np.int64) + len(prefix), flags, inputs)
            cached = self.cache(name).length(slot)
            blocks.append(_Block(number, prefix.sequence, slot, rows, cached, len(ids)))
        return self._forward(name, blocks, stamps, kind, start, fuzzy, deeper=True)

    def _forward(
        self,
        name: str,
        blocks: list[_Block],
        stamps: list[Stamp],
        kind: str,
        start: int,
        fuzzy: Fuzzy | None,
        stage_io: StageIO | None = None,
        stopped: Callable[[], bool] = never,
        *,
        deeper: bool = False,
    ) -> list[torch.Tensor]:
        cache = self.cache(name)
        cache.kind, cache.deeper = kind, deeper
        blocks.sort(key=lambda block: block.slot)  # adjacent slots are read as one
        rows, want, context = self._pack(cache, blocks)
        hidden = self.keeps(name)
        model = self.models[name]
        try:
            out = model.forward(cache, rows, want, hidden, fuzzy=fuzzy, stage_io=stage_io, stopped=stopped)
        except RunCancelled:
            stamps.append(Stamp(kind, start, self.clock.mark(), len(rows), context, batch=len(blocks)))
            raise
        if hidden and isinstance(cache, Cache):
            states = [out.hidden[layer] for layer in hidden]
            cache.store_features(rows, states[0] if len(states) == 1 else torch.cat(states, 1))
        if not self.run.packing.unpad_inputs:
            for block in blocks:  # drop padding rows: a tree's next level counts true rows only
                cache.truncate(block.slot, block.cached + len(block.rows))
        stamp = Stamp(kind, start, self.clock.mark(), len(rows), context, batch=len(blocks))
        times = fuzzy.times() if fuzzy else ()
        stamps.append(
            stamp._replace(cells=out.cells, experts=out.experts, parts=times, communicated=out.communicated)
        )
        if len(blocks) == 1:
            return [out.logits]
        logits = zip(blocks, out.logits.split([block.wanted for block in blocks]), strict=True)
        return [rows for _, rows in sorted(logits, key=lambda item: item[0].number)]

    def _uncached(
        self,
        cache: Slots,
        number: int,
        prefix: Prefix,
        draft: Tree,
        logits: bool,
        provisional: bool,
    ) -> _Block:
        """Drop cached rows that do not match the prefix; return the rows to forward."""
        slot, length = self.slot(prefix.sequence), len(prefix)
        path = cache.match(slot, prefix.tokens, length - 1 if logits else length)
        cache.keep(slot, path)
        cached, (ids, parents) = len(path), draft
        tokens = np.concatenate([prefix.tokens[cached:], np.asarray(ids, dtype=np.int64)])
        chain = np.arange(cached - 1, length - 1, dtype=np.int64)
        tree = np.asarray(parents, dtype=np.int64) + length
        flags = [0] * (length - cached) + [PROVISIONAL] * len(ids) if provisional else None
        rows = Rows.of(slot, tokens, np.concatenate([chain, tree]), flags)
        return _Block(number, prefix.sequence, slot, rows, cached, 1 + len(ids) if logits else 0)

    def _pack(self, cache: Slots, blocks: Sequence[_Block]) -> tuple[Rows, np.ndarray, int]:
        """Return the packed rows, the indices of rows that need logits, and the context length."""
        context = sum(block.cached for block in blocks)
        cache.pad(0)
        if not self.run.packing.unpad_kv:
            length = self._alignment.length({block.sequence: block.cached for block in blocks})
            cache.pad(length, max(len(block.rows) for block in blocks))
            context = length * len(blocks)
        counts = [len(block.rows) for block in blocks]
        if not self.run.packing.unpad_inputs:
            counts = [max(counts)] * len(blocks)
        rows = [block.rows.padded(count) for block, count in zip(blocks, counts, strict=True)]
        want, first = list[np.ndarray](), 0
        for block, count in zip(blocks, counts, strict=True):
            last = first + len(block.rows)
            want.append(np.arange(last - block.wanted, last))
            first += count
        return Rows.join(rows), want[0] if len(want) == 1 else np.concatenate(want), context


class _Block(NamedTuple):
    """One sequence's rows in a forward."""

    number: int
    sequence: int
    slot: int
    rows: Rows
    cached: int
    wanted: int

    def reading(self, vectors: torch.Tensor) -> _Block:
        return self._replace(rows=replace(self.rows, vectors=vectors))


class Alignment:
    """Padding rows of each sequence's KV cache, so that all sequences end at the same row.

    After every round a sequence is padded by the difference between the most tokens that any
    sequence got and its own. A sequence that joins later is padded in front. Padding that all
    sequences share is left out.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}
        self._padding: dict[int, int] = {}

    def record(self, prefixes: Iterable[Prefix]) -> None:
        """Record the lengths after a round.

        A sequence whose length did not change was inactive or is already recorded.
        """
        lengths = {p.sequence: len(p) for p in prefixes}
        grown = {s: n - self._lengths.get(s, n) for s, n in lengths.items()}
        most = max(grown.values(), default=0)
        for sequence, more in grown.items():
            if more > 0:
                self._padding[sequence] = self._padding.get(sequence, 0) + most - more
        self._lengths |= lengths

    def remove(self, sequence: int) -> None:
        self._lengths.pop(sequence, None)
        self._padding.pop(sequence, None)

    def length(self, cached: Mapping[int, int]) -> int:
        """Return the KV length of all sequences of a forward; `cached` rows are without padding."""
        return max((rows + self._padding.get(sequence, 0) for sequence, rows in cached.items()), default=0)
