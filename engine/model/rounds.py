"""Rounds of drafting and verification without a host between their forwards: one CUDA graph each.

A round drafts a chain, forwards it through the target, judges it, and leaves on the device what the
next round needs: how long the sequence is, and its last two tokens. So the next round can begin
before the host has read this one. The sequence's random numbers are on the device beforehand: they
are a function of the position (`specscope.engine.sampling.draws`). One small copy per round brings
the drafts, the numbers that were compared and the verdict to the host.

Two graphs of a kind take turns, so that one can run while the facts of the other are read. On a CPU
the same operations run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from specscope.engine.drafting.tree import Wide
from specscope.engine.model.attention import PaddedAttention
from specscope.engine.model.fused import Drafted, DraftKind, DraftLevels
from specscope.engine.model.static import PerCache, captured, graph_pool, read_length
from specscope.engine.sampling.chain import PURPOSES, judge_chain, numbers
from specscope.engine.sampling.rows import upload

if TYPE_CHECKING:
    from specscope.engine.model.cache import Cache
    from specscope.engine.model.clock import Clock
    from specscope.engine.model.decoder import Decoder
    from specscope.engine.model.static import GraphPool
    from specscope.engine.sampling.draws import Draws
    from specscope.engine.types import Sampling

DRAFT = PURPOSES.index("draft")
AHEAD = 64
"""Positions whose random numbers are copied to the device at once."""


class Start(NamedTuple):
    """Where a round starts."""

    length: int
    """Tokens of the prefix: L, at least 1."""
    last: tuple[int, int]
    """Its last two tokens; the first counts only if two are missing."""
    missing: int
    """Tokens of the prefix without a row in the drafter's cache, 1 or 2; the target lacks one."""


class RoundKind(NamedTuple):
    """The sizes of a round, and its way of choosing tokens."""

    slot: int
    gamma: int
    """Tokens to draft; 0 for a round of plain decoding."""
    lengths: tuple[int, int]
    """Cached rows that attention reads, the drafter's and the target's."""
    columns: int
    """Columns of the drafter's logits to choose from: the first ones."""
    sampling: Sampling
    """The logits processors of p, and of q if the tokens are drawn; its seed is 0."""
    drawn: bool
    """Whether the drafted tokens are drawn from q: rule 1."""


class RoundFacts(NamedTuple):
    """A round, on the host."""

    drafted: Drafted | None
    """The drafts; None for plain decoding."""
    verdict: Tensor
    """What `specscope.engine.sampling.chain.ChainRows` reads, (n,) float64."""
    marks: tuple[int, ...]
    """Marks of the clock (`specscope.engine.model.clock`): the start and the end of the drafter's
    first forward, the start and the end of the verification, the end of the judgement."""
    cells: tuple[int, int]
    """Query-key cells of the drafter's first forward and of the verification."""


class Pair(NamedTuple):
    """A model with its cache."""

    decoder: Decoder
    cache: Cache


class ChainForward:
    """A forward of K rows of one slot's chain; the device knows their tokens and places."""

    def __init__(self, model: Pair, slot: int, rows: int, length: int) -> None:
        self._decoder, cache = model
        device = cache.tensor.device
        self._buffers = cache.buffers(rows)
        self._indices = torch.zeros(rows, dtype=torch.int64, device=device)
        slots = range(slot, slot + 1)
        self._attention = PaddedAttention(cache, self._buffers, slots, length, self._indices)
        self._own, self._columns = torch.arange(rows, device=device), torch.arange(length, device=device)
        self._windows = tuple(dict.fromkeys(layer.window for layer in self._decoder.layers))
        self._spare, self._rotations = cache.tensor.shape[3] - 1, self._decoder.rotations
        self.cells = self._attention.cells(None)

    def run(self, tokens: Tensor, first: Tensor, cached: Tensor | int = 0) -> Tensor:
        """Forward K tokens from position `first` on; return their logits, (K, V).

        The first `cached` of them have rows already, which stay as they are.
        """
        decoder, positions = self._decoder, (first + self._own).clamp(min=0)
        self._indices.copy_(torch.where(self._own < cached, self._spare, positions))
        late = self._columns - positions[:, None]  # a row's number is its position
        seen = {w: late <= 0 if w is None else (late <= 0) & (late > -w) for w in self._windows}
        self._attention.mask({window: rows[None] for window, rows in seen.items()})
        rotation = self._rotations.index_select(1, positions) * decoder.scales
        x = decoder.embed(tokens, positions)
        decoder.run_layers(x, None, rotation, self._buffers, [self._attention], ())
        return decoder.logits(x)


