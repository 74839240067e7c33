"""Trees that a head with a layer drafts without a host between the levels; CUDA replays one graph.

The places of a tree's nodes are known before its tokens are: how many children the nodes of a level
get is fixed (`engine.drafters.tree.LevelPlan`). So are the rows of each forward, one per node that
gets children. Each level's tokens are chosen on the device, where the next forward reads them, with
the state that the layer has predicted for their parents (EAGLE). The levels' facts travel to the
host once, after the last level.

On a CPU the same operations run one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from engine.model.chain import MOST_NUMBERS
from engine.model.choice import Choice, ChosenLevel, GrowthKind
from engine.model.predicted import PredictedRows
from engine.model.static import PerCache, captured, graph_pool, read_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from engine.drafters.tree import LevelPlan
    from engine.model.cache import Cache
    from engine.model.clock import Clock
    from engine.model.decoder import Decoder
    from engine.types import Sampling


@dataclass(frozen=True)
class Drafted:
    """The levels of B slots."""

    levels: list[ChosenLevel]
    times: list[tuple[int, int]]
    """Marks of the start and the end of all forwards but the first (`engine.model.clock`)."""
    cells: list[int]
    """Query-key cells of these forwards, see `Output.cells`."""


class Given(NamedTuple):
    """The sequences to draft after."""

    slots: Sequence[int]
    """B slots; they hold chains."""
    logits: Tensor
    """Of each slot's last row, (B, N)."""
    states: Tensor
    """The predicted state of each slot's last row, (B, D)."""
    numbers: Sequence[Sequence[Sequence[float]]]
    """Per slot and level the numbers that decide the draws, one per node at most; none for the most
    probable tokens."""


class Growths:
    """The growths of a head's layer, made when first needed.

    Args:
        decoder: The layer.
        keeps: The hidden state that the next level reads, see `engine.heads.drafting.Head.keeps`.
        tokens: The token of each column, (N,) int64; None if column i is token i.
    """

    def __init__(self, decoder: Decoder, keeps: tuple[int, ...], tokens: Tensor | None) -> None:
        self._decoder, self._keeps, self._tokens = decoder, keeps, tokens
        self._growths = PerCache[GrowthKind, Growth]()
        self._pool = graph_pool(decoder.device)

    def fits(self, cache: Cache, lengths: Sequence[int], plans: Sequence[LevelPlan], columns: int) -> bool:
        """Return whether the trees of sequences of these lengths find room."""
        rows = sum(plan.onward_count for plan in plans[:-1])
        return (
            len(plans) > 1
            and len(self._keeps) == 1
            and max(lengths) + rows <= cache.capacity
            and max(lengths) + len(plans) - 1 <= min(cache.capacity, self._decoder.context)
            and (1 + rows) * cache.slots * columns <= MOST_NUMBERS
        )

    @torch.inference_mode()
    def draft(
        self, cache: Cache, plans: tuple[LevelPlan, ...], given: Given, sampling: Sampling, clock: Clock
    ) -> Drafted:
        """Draft a tree in each slot; its rows are not added to the slots' books.

        Args:
            cache: The cache.
            plans: The levels.
            given: The sequences.
            sampling: The warp of q.
            clock: Takes the times of the forwards.
        """
        lengths = [cache.length(slot) for slot in given.slots]
        needed = max(lengths) + sum(plan.onward_count for plan in plans[:-1])
        kind = GrowthKind(
            min(given.slots),
            max(given.slots) - min(given.slots) + 1,
            plans,
            read_length(needed, cache.tensor.shape[3]),
            given.logits.shape[1],
            replace(sampling, seed=0) if given.numbers else None,
        )
        growths = self._growths.of(cache)
        if kind not in growths:
            growths[kind] = Growth(self._decoder, self._keeps, self._tokens, cache, kind, clock, self._pool)
        return growths[kind].run(given, lengths, clock)


