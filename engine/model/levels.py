"""Levels of drafts whose tokens are chosen on the device.

The places of the drafted nodes are known before their tokens are: how many children the nodes of a
level get is fixed (`specscope.engine.drafting.tree.LevelPlan`); a chain has one node per level. So
are the rows of each forward, one per node that gets children, and the random numbers, which are a
function of the position (`specscope.engine.sampling.draws`). Each level's tokens are chosen on the
device, where the next forward reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from specscope.engine.sampling.draws import TOP, pick_rows, process_logits, softmax
from specscope.engine.sampling.forms import best_places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specscope.engine.drafting.tree import LevelPlan
    from specscope.engine.model.clock import Clock
    from specscope.engine.types import Sampling

NUMBER_BITS = 32
"""Bits of the token id in the sort key of the most probable tokens."""


class DraftKind(NamedTuple):
    """The sizes of a draft, and its way of choosing tokens."""

    slot: int
    slots: int
    """S, the slots from there on."""
    plans: tuple[LevelPlan, ...]
    length: int
    """Cached rows that attention reads."""
    columns: int
    """N, the columns of the logits to choose from: the first ones."""
    sampling: Sampling | None
    """The logits processors of q; None: the tokens are not drawn."""
    argmax: bool
    """Whether tokens that are not drawn are the argmax of the logits; otherwise a node's children
    are its most probable tokens."""

    @property
    def forwarded(self) -> list[int]:
        """Nodes of each level but the last that get children: K, the rows of a slot's forwards."""
        return [plan.onward_count for plan in self.plans[:-1]]


class ChosenLevel(NamedTuple):
    """One level of B slots. K rows have logits: one per node above that gets children."""

    alive: Tensor
    """Whether the node of a row exists, (B, K) bool: q may have fewer tokens than the plan."""
    top_ids: Tensor
    """The most probable columns of each row, falling, lower ids first among equals, (B, K, m)."""
    top: Tensor
    """Their probabilities, float64."""
    ids: Tensor
    """The chosen columns, (B, K, C) for C children at most; empty for most probable children."""
    counts: Tensor
    """The number of children of each row, (B, K)."""
    q: Tensor | None
    """(B, K, N) if the children were drawn."""


class Drafted(NamedTuple):
    """Drafts of B slots."""

    levels: list[ChosenLevel]
    times: list[tuple[int, int]]
    """Marks of the start and the end of all forwards but the first (`engine.model.clock`)."""
    cells: list[int]
    """Query-key cells of these forwards, see `Output.cells`."""


class DeviceNodes(NamedTuple):
    """The nodes of a level, (S, n) each; see `specscope.engine.sampling.forms.DeviceTree`."""

    tokens: Tensor
    exists: Tensor
    parents: Tensor
    siblings: Tensor
    paths: Tensor
    """As in `Node`, float64."""


LevelRows: TypeAlias = tuple[Tensor, Tensor]
"""Logits after the nodes of a level, (S, K, N), and their states, (S, K, D)."""


class LevelSource(Protocol):
    """Computes the logits of a draft's levels below the first."""

    @property
    def cells(self) -> Sequence[int]:
        """Query-key cells of each of its forwards: of all levels, or none."""
        ...

    def run(self, level: int, lengths: Tensor, tokens: Tensor, parents: Tensor, states: Tensor) -> LevelRows:
        """Forward nodes of a level, from 0.

        `lengths`: see `DraftLevels.compute`. `tokens` and `parents`, among the rows above, are
        (S, K); `states` are those of the rows above.
        """
        ...


