"""Rounds of drafting and verification without a host between their forwards: one CUDA graph each.

A round drafts, forwards the draft through the target, judges it, moves the accepted rows of a tree
to the end of the text's, and leaves on the device what the next round needs: how long the sequence
is, and its last tokens. So the next round can begin before the host has read this one. The
sequence's random numbers are on the device beforehand: they are a function of the position
(`specscope.engine.sampling.draws`). One small copy per round brings the drafts, the numbers that
were compared and the verdict to the host.

Two graphs of a kind take turns, so that one can run while the facts of the other are read. On a CPU
the same operations run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specscope.engine.model.levels import Drafted, DraftKind
from specscope.engine.model.static import PerCache, captured, read_length
from specscope.engine.model.tree_forward import CachedModel, TreeForward
from specscope.engine.sampling.forms import DeviceTree, DraftForm, form_of
from specscope.engine.sampling.rows import upload
from specscope.engine.sampling.verdict import DeviceJudge, NumberLines
from specscope.engine.worker.device_drafts import (
    DraftStart,
    LayerDraft,
    ModelDraft,
    RoundDraft,
    StateDraft,
)

if TYPE_CHECKING:
    from specscope.engine.drafting.tree import LevelPlan
    from specscope.engine.heads.drafting import Head
    from specscope.engine.model.cache import Cache
    from specscope.engine.model.clock import Clock
    from specscope.engine.model.decoder import Decoder
    from specscope.engine.model.static import GraphPool
    from specscope.engine.sampling.draws import Draws
    from specscope.engine.types import Sampling

AHEAD = 64
"""Positions whose random numbers are copied to the device at once."""


class RoundStart(NamedTuple):
    """Where a round starts."""

    tokens: Sequence[int]
    """The prefix, (L,)."""
    missing: int
    """Its last tokens without a row in the drafter's cache; the target lacks one."""


class RoundKind(NamedTuple):
    """The sizes of a round, and its way of choosing tokens."""

    slot: int
    plans: tuple[LevelPlan, ...]
    """The levels to draft; none for a round of plain decoding."""
    kept: int
    """Nodes that are verified: the best ones; 0 for all."""
    tail: int
    """Last tokens of the prefix that the drafting head does not read."""
    features: tuple[int, ...]
    """Layers of the target whose states are kept."""
    columns: int
    """Columns of the drafter's logits to choose from: the first ones."""
    sampling: Sampling
    """The logits processors of p, and of q if the tokens are drawn; its seed is 0."""
    drawn: bool
    """Whether the drafted tokens are drawn from q: rule 1."""
    argmax: bool
    """Whether a token that is not drawn is the argmax of the logits (`DraftKind.argmax`)."""
    lengths: tuple[int, int] = (0, 0)
    """Cached rows that attention reads, the drafter's and the target's."""

    @property
    def form(self) -> DraftForm:
        """The sizes of the draft that is verified."""
        return form_of(self.plans, self.kept)

    @property
    def rows(self) -> int:
        """Rows that a forward may have beside those of the prefix, at most."""
        forwarded = sum(plan.onward_count for plan in self.plans[:-1])
        return max(self.form.nodes, forwarded, len(self.plans) - 1 + self.tail)


class RoundFacts(NamedTuple):
    """A round, on the host. Times are marks of the clock (`specscope.engine.model.clock`)."""

    drafted: Drafted | None
    """The drafts, with the times of all forwards; None for plain decoding."""
    nodes: list[int]
    """The numbers of the nodes that are there."""
    tokens: tuple[int, ...]
    """Their tokens."""
    verdict: Tensor
    """What `specscope.engine.sampling.verdict.TreeRows` reads, (n,) float64."""
    verified: tuple[int, int]
    """The start and the end of the verification."""
    judged: int
    """The end of the judgement."""
    cells: int
    """Query-key cells of the verification, see `Output.cells`."""


class Drafter(NamedTuple):
    """What drafts in rounds: a model, a head's layer, or a head without one."""

    decoder: Decoder | None
    head: Head | None = None

    def draft(self, kind: RoundKind, target: Cache, own: Cache | None, clock: Clock) -> RoundDraft:
        """Return its part of a round, with its own cache if it has a decoder."""
        processors = kind.sampling if kind.drawn else None
        how = DraftKind(kind.slot, 1, kind.plans, kind.lengths[0], kind.columns, processors, kind.argmax)
        if self.decoder is None or own is None:
            assert self.head is not None, "a model or a head drafts"
            return StateDraft(self.head, target, how, clock)
        model = CachedModel(self.decoder, own)
        if self.head is None:
            return ModelDraft(model, how, clock)
        return LayerDraft(self.head, model, target, how, kind.tail, clock)