class Round:
    """Rounds of one kind: inputs in fixed memory, the same operations at every call.

    Args:
        target: Verifies.
        drafter: Drafts; None for plain decoding.
        kind: Sizes.
        state: The `Start` as four int64 numbers; the round replaces it by the next one's.
        us: The sequence's random numbers, a line for each of `PURPOSES`, by position.
        clock: Makes the events of the round's times.
        pool: Memory of the graph.
    """

    def __init__(
        self,
        target: Pair,
        drafter: Pair | None,
        kind: RoundKind,
        state: Tensor,
        us: Tensor,
        clock: Clock,
        pool: GraphPool | None,
    ) -> None:
        self._kind, self._state, self._us, self._pool = kind, state, us, pool
        self._verify = ChainForward(target, kind.slot, kind.gamma + 1, kind.lengths[1])
        self._first: ChainForward | None = None
        self._levels: DraftLevels | None = None
        if drafter is not None:
            plans = Wide(1, kind.gamma).plans(kind.gamma)
            processors = kind.sampling if kind.drawn else None
            how = DraftKind(kind.slot, 1, plans, kind.lengths[0], kind.columns, processors, argmax=True)
            self._first = ChainForward(drafter, kind.slot, 2, kind.lengths[0])
            self._levels = DraftLevels(drafter.decoder, (), drafter.cache, None, how, clock)
        self._places = torch.arange(kind.gamma + 1, device=state.device)
        self._events: list[Any] = [clock.event() for _ in range(5)]
        self._copied: Any = clock.event()
        self._facts: list[Tensor] = []
        self._hosted: list[Tensor] = []
        self._launch: Callable[[], None] | None = None

    def launch(self) -> None:
        """Start the round, and the copy of its facts to the host."""
        if self._launch is None:
            if self._state.is_cuda:
                start = self._state.clone()  # the graph's first, uncaptured run moves on from it
                self._launch = captured(self._compute, self._pool)
                self._state.copy_(start)
            else:
                self._launch = self._compute
        self._launch()
        if len(self._hosted) < len(self._facts):
            pinned = self._state.is_cuda
            self._hosted = [torch.empty(f.shape, dtype=f.dtype, pin_memory=pinned) for f in self._facts]
        for hosted, facts in zip(self._hosted, self._facts, strict=True):
            hosted.copy_(facts, non_blocking=True)
        self._copied.record()

    def read(self, clock: Clock) -> RoundFacts:
        """Wait for the round; return its facts."""
        self._copied.synchronize()
        flat, *qs = (hosted.clone() for hosted in self._hosted)
        width, drafted = 0, None
        if self._levels is not None:
            assert self._levels.facts is not None, "the round has been computed"
            width = self._levels.facts.shape[1]
            q = [row.view(1, 1, -1) for rows in qs for row in rows]
            drafted = self._levels.read(flat[None, :width], q, clock)
        marks = tuple(map(clock.hold, self._events))
        cells = self._first.cells if self._first else 0, self._verify.cells
        return RoundFacts(drafted, flat[width:], marks, cells)

    def _compute(self) -> None:
        kind, gamma = self._kind, self._kind.gamma
        length, last, missing = self._state[0], self._state[1:3], self._state[3]
        us = self._us.index_select(1, (length + self._places).clamp(max=self._us.shape[1] - 1))
        q, drafts, facts = None, last[:0], list[Tensor]()
        self._events[0].record()
        if self._levels is not None and self._first is not None:
            logits = self._first.run(last, length - 2, 2 - missing)[1:, : kind.columns]
            self._events[1].record()
            draws = us[DRAFT, :gamma].view(gamma, 1, 1)
            self._levels.compute(length[None], logits, logits.new_empty((1, 0)), draws)
            assert self._levels.facts is not None, "they have been computed"
            drafts = torch.cat(self._levels.columns, 1)[0]
            q = torch.cat([rows[0] for rows in self._levels.q]) if kind.drawn else None
            facts.append(self._levels.facts[0])
        self._events[2].record()
        chain = torch.cat([last[1:], drafts])
        logits = self._verify.run(chain, length - 1)
        self._events[3].record()
        verdict = judge_chain(logits, drafts, q, us, kind.sampling)
        before = chain.index_select(0, verdict.accepted[None])[0]
        grown = length + verdict.accepted + 1
        missing = 1 + (verdict.accepted == gamma)
        self._state.copy_(torch.stack([grown, before, verdict.own, missing]))
        self._facts = [torch.cat([*facts, verdict.facts]), *([] if q is None else [q])]
        self._events[4].record()


