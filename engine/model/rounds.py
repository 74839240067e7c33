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

from collections.abc import Callable, Iterator, Sequence
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


class RoundStart(NamedTuple):
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
    """A round, on the host. Times are marks of the clock (`specscope.engine.model.clock`)."""

    drafted: Drafted | None
    """The drafts, with the times of all forwards; None for plain decoding."""
    verdict: Tensor
    """What `specscope.engine.sampling.chain.ChainRows` reads, (n,) float64."""
    verified: tuple[int, int]
    """The start and the end of the verification."""
    judged: int
    """The end of the judgement."""
    cells: int
    """Query-key cells of the verification, see `Output.cells`."""


class CachedModel(NamedTuple):
    """A model with its cache."""

    decoder: Decoder
    cache: Cache


class ChainForward:
    """A forward of K rows of one slot's chain; the device knows their tokens and places."""

    def __init__(self, model: CachedModel, slot: int, rows: int, length: int) -> None:
        self._decoder, cache = model
        device = cache.tensor.device
        self._buffers = cache.buffers(rows)
        self._indices = torch.zeros(rows, dtype=torch.int64, device=device)
        slots = range(slot, slot + 1)
        compiler = self._decoder.compiler
        self._attention = PaddedAttention(
            cache, self._buffers, slots, length, self._indices, compiler=compiler
        )
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
        decoder.run_static(x, None, rotation, self._buffers, self._attention, ())
        return decoder.logits(x)


class ChainDraft:
    """The drafter's part of a round: its first forward, then a forward for each further token."""

    def __init__(self, drafter: CachedModel, kind: RoundKind, clock: Clock) -> None:
        plans = Wide(1, kind.gamma).plans(kind.gamma)
        processors = kind.sampling if kind.drawn else None
        how = DraftKind(kind.slot, 1, plans, kind.lengths[0], kind.columns, processors, argmax=True)
        self._first = ChainForward(drafter, kind.slot, 2, kind.lengths[0])
        self._levels = DraftLevels(drafter.decoder, (), drafter.cache, None, how, clock)
        self._gamma, self._columns = kind.gamma, kind.columns
        self._events: list[Any] = [clock.event(), clock.event()]
        self.facts = torch.empty(0)
        """What `read` reads, (n,) float64."""
        self.q: Tensor | None = None
        """The rows that the tokens were drawn from, (G, N), if they were."""

    def compute(self, last: Tensor, length: Tensor, missing: Tensor, us: Tensor) -> Tensor:
        """Draft G tokens after a prefix (see `RoundStart`) by their numbers, (G,); return them."""
        self._events[0].record()
        logits = self._first.run(last, length - 2, 2 - missing)[1:, : self._columns]
        self._events[1].record()
        levels = self._levels
        levels.compute(length[None], logits, logits.new_empty((1, 0)), us[:, None, None])
        assert levels.facts is not None, "they have been computed"
        self.facts, self.q = levels.facts[0], torch.cat([q[0] for q in levels.q]) if levels.q else None
        return torch.cat(levels.columns, 1)[0]

    def read(self, facts: Tensor, q: Tensor | None, clock: Clock) -> Drafted:
        """Return the draft of `facts` and `q` on the host; the first forward is among its times."""
        rows = [] if q is None else [row[None, None] for row in q]
        levels, times, cells = self._levels.read(facts[None], rows, clock)
        first = clock.hold(self._events[0]), clock.hold(self._events[1])
        return Drafted(levels, [first, *times], [self._first.cells, *cells])


