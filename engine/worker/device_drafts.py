"""The drafting part of a round that needs no host: what a model or a head drafts after a prefix.

Each kind reads the last tokens of the prefix from the device, makes its first forward, and lets
`specscope.engine.model.levels.DraftLevels` choose the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from specscope.engine.heads.drafting import AllLevels, ByPath, Head
from specscope.engine.model.fused import LevelForwards
from specscope.engine.model.levels import Drafted, DraftKind, DraftLevels, LevelRows, LevelSource
from specscope.engine.model.tree_forward import CachedModel, TreeForward
from specscope.engine.sampling.forms import DeviceTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.model.cache import Cache
    from specscope.engine.model.clock import Clock


class DraftStart(NamedTuple):
    """Where a draft starts, on the device."""

    last: Tensor
    """The last tokens of the prefix, (T,) int64."""
    length: Tensor
    """Tokens of the prefix: L, ()."""
    missing: Tensor
    """Of these: without a row in the drafter's cache, ()."""


class _Levels:
    """The levels of one sequence's draft, with the times of the first forward.

    Args:
        source: See `DraftLevels`.
        tokens: See `DraftLevels`.
        kind: The draft's sizes.
        cells: Query-key cells of the first forward.
        clock: Makes the events of all forwards.
        device: The models'.
    """

    def __init__(
        self,
        source: LevelSource,
        tokens: Tensor | None,
        kind: DraftKind,
        cells: int,
        clock: Clock,
        device: torch.device,
    ) -> None:
        self._levels, self._cells = DraftLevels(source, tokens, kind, clock, device), cells
        self._events: tuple[Any, Any] = (clock.event(), clock.event())
        depths = [0, *(level for level, plan in enumerate(kind.plans, 1) for _ in range(plan.nodes))]
        self._depths = torch.tensor(depths, device=device)

    def begin(self) -> None:
        """Note that the first forward begins."""
        self._events[0].record()

    def compute(self, length: Tensor, logits: Tensor, states: Tensor, us: Tensor) -> None:
        """Draft after the first forward's logits, (N,), by numbers, (levels, n)."""
        self._events[1].record()
        columns = logits[None, : self._levels.kind.columns]
        self._levels.compute(length[None], columns, states, us[:, None])

    @property
    def facts(self) -> Tensor:
        """What `read` reads, (m,) float64."""
        assert self._levels.facts is not None, "the draft has been computed"
        return self._levels.facts[0]

    def tree(self, kept: int) -> DeviceTree:
        """Return the draft: all of its nodes, or the `kept` best ones."""
        nodes = self._levels.nodes
        tokens, exists, parents, siblings, paths = (
            torch.cat([*parts], 1)[0] for parts in zip(*nodes, strict=True)
        )
        tree = DeviceTree(tokens, exists, parents, self._depths, siblings)
        return tree.best(paths, kept) if kept else tree

    @property
    def q(self) -> Tensor | None:
        """The rows that the tokens were drawn from, (P, N), if they were."""
        return torch.cat([q[0] for q in self._levels.q]) if self._levels.q else None

    def forget(self) -> None:
        """Drop what `compute` has left."""
        self._levels.forget()

    def read(self, facts: Tensor, q: Tensor | None, clock: Clock) -> Drafted:
        """Return the draft of `facts` and `q` on the host; the first forward is among its times."""
        counts = [len(plan.counts) for plan in self._levels.kind.plans]
        rows = [] if q is None else [part[None] for part in q.split(counts)]
        levels, times, cells = self._levels.read(facts[None], rows, clock)
        first = clock.hold(self._events[0]), clock.hold(self._events[1])
        return Drafted(levels, [first, *times], [self._cells, *cells])


class ModelDraft:
    """A model's draft: its first forward has the prefix's last two tokens, or the last one."""

    reads = 2
    """Last tokens of the prefix."""

    def __init__(self, model: CachedModel, kind: DraftKind, clock: Clock) -> None:
        self._first = TreeForward(model, kind.slot, self.reads, kind.length)
        source = LevelForwards(model.decoder, (), model.cache, kind)
        device = model.cache.tensor.device
        self.levels = _Levels(source, None, kind, self._first.cells, clock, device)
        self.moved = (model.cache.tensor[:, kind.slot],)
        self._decoder, self._count = model.decoder, len(kind.plans)

    def compute(self, start: DraftStart, us: Tensor) -> None:
        """Draft by the numbers of each level, (levels, n)."""
        last, length, missing = start
        self.levels.begin()
        states = self._first.run(last, length - self.reads, void=self.reads - missing)
        logits = self._decoder.logits(states[-1:])
        self.levels.compute(length, logits[0], logits.new_empty((1, 0)), us)

    def missing(self, accepted: Tensor) -> Tensor:
        """Return how many tokens have no row after a round."""
        return 1 + (accepted == self._count)


