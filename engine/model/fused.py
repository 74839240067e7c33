"""Drafts chains and trees in one CUDA graph, without a host between the forwards.

The levels are chosen on the device (`specscope.engine.model.levels`), where the next forward reads
their tokens; a head's layer also reads the state that it predicted for their parents (EAGLE). Ids,
probabilities and q travel to the host once, after the last level.

On a CPU the same operations run one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from specscope.engine.model.levels import Drafted, DraftKind, DraftLevels, LevelRows
from specscope.engine.model.static import PerCache, StaticForward, captured, graph_pool, read_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specscope.engine.drafting.tree import LevelPlan
    from specscope.engine.model.cache import Cache
    from specscope.engine.model.clock import Clock
    from specscope.engine.model.decoder import Decoder
    from specscope.engine.model.static import GraphPool
    from specscope.engine.types import Sampling

MOST_NUMBERS = 1 << 26
"""Most probabilities that a draft keeps: rows with logits x S x N."""


class DraftInputs(NamedTuple):
    """The sequences to draft after."""

    slots: Sequence[int]
    """B slots; they hold chains."""
    logits: Tensor
    """Of each slot's last row, (B, N)."""
    numbers: Sequence[Sequence[Sequence[float]]]
    """Per slot and level the numbers that decide the draws, one per node at most; none without
    draws."""
    states: Tensor | None = None
    """Of a head's layer: the predicted state of each slot's last row, (B, D)."""


class FusedDrafts:
    """The graphs of a decoder's chains, or of the trees of a head's layer, made when first needed.

    Args:
        decoder: Runs the forwards.
        keeps: Of a head's layer: the hidden state that the next level reads
            (`specscope.engine.heads.drafting.Head.keeps`).
        tokens: The token of each column, (N,) int64; None if column i is token i.
    """

    def __init__(self, decoder: Decoder, keeps: tuple[int, ...] = (), tokens: Tensor | None = None) -> None:
        self.is_head = decoder.make_inputs is not None
        self._decoder, self._keeps, self._tokens = decoder, keeps, tokens
        self._drafts = PerCache[DraftKind, FusedDraft](decoder)
        self._pool = graph_pool(decoder.device)

    def count(self, cache: Cache) -> int:
        return len(self._drafts.of(cache))

    def fits(self, cache: Cache, lengths: Sequence[int], plans: Sequence[LevelPlan], columns: int) -> bool:
        rows = sum(plan.onward_count for plan in plans[:-1])
        return (
            len(plans) > 1
            and len(self._keeps) == int(self.is_head)
            and max(lengths) + rows <= cache.capacity
            and max(lengths) + len(plans) - 1 <= min(cache.capacity, self._decoder.context)
            and (1 + rows) * cache.slots * columns <= MOST_NUMBERS
        )

    @torch.inference_mode()
    def draft(
        self,
        cache: Cache,
        plans: tuple[LevelPlan, ...],
        given: DraftInputs,
        sampling: Sampling,
        clock: Clock,
        *,
        argmax: bool = False,
    ) -> Drafted:
        """Draft in each slot; their rows are not added to the books. See `DraftKind`."""
        lengths = [cache.length(slot) for slot in given.slots]
        needed = max(lengths) + sum(plan.onward_count for plan in plans[:-1])
        kind = DraftKind(
            min(given.slots),
            max(given.slots) - min(given.slots) + 1,
            plans,
            read_length(needed, cache.tensor.shape[3]),
            given.logits.shape[1],
            replace(sampling, seed=0) if given.numbers else None,
            argmax,
        )
        drafts = self._drafts.of(cache)
        if kind not in drafts:
            decoder = self._decoder
            forwards = LevelForwards(decoder, self._keeps, cache, kind)
            levels = DraftLevels(forwards, self._tokens, kind, clock, decoder.device)
            drafts[kind] = FusedDraft(levels, decoder.shape.width, decoder.dtype, self._pool)
        return drafts[kind].run(given, lengths, clock)