class DeviceRound:
    """Rounds of one kind: inputs in fixed memory, the same operations at every call.

    Args:
        target: Verifies.
        drafter: Drafts; None for plain decoding.
        kind: Sizes.
        state: The `RoundStart` as four int64 numbers; the round replaces it by the next one's.
        us: The sequence's random numbers, a line for each of `PURPOSES`, by position.
        clock: Makes the events of the round's times.
        pool: Memory of the graph.
    """

    def __init__(
        self,
        target: CachedModel,
        drafter: CachedModel | None,
        kind: RoundKind,
        state: Tensor,
        us: Tensor,
        clock: Clock,
        pool: GraphPool | None,
    ) -> None:
        self._kind, self._state, self._us, self._pool = kind, state, us, pool
        self._draft = None if drafter is None else ChainDraft(drafter, kind, clock)
        self._verify = ChainForward(target, kind.slot, kind.gamma + 1, kind.lengths[1])
        self._places = torch.arange(kind.gamma + 1, device=state.device)
        self._events: list[Any] = [clock.event() for _ in range(3)]
        self._copied: Any = clock.event()
        self._facts: list[Tensor] = []
        self._hosted: list[Tensor] = []
        self._launch: Callable[[], None] | None = None

    def launch(self) -> None:
        """Start the round, and the copy of its facts to the host."""
        if self._launch is None:
            start = self._state.clone()  # a graph's first, uncaptured run moves on from it
            self._launch = captured(self._compute, self._pool) if self._pool else self._compute
            self._state.copy_(start)
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
        flat, *q = (hosted.clone() for hosted in self._hosted)
        width = 0 if self._draft is None else len(self._draft.facts)
        drafted = self._draft and self._draft.read(flat[:width], q[0] if q else None, clock)
        start, end, judged = map(clock.hold, self._events)
        return RoundFacts(drafted, flat[width:], (start, end), judged, self._verify.cells)

    def _compute(self) -> None:
        length, last, missing = self._state[0], self._state[1:3], self._state[3]
        us = self._us.index_select(1, (length + self._places).clamp(max=self._us.shape[1] - 1))
        drafts, q, facts = last[:0], None, list[Tensor]()
        if self._draft is not None:
            drafts = self._draft.compute(last, length, missing, us[DRAFT, : self._kind.gamma])
            q, facts = self._draft.q, [self._draft.facts]
        self._events[0].record()
        chain = torch.cat([last[1:], drafts])
        logits = self._verify.run(chain, length - 1)
        self._events[1].record()
        accepted, own, verdict = judge_chain(logits, drafts, q, us, self._kind.sampling)
        before = chain.index_select(0, accepted[None])[0]
        missing = 1 + (accepted == self._kind.gamma)
        self._state.copy_(torch.stack([length + accepted + 1, before, own, missing]))
        self._facts = [torch.cat([*facts, verdict]), *([] if q is None else [q])]
        self._events[2].record()


class DeviceRounds:
    """The rounds of a target and a drafter, made when first needed.

    Args:
        target: Verifies.
        drafter: Drafts; None for plain decoding.
    """

    def __init__(self, target: Decoder, drafter: Decoder | None) -> None:
        self._target, self._drafter = target, drafter
        self._rounds = PerCache[tuple[Any, ...], DeviceRound](target)
        self._pool = graph_pool(target.device)
        self._state = torch.zeros(4, dtype=torch.int64, device=target.device)
        self._us = torch.zeros((len(PURPOSES), 0), dtype=torch.float64, device=target.device)
        self._draws: Draws | None = None
        self._known = range(0)
        """Positions whose random numbers are on the device."""
        self._turn = 0

    @torch.inference_mode()
    def launch(
        self,
        kind: RoundKind,
        caches: Sequence[Cache],
        draws: Draws,
        bound: int,
        start: RoundStart | None,
        clock: Clock,
    ) -> DeviceRound:
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
        models = CachedModel(self._target, target), self._drafter and CachedModel(self._drafter, drafting[0])
        self._turn = 1 - self._turn
        rounds, key = self._rounds.of(target), (kind, self._turn, *self._used(models))
        if key not in rounds:
            rounds[key] = DeviceRound(*models, kind, self._state, self._us, clock, self._pool)
        if start is not None:
            given = [start.length, *start.last, start.missing]
            self._state.copy_(upload(given, self._state.device))
        rounds[key].launch()
        return rounds[key]

    def _used(self, models: Sequence[CachedModel | None]) -> Iterator[int]:
        """Note that models are used; yield what their graphs depend on: compiled layers, caches."""
        for model in filter(None, models):
            if (compiler := model.decoder.compiler) is not None:
                compiler.used()
                yield compiler.version
            yield model.cache.tensor.data_ptr()

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