class Growth:
    """Trees of one kind: inputs in fixed memory, the same operations at every call."""

    def __init__(
        self,
        decoder: Decoder,
        keeps: tuple[int, ...],
        tokens: Tensor | None,
        cache: Cache,
        kind: GrowthKind,
        clock: Clock,
        pool: Any = None,
    ) -> None:
        self.kind, self._pool, self._tokens = kind, pool, tokens
        self._layer = PredictedRows(decoder, keeps, cache, kind)
        device, pinned = cache.tensor.device, cache.tensor.is_cuda
        shape = (len(kind.plans), kind.slots, max(sum(plan.counts) for plan in kind.plans))
        self._hosted_places = torch.zeros((2, kind.slots), dtype=torch.int64, pin_memory=pinned)
        self._hosted_numbers = torch.zeros(shape, dtype=torch.float64, pin_memory=pinned)
        self._places = self._hosted_places.to(device)
        """Rows of each slot before the tree, -1 for a void slot; the lines of the given slots."""
        self._numbers = self._hosted_numbers.to(device)
        self._logits = torch.zeros((kind.slots, kind.columns), device=device)
        self._states = torch.zeros((kind.slots, decoder.shape.width), dtype=decoder.dtype, device=device)
        self._levels = [Choice(plan, kind.sampling, kind.columns, device) for plan in kind.plans]
        self._facts: Tensor | None = None
        self._q: list[Tensor] = []
        self._hosted_q: list[Tensor] = []
        self._events = [(clock.event(), clock.event()) for _ in kind.forwarded]
        self._launch: Callable[[], None] | None = None

    def run(self, given: Given, lengths: Sequence[int], clock: Clock) -> Drafted:
        """Draft the trees after slots of these lengths; see `Growths.draft`."""
        lines = self._fill(given, lengths)
        if self._launch is None:
            self._launch = captured(self._compute, self._pool) if given.logits.is_cuda else self._compute
        self._launch()
        assert self._facts is not None, "the growth has been computed"
        if len(self._hosted_q) < len(self._q):
            self._hosted_q = [torch.empty(q.shape, pin_memory=q.is_cuda) for q in self._q]
        for hosted, q in zip(self._hosted_q, self._q, strict=True):
            hosted.copy_(q, non_blocking=True)
        facts = self._facts.cpu()[lines]  # the growth's one synchronisation
        warped = [q[lines] for q in self._hosted_q] or [None] * len(self._levels)
        parts = facts.split([choice.width for choice in self._levels], 1)
        levels = [
            choice.read(*part)
            for choice, part in zip(self._levels, zip(parts, warped, strict=True), strict=True)
        ]
        times = [(clock.hold(start), clock.hold(end)) for start, end in self._events]
        return Drafted(levels, times, self._layer.cells)

    def _fill(self, given: Given, lengths: Sequence[int]) -> list[int]:
        """Write the inputs; return each slot's line."""
        lines = [slot - self.kind.slot for slot in given.slots]
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
        self._states.index_copy_(0, used, given.states)
        return lines

    def _compute(self) -> None:
        """Choose the nodes of all levels, with a forward between two of them."""
        lengths, slots = self._places[0], self.kind.slots
        logits, states = self._logits[:, None], self._states[:, None]
        paths = logits.new_ones((slots, 1), dtype=torch.float64)
        alive = (lengths >= 0)[:, None]
        facts, self._q = list[Tensor](), []
        self._layer.begin(lengths)
        for level, choice in enumerate(self._levels):
            chosen = choice.choose(logits, paths, alive, self._numbers[level])
            facts.append(chosen.facts)
            self._q += [] if chosen.q is None else [chosen.q]
            if level == len(self._events):
                break
            start, end = self._events[level]
            start.record()
            places = choice.onward(chosen.paths, chosen.exists)
            parents = choice.parents[places]
            paths, alive = chosen.paths.gather(1, places), chosen.exists.gather(1, places)
            columns = chosen.columns.gather(1, places)
            tokens = columns if self._tokens is None else self._tokens[columns]
            logits, states = self._layer.forward(level, tokens, parents, states)
            end.record()
        self._facts = torch.cat(facts, 1)