class FusedDraft:
    """Drafts of one kind: inputs in fixed memory."""

    def __init__(self, levels: DraftLevels, width: int, dtype: torch.dtype, pool: GraphPool | None) -> None:
        self._levels, self._kind, self._pool = levels, levels.kind, pool
        kind, device = levels.kind, levels.device
        pinned = device.type == "cuda"
        self._hosted_places = torch.zeros((2, kind.slots), dtype=torch.int64, pin_memory=pinned)
        shape = len(kind.plans), kind.slots, max(plan.nodes for plan in kind.plans)
        self._hosted_numbers = torch.zeros(shape, dtype=torch.float64, pin_memory=pinned)
        self._places = self._hosted_places.to(device)
        """Rows of each slot before the draft, -1 for a void slot; the lines of the given slots."""
        self._numbers = self._hosted_numbers.to(device)
        self._logits = torch.zeros((kind.slots, kind.columns), device=device)
        self._states = torch.zeros((kind.slots, width), dtype=dtype, device=device)
        self._hosted_q: list[Tensor] = []
        self._launch: Callable[[], None] | None = None

    def run(self, given: DraftInputs, lengths: Sequence[int], clock: Clock) -> Drafted:
        lines, levels = self._fill(given, lengths), self._levels
        if self._launch is None:
            self._launch = captured(self._compute, self._pool)
        self._launch()
        assert levels.facts is not None, "the draft has been computed"
        if len(self._hosted_q) < len(levels.q):
            self._hosted_q = [torch.empty(q.shape, pin_memory=q.is_cuda) for q in levels.q]
        for hosted, q in zip(self._hosted_q, levels.q, strict=True):
            hosted.copy_(q, non_blocking=True)
        facts = levels.facts.cpu()[lines]  # the draft's one synchronisation
        return levels.read(facts, [q[lines] for q in self._hosted_q], clock)

    def _fill(self, given: DraftInputs, lengths: Sequence[int]) -> list[int]:
        lines = [slot - self._kind.slot for slot in given.slots]
        places, us = self._hosted_places, self._hosted_numbers.zero_()
        places[0], places[1] = -1, 0
        places[0, lines] = torch.tensor(lengths)
        places[1, : len(lines)] = torch.tensor(lines)
        for line, levels in zip(lines, given.numbers, strict=False):
            for level, drawn in enumerate(levels):
                us[level, line, : len(drawn)] = torch.tensor(drawn, dtype=torch.float64)
        self._places.copy_(places, non_blocking=True)
        self._numbers.copy_(us, non_blocking=True)
        used = self._places[1, : len(lines)]
        self._logits.index_copy_(0, used, given.logits)
        if given.states is not None:
            self._states.index_copy_(0, used, given.states)
        return lines

    def _compute(self) -> None:
        self._levels.compute(self._places[0], self._logits, self._states, self._numbers)


class LevelForwards:
    """The forwards of levels: K rows per slot, which see the prefix and their ancestors."""

    def __init__(self, decoder: Decoder, keeps: tuple[int, ...], cache: Cache, kind: DraftKind) -> None:
        self._decoder, self._keeps, self._kind = decoder, keeps, kind
        device, forwarded = cache.tensor.device, kind.forwarded
        slots, made = range(kind.slot, kind.slot + kind.slots), dict[int, StaticForward]()
        for rows in forwarded:
            made[rows] = made.get(rows) or StaticForward(decoder, cache, slots, rows, kind.length, keeps)
        self._forwards = [made[rows] for rows in forwarded]
        self._no_masks = [torch.zeros_like(forward.indices) for forward in self._forwards]
        self._firsts = [sum(forwarded[:level]) for level in range(len(forwarded))]
        self._places = torch.arange(sum(forwarded), device=device)
        depths = [level for level, rows in enumerate(forwarded) for _ in range(rows)]
        self._depths = torch.tensor(depths, dtype=torch.int64, device=device)
        """Of the T forwarded rows."""
        self.cells = [forward.cells for forward in self._forwards]

    def run(self, level: int, lengths: Tensor, tokens: Tensor, parents: Tensor, states: Tensor) -> LevelRows:
        """Forward nodes of a level; see `LevelSource`."""
        forward, (slots, count) = self._forwards[level], tokens.shape
        if level == 0:
            self._above = lengths.new_zeros((slots, 1, len(self._places)), dtype=torch.bool)
            # which forwarded rows are a row of the last forward, or its ancestors, (S, K, T)
        own = self._places[self._firsts[level] :][:count]
        self._above = _gathered(self._above, parents) | (self._places == own[:, None])
        void, first = (lengths < 0)[:, None], lengths.clamp(min=0)
        forward.indices.copy_(torch.where(void, forward.spare, lengths[:, None] + own).flatten())
        position = (lengths + level).clamp(min=0)
        visible = forward.visible(first, self._above, self._depths, position[:, None], void)
        positions = position.repeat_interleave(count)
        vectors = _gathered(states, parents).flatten(0, 1) if self._keeps else None
        inputs = self._decoder.inputs(tokens.flatten(), positions, self._no_masks[level], vectors)
        hidden = forward.run(inputs, positions, visible)
        split = (slots, count, -1)
        logits = self._decoder.logits(inputs[0])[:, : self._kind.columns].view(split)
        return logits, hidden[self._keeps[0]].view(split) if self._keeps else states


def _gathered(rows: Tensor, parents: Tensor) -> Tensor:
    return rows.gather(1, parents[:, :, None].expand(-1, -1, rows.shape[2]))