class DeviceRounds:
    """The rounds of a target and a drafter, made when first needed.

    Args:
        target: Verifies.
        drafter: Drafts; None for plain decoding.
    """

    def __init__(self, target: Decoder, drafter: Decoder | None) -> None:
        self._target, self._drafter = target, drafter
        self._rounds = PerCache[tuple[RoundKind, int, int], Round]()
        self._pool = graph_pool(target.device)
        self._state = torch.zeros(4, dtype=torch.int64, device=target.device)
        self._us = torch.zeros((len(PURPOSES), 0), dtype=torch.float64, device=target.device)
        self._draws: Draws | None = None
        self._known = range(0)
        """Positions whose random numbers are on the device."""
        self._turn = 0

    def count(self, cache: Cache) -> int:
        return len(self._rounds.of(cache))

    @torch.inference_mode()
    def launch(
        self,
        kind: RoundKind,
        caches: Sequence[Cache],
        draws: Draws,
        bound: int,
        start: Start | None,
        clock: Clock,
    ) -> Round:
        """Start a round.

        Args:
            kind: Its sizes; `lengths` are chosen here.
            caches: The target's and the drafter's.
            draws: The sequence's random numbers.
            bound: Tokens of the prefix, at most.
            start: Where it starts; None where the round that was launched last will end.
            clock: Makes the events of the round's times.
        """
        target, *drafting = caches
        reads = [read_length(bound + kind.gamma, cache.tensor.shape[3]) for cache in (caches[-1], target)]
        kind = kind._replace(lengths=tuple(reads), sampling=replace(kind.sampling, seed=0))
        if draws is not self._draws or (start and start.length < self._known.start):
            begin = start.length if start else bound
            self._draws, self._known = draws, range(begin, begin)
        self._supply(draws, bound + kind.gamma + 1, target.capacity + 1)
        self._turn = 1 - self._turn
        rounds, place = self._rounds.of(target), drafting[0].tensor.data_ptr() if drafting else 0
        if (key := (kind, place, self._turn)) not in rounds:
            pairs = Pair(self._target, target), self._drafter and Pair(self._drafter, drafting[0])
            rounds[key] = Round(*pairs, kind, self._state, self._us, clock, self._pool)
        if start is not None:
            numbers = [start.length, *start.last, start.missing]
            self._state.copy_(upload(numbers, self._state.device))
        rounds[key].launch()
        return rounds[key]

    def _supply(self, draws: Draws, end: int, most: int) -> None:
        """Copy the random numbers of positions before `end` to the device; there are `most`."""
        if self._us.shape[1] < most:  # of a larger cache, which has other rounds
            self._us = self._us.new_zeros((len(PURPOSES), most))
            self._known = range(self._known.start, self._known.start)
        if end > self._known.stop:
            first, last = self._known.stop, min(max(end, self._known.stop + AHEAD), most)
            lines = numbers(draws, range(first, last))
            more = upload([u for line in lines for u in line], self._us.device)
            self._us[:, first:last] = more.view(len(lines), -1)
            self._known = range(self._known.start, last)