class LayerDraft:
    """The draft of a head with a layer: accepted tokens with the target's states, then masks.

    The row of a token reads the target's state of the token before it; the first token has no row.
    A head with states that it predicts drafts level by level, one with masks in one forward.

    Its rows of drafted tokens are not used again.

    Args:
        head: The head.
        model: Its layer.
        target: The target's cache, which has the states.
        kind: The draft's sizes.
        tail: Last tokens of the prefix that the head does not read; masks are in their places.
        clock: Makes the events of all forwards.
    """

    moved = ()

    def __init__(
        self, head: Head, model: CachedModel, target: Cache, kind: DraftKind, tail: int, clock: Clock
    ) -> None:
        assert head.layer is not None, "it has a layer"
        count = len(kind.plans)
        self._rows, self._tail = count + 1, tail
        self.reads = self._rows + tail
        self._masks = 0 if head.keeps else count - 1 + tail
        rows = self._rows + self._masks
        self._first = TreeForward(model, kind.slot, rows, kind.length, head.keeps, self._masks)
        self._at_once = _AtOnce()
        source = LevelForwards(model.decoder, head.keeps, model.cache, kind) if head.keeps else self._at_once
        device, cells = model.cache.tensor.device, self._first.cells
        self.levels = _Levels(source, head.columns.tokens, kind, cells, clock, device)
        self._fuse, self._keeps, self._decoder = head.layer.fuse, head.keeps, model.decoder
        assert target.features is not None, "the run keeps them"
        self._features, self._own = target.features[kind.slot], torch.arange(self._rows, device=device)
        self._padding = torch.zeros(self._masks, dtype=torch.int64, device=device)

    def compute(self, start: DraftStart, us: Tensor) -> None:
        last, length, missing = start
        first = length - self._tail - 1 - self._rows
        self.levels.begin()
        states = self._fuse(self._features.index_select(0, (first + self._own).clamp(min=0)))
        vectors = torch.cat([states, states.new_zeros((self._masks, states.shape[1]))])
        tokens = torch.cat([last[: self._rows], self._padding])
        x = self._first.run(tokens, first, void=self._rows - missing, vectors=vectors)
        logits = self._decoder.logits(x[self._rows - 1 :])
        kept = self._first.states[self._keeps[0]][self._rows - 1 :] if self._keeps else x[:1]
        self._at_once.rows = logits = logits[self._tail :]
        self.levels.compute(length - self._tail - 1, logits[0], kept, us)

    def missing(self, accepted: Tensor) -> Tensor:
        return accepted + 1


class StateDraft:
    """The draft of a head without a layer: it reads one state of the target.

    Args:
        head: The head.
        target: The target's cache, which has the states.
        kind: The draft's sizes.
        clock: Makes the events of all forwards.
    """

    reads, moved = 1, ()

    def __init__(self, head: Head, target: Cache, kind: DraftKind, clock: Clock) -> None:
        assert head.from_state is not None, "it has no layer"
        assert target.features is not None, "the run keeps them"
        self._features, count = target.features[kind.slot], len(kind.plans)
        source = (
            _AtOnce(head.from_state, count)
            if isinstance(head.from_state, AllLevels)
            else _Paths(head.from_state, count)
        )
        self._first = source.first
        self.levels = _Levels(source, head.columns.tokens, kind, 0, clock, target.tensor.device)

    def compute(self, start: DraftStart, us: Tensor) -> None:
        last, length, _ = start
        self.levels.begin()
        states = self._features.index_select(0, (length - 2)[None])
        self.levels.compute(length, self._first(states, last), states, us)

    def missing(self, accepted: Tensor) -> Tensor:
        return torch.ones_like(accepted)


RoundDraft: TypeAlias = ModelDraft | LayerDraft | StateDraft


class _AtOnce:
    """All levels of one forward: each row holds for its whole level."""

    cells: Sequence[int] = ()

    def __init__(self, head: AllLevels | None = None, levels: int = 0) -> None:
        self._head, self._levels = head, levels
        self.rows = torch.empty(0)
        """(levels, N)."""

    def first(self, states: Tensor, last: Tensor) -> Tensor:  # noqa: ARG002 - the state is read alone
        """Compute all levels; return the logits of the first one, (N,)."""
        assert self._head is not None, "its rows are given otherwise"
        self.rows = self._head.logits(states, self._levels)[0]
        return self.rows[0]

    def run(self, level: int, lengths: Tensor, tokens: Tensor, parents: Tensor, states: Tensor) -> LevelRows:  # noqa: ARG002
        return self.rows[level + 1].expand(1, tokens.shape[1], -1), states


class _Paths:
    """Levels of a head that reads the tokens drafted so far."""

    def __init__(self, head: ByPath, levels: int) -> None:
        self._head = head
        self.cells = [0] * (levels - 1)
        self.paths = torch.empty(0)
        """Tokens from the last known one on to each row above, (1, K, i + 1)."""

    def first(self, states: Tensor, last: Tensor) -> Tensor:
        """Return the logits after the last known token, (N,)."""
        self.paths = last[None, None]
        return self._head.logits(states, last[None])[0]

    def run(self, level: int, lengths: Tensor, tokens: Tensor, parents: Tensor, states: Tensor) -> LevelRows:  # noqa: ARG002
        above = self.paths.index_select(1, parents[0])
        self.paths = torch.cat([above, tokens[:, :, None]], 2)
        logits = self._head.logits(states[0].expand(tokens.shape[1], -1), self.paths[0])
        return logits[None], states