class DeviceRound:
    """Rounds of one kind: inputs in fixed memory, the same operations at every call.

    Args:
        target: Verifies.
        draft: Drafts; None for plain decoding.
        kind: Sizes.
        state: Tokens of the prefix, those without a row in the drafter's cache, and its last ones,
            int64; the round replaces it by the next one's. A draft reads all of the last ones.
        us: The sequence's random numbers (`NumberLines`), by position.
        clock: Makes the events of the round's times.
        tokens: The token of each column of the draft; None if column i is token i.
        pool: Memory of the graph.
    """

    def __init__(
        self,
        target: CachedModel,
        draft: RoundDraft | None,
        kind: RoundKind,
        state: Tensor,
        us: Tensor,
        clock: Clock,
        tokens: Tensor | None,
        pool: GraphPool | None,
    ) -> None:
        device, form = state.device, kind.form
        self._state, self._us, self._pool, self._draft, self._tokens = state, us, pool, draft, tokens
        self._kind, self._form = kind, form
        self._kv, self._features = target.cache.tensor[:, kind.slot], None
        if kind.features:
            assert target.cache.features is not None, "the run keeps them"
            self._features = target.cache.features[kind.slot]
        self._decoder = target.decoder
        features = kind.features
        self._verify = TreeForward(target, kind.slot, form.nodes + 1, kind.lengths[1], features)
        self._judge = DeviceJudge(form, kind.sampling, kind.drawn, device)
        self._none = DeviceTree.chain(torch.zeros(0, dtype=torch.int64, device=device))
        self._levels = torch.arange(max(form.depth, 1), device=device)
        self._rows = torch.arange(form.nodes + 1, device=device)
        self._window = torch.arange(len(state) - 2, device=device)
        self._events: list[Any] = [clock.event() for _ in range(3)]
        self._copied: Any = clock.event()
        self._facts: list[Tensor] = []
        self._width = 0
        """Of the facts: those of the draft."""
        self._hosted: list[Tensor] = []
        self._launch: Callable[[], None] | None = None

    def start(self, start: RoundStart) -> None:
        """Say where the next round starts."""
        reads = len(self._state) - 2
        last = [0] * reads + [*start.tokens[-reads:]]
        given = [len(start.tokens), start.missing, *last[-reads:]]
        self._state.copy_(upload(given, self._state.device))

    def launch(self) -> None:
        """Start the round, and the copy of its facts to the host."""
        if self._launch is None:
            start = self._state.clone()  # a graph's first, uncaptured run moves on from it
            self._launch = captured(self._compute, self._pool)
            self._state.copy_(start)
            if self._pool:  # only facts are read after a replay; the pool has the rest for other graphs
                self._verify.states = {}
                if self._draft is not None:
                    self._draft.levels.forget()
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
        width = self._width
        drafted = self._draft and self._draft.levels.read(flat[:width], q[0] if q else None, clock)
        count = self._form.nodes
        exists, tokens, verdict = flat[width:].split([count, count, len(flat) - width - 2 * count])
        start, end, judged = map(clock.hold, self._events)
        nodes = exists.nonzero()[:, 0].tolist()
        ids = tuple(tokens[nodes].long().tolist())
        return RoundFacts(drafted, nodes, ids, verdict, (start, end), judged, self._verify.cells)

    def _compute(self) -> None:
        length, missing, last = self._state[0], self._state[1], self._state[2:]
        tree, q, facts, draft = self._none, None, list[Tensor](), self._draft
        if draft is not None:
            lines = self._us[: max(self._judge.lines.drafts, 1)]
            draft.compute(DraftStart(last, length, missing), self._at(lines, length + self._levels).t())
            tree, q, facts = draft.levels.tree(self._kind.kept), draft.levels.q, [draft.levels.facts]
        self._events[0].record()
        tokens, first, seen = (
            torch.cat([last[-1:], tree.tokens]),
            length - 1,
            tree.ancestors(self._form.depth),
        )
        logits = self._decoder.logits(self._verify.run(tokens, first, (tree.depths, seen)))
        self._store(first)
        self._events[1].record()
        us = self._at(self._us, length + tree.depths)
        path, own, verdict = self._judge.judge(logits, tree, seen, self._spread(q, logits), us)
        accepted = (path > 0).sum()
        self._move(path, first)
        text = torch.cat([last, tokens.index_select(0, path), own[None]])
        text.index_copy_(0, (len(last) + accepted)[None], own[None])
        after = accepted if draft is None else draft.missing(accepted)
        numbers = torch.stack([length + accepted + 1, after])
        self._state.copy_(torch.cat([numbers, text.index_select(0, self._window + accepted + 1)]))
        self._width = sum(map(len, facts))
        self._facts = [
            torch.cat([*facts, tree.exists.double(), tree.tokens.double(), verdict]),
            *([] if q is None else [q]),
        ]
        self._events[2].record()

    def _at(self, lines: Tensor, positions: Tensor) -> Tensor:
        return lines.index_select(1, positions.clamp(max=lines.shape[1] - 1))

    def _store(self, first: Tensor) -> None:
        """Keep the target's states of the rows that it has forwarded."""
        if self._features is not None:
            states = torch.cat([self._verify.states[layer] for layer in self._kind.features], 1)
            self._features.index_copy_(0, first + self._rows, states)

    def _spread(self, q: Tensor | None, logits: Tensor) -> Tensor | None:
        """Return q over the target's tokens, (P, V)."""
        if q is None:
            return None
        if self._tokens is None:
            return pad(q, (0, logits.shape[1] - q.shape[1]))
        return q.new_zeros((len(q), logits.shape[1])).index_copy_(1, self._tokens, q)

    def _move(self, path: Tensor, first: Tensor) -> None:
        """Move the rows of the accepted path of a tree behind those of the prefix."""
        if self._form.is_chain:
            return
        source = first + path  # no node's row is row 0: the last token's, which stays
        target = torch.where(path > 0, first + self._levels + 1, first)
        for rows in [self._kv, *([] if self._draft is None else self._draft.moved)]:
            rows.index_copy_(2, target, rows.index_select(2, source))
        if self._features is not None:
            self._features.index_copy_(0, target, self._features.index_select(0, source))