class DraftLevels:
    """The device's part of a draft: the same operations at every call.

    Args:
        source: Computes the logits of the levels below the first.
        tokens: The token of each column, (N,) int64; None if column i is token i.
        kind: The draft's sizes.
        clock: Makes the events before and after each forward.
        device: The models'.
    """

    def __init__(
        self, source: LevelSource, tokens: Tensor | None, kind: DraftKind, clock: Clock, device: torch.device
    ) -> None:
        self.kind, self._tokens, self._source, self.device = kind, tokens, source, device
        self._levels = [_Choice(plan, kind, device) for plan in kind.plans]
        self._events: list[tuple[Any, Any]] = [(clock.event(), clock.event()) for _ in source.cells]
        self.facts: Tensor | None = None
        """What `read` reads, float64, (S, n)."""
        self.q = list[Tensor]()
        """Of each level, (S, K, N), if its tokens were drawn."""
        self.nodes = list[DeviceNodes]()
        """The nodes of each level."""

    def compute(self, lengths: Tensor, logits: Tensor, states: Tensor, numbers: Tensor) -> None:
        """Draft after each slot's rows.

        Args:
            lengths: Rows of each slot before the draft, -1 for a void slot, (S,) int64.
            logits: Of each slot's last row, (S, N).
            states: Of a head's layer: the predicted state of each slot's last row, (S, D).
            numbers: What decides the draws, (levels, S, most nodes of a level), float64.
        """
        logits, states = logits[:, None], states[:, None]
        paths = logits.new_ones((len(lengths), 1), dtype=torch.float64)
        alive, above, first = (lengths >= 0)[:, None], lengths.new_zeros((len(lengths), 1)), 1
        self.nodes = list[DeviceNodes]()
        drafted = list[_Chosen]()
        for level, choice in enumerate(self._levels):
            chosen = choice.choose(logits, paths, alive, numbers[level])
            drafted.append(chosen)
            ids = chosen.columns if self._tokens is None else self._tokens[chosen.columns]
            self.nodes.append(
                DeviceNodes(
                    ids, chosen.exists, above.gather(1, chosen.parents), chosen.siblings, chosen.paths
                )
            )
            if level == len(self._levels) - 1:
                break
            if level < len(self._events):
                self._events[level][0].record()
            places = choice.onward(chosen.paths, chosen.exists)
            parents = chosen.parents.gather(1, places)
            paths, alive = chosen.paths.gather(1, places), chosen.exists.gather(1, places)
            above, first = first + places, first + ids.shape[1]
            logits, states = self._source.run(level, lengths, ids.gather(1, places), parents, states)
            if level < len(self._events):
                self._events[level][1].record()
        self.q = [chosen.q for chosen in drafted] if self.kind.sampling else []
        self.facts = torch.cat([part.double() for part in _facts(drafted, self._levels)], 1)

    def forget(self) -> None:
        """Drop what `compute` has left."""
        self.facts, self.q, self.nodes = None, [], []

    def read(self, facts: Tensor, qs: Sequence[Tensor], clock: Clock) -> Drafted:
        """Return the draft, from its facts, (B, n), and the q of its drawn levels on the host."""
        parts = facts.split([choice.width for choice in self._levels], 1)
        each = zip(self._levels, parts, qs or [None] * len(parts), strict=True)
        levels = [choice.read(part, q) for choice, part, q in each]
        times = [(clock.hold(start), clock.hold(end)) for start, end in self._events]
        return Drafted(levels, times, [*self._source.cells])


class _Chosen(NamedTuple):
    """The n nodes of a level, (S, n); `paths` are the probabilities of the paths to them."""

    parents: Tensor
    """The row above of each node."""
    siblings: Tensor
    """Its number among its siblings."""
    columns: Tensor
    paths: Tensor
    exists: Tensor
    q: Tensor
    """The probabilities that they were chosen by, (S, K, N)."""
    alive: Tensor
    ids: Tensor
    counts: Tensor
    """As in `ChosenLevel`."""
    top: tuple[Tensor, Tensor] | None
    """Ids and probabilities, (S K, m), where the nodes are the most probable ones."""


def _facts(drafted: Sequence[_Chosen], levels: Sequence[_Choice]) -> Iterator[Tensor]:
    """Yield what travels to the host, level by level, (S, n) each.

    The most probable columns that no choice needed are found here, for all levels at once.
    """
    later = [(chosen, choice) for chosen, choice in zip(drafted, levels, strict=True) if chosen.top is None]
    rows = [chosen.q.flatten(0, 1) for chosen, _ in later]
    found = _most_probable(torch.cat(rows), later[0][1].top) if later else ()
    tops = zip(*(part.split([len(q) for q in rows]) for part in found), strict=True)
    for chosen in drafted:
        ids, top = chosen.top or next(tops)
        slots = len(chosen.alive)
        yield from (chosen.alive, ids.view(slots, -1), top.view(slots, -1))
        yield from (chosen.ids.flatten(1), chosen.counts)