class DeviceRounds:
    """The rounds of a target and a drafter, made when first needed.

    Args:
        target: Verifies.
        drafter: Drafts; None for plain decoding.
        lines: The lines of the table of random numbers.
        pool: The memory of all rounds' graphs, which never run at once.
    """

    def __init__(
        self, target: Decoder, drafter: Drafter | None, lines: NumberLines, pool: GraphPool | None
    ) -> None:
        self._target, self._drafter, self._lines = target, drafter, lines
        self._rounds = PerCache[tuple[Any, ...], DeviceRound](target)
        self._pool = pool
        self._states: dict[int, Tensor] = {}
        """Of each number of last tokens that a round reads."""
        self._us = torch.zeros((len(lines), 0), dtype=torch.float64, device=target.device)
        self._draws: Draws | None = None
        self._known = range(0)
        """Positions whose random numbers are on the device."""
        self._turn = 0

    @torch.inference_mode()
    def launch(
        self,
        kind: RoundKind,
        caches: tuple[Cache, Cache | None],
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
        target, own = caches
        reads = [
            read_length(bound + kind.rows, cache.tensor.shape[3])
            for cache in (target if own is None else own, target)
        ]
        kind = kind._replace(lengths=tuple(reads), sampling=replace(kind.sampling, seed=0))
        if draws is not self._draws or (start and len(start.tokens) < self._known.start):
            begin = len(start.tokens) if start else bound
            self._draws, self._known = draws, range(begin, begin)
        self._supply(draws, bound + kind.rows + 1, target.capacity + 1)
        self._turn = 1 - self._turn
        rounds, key = self._rounds.of(target), (kind, self._turn, *self._used(caches))
        if key not in rounds:
            rounds[key] = self._new(kind, target, own, clock)
        if start is not None:
            rounds[key].start(start)
        rounds[key].launch()
        return rounds[key]

    def _new(self, kind: RoundKind, target: Cache, own: Cache | None, clock: Clock) -> DeviceRound:
        draft = self._drafter.draft(kind, target, own, clock) if self._drafter and kind.plans else None
        head = self._drafter.head if self._drafter else None
        size = 2 + (draft.reads if draft else 1)
        if size not in self._states:
            self._states[size] = torch.zeros(size, dtype=torch.int64, device=self._us.device)
        model, tokens = CachedModel(self._target, target), head.columns.tokens if head else None
        return DeviceRound(model, draft, kind, self._states[size], self._us, clock, tokens, self._pool)

    def _used(self, caches: tuple[Cache, Cache | None]) -> Iterator[int]:
        """Note that models are used; yield what their graphs depend on: compiled layers, caches."""
        models = self._target, self._drafter.decoder if self._drafter else None
        for model, cache in zip(models, caches, strict=True):
            if model is None or cache is None:
                continue
            if (compiler := model.compiler) is not None:
                compiler.used()
                yield compiler.version
            yield cache.tensor.data_ptr()
            yield 0 if cache.features is None else cache.features.data_ptr()

    def _supply(self, draws: Draws, end: int, most: int) -> None:
        """Copy the random numbers of positions before `end` to the device; there are `most`."""
        if self._us.shape[1] < most:  # of a larger cache, which has other rounds
            self._us = self._us.new_zeros((len(self._lines), most))
            self._known = range(self._known.start, self._known.start)
        if end > self._known.stop:
            first, last = self._known.stop, min(max(end, self._known.stop + AHEAD), most)
            lines = self._lines.numbers(draws, range(first, last))
            more = upload([u for line in lines for u in line], self._us.device)
            self._us[:, first:last] = more.view(len(lines), -1)
            self._known = range(self._known.start, last)