class _Choice:
    """Selects the nodes of a level on the device (`specscope.engine.drafting.level.next_level`)."""

    def __init__(self, plan: LevelPlan, kind: DraftKind, device: torch.device) -> None:
        self._plan, self._sampling, self._argmax = plan, kind.sampling, kind.argmax
        self._rows, self._children = len(plan.counts), max(plan.counts)
        self.top = min(TOP if kind.sampling else max(TOP, self._children), kind.columns)
        places = [
            row * self._children + child for row, count in enumerate(plan.counts) for child in range(count)
        ]
        self._places = torch.tensor(places, device=device)
        """Of the nodes among the possible children of the rows above."""
        self._child = torch.arange(self._children, device=device)
        self._counts = torch.tensor(plan.counts, device=device)
        fixed = () if isinstance(plan.onward, int) else plan.onward
        self._fixed = torch.tensor(fixed, dtype=torch.int64, device=device)
        self._chosen = self._children if kind.sampling or kind.argmax else 0
        rows, top = self._rows, self._rows * self.top
        self._widths = [rows, top, top, rows * self._chosen, rows]
        self.width = sum(self._widths)
        """Numbers per slot that travel to the host."""

    def choose(self, logits: Tensor, paths: Tensor, alive: Tensor, numbers: Tensor) -> _Chosen:
        """Choose the children of K nodes, (S, K, N) logits."""
        slots, flat = logits.shape[0], logits.flatten(0, 1)
        sampling = self._sampling
        q = process_logits(flat, sampling) if sampling else softmax(flat)
        split, found = (slots, self._rows, -1), None
        q = q.view(split)
        if sampling or self._argmax:
            counts = torch.minimum((q > 0).sum(-1), self._counts) * alive
            there, values = self._child < counts[:, :, None], paths[:, :, None] - self._child
            places = self._best(values, there)
            if self._plan.most:
                counts = self._used(places, there)
            ids = self._draw(q, counts, numbers) if sampling else logits.argmax(-1, keepdim=True)
            columns = ids
        else:
            found = _most_probable(q.flatten(0, 1), self.top)
            top_ids, top = found[0].view(split), found[1].double().view(split)
            counts, ids = self._counts.expand(slots, -1), top_ids[:, :, :0]
            child = self._child.clamp(max=self.top - 1)  # there may be no more columns
            columns, values = top_ids[:, :, child], paths[:, :, None] * top[:, :, child].clamp(max=1.0)
            there = (values > 0) & alive[:, :, None] & (self._child < self.top)
            places = self._best(values, there)
        exists, node_paths, columns = (part.flatten(1).gather(1, places) for part in (there, values, columns))
        where = places // self._children, places % self._children
        return _Chosen(*where, columns, node_paths, exists, q, alive, ids, counts, found)

    def _best(self, values: Tensor, there: Tensor) -> Tensor:
        """Return the places of the level's nodes, rising, (S, n); values are (S, K, C)."""
        if not self._plan.most:
            return self._places.expand(len(values), -1)
        return best_places(values.flatten(1), there.flatten(1), self._plan.nodes)

    def _used(self, places: Tensor, there: Tensor) -> Tensor:
        """Return how many children each row above has among the chosen places, (S, K)."""
        used = torch.zeros_like(there.flatten(1)).scatter_(1, places, True)
        return (used.view(there.shape) & there).sum(-1)

    def _draw(self, q: Tensor, counts: Tensor, numbers: Tensor) -> Tensor:
        """Draw the children of each row without replacement, (S, K, C)."""
        rest, first = q.clone(), counts.cumsum(1) - counts  # a level's draws are numbered in order
        drawn = list[Tensor]()
        for child in range(self._children):
            u = numbers.gather(1, (first + child).clamp(max=numbers.shape[1] - 1))
            ids = pick_rows(u.flatten(), rest.flatten(0, 1)).view(counts.shape)
            rest.scatter_(2, ids[:, :, None], 0)
            drawn.append(ids)
        return torch.stack(drawn, 2)

    def onward(self, paths: Tensor, exists: Tensor) -> Tensor:
        if not isinstance(self._plan.onward, int):
            return self._fixed.expand(len(paths), -1)
        return best_places(paths, exists, self._plan.onward_count)

    def read(self, facts: Tensor, q: Tensor | None) -> ChosenLevel:
        alive, top_ids, top, ids, counts = facts.split(self._widths, 1)
        split = (len(facts), self._rows, -1)
        ids = ids.long().view(*split[:2], self._chosen)
        return ChosenLevel(alive.bool(), top_ids.long().view(split), top.view(split), ids, counts.long(), q)


def _most_probable(q: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the most probable columns of each row of q, (R, N) float32, and their probabilities.

    Lower ids are first among equals: the bits of a positive float rise with it, and follow a key's
    inverted column.
    """
    most = (1 << NUMBER_BITS) - 1
    inverted = most - torch.arange(q.shape[1], device=q.device)
    keys = (q.view(torch.int32).long() << NUMBER_BITS) | inverted
    ids = most - (keys.topk(count).values & most)
    return ids, q.gather(1, ids)
