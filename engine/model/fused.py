"""Drafts chains and trees in one CUDA graph, without a host between the forwards.

The places of the drafted nodes are known before their tokens are: how many children the nodes of a
level get is fixed (`specscope.engine.drafting.tree.LevelPlan`); a chain has one node per level. So
are the rows of each forward, one per node that gets children, and the random numbers, which are a
function of the position (`specscope.engine.sampling.draws`). Each level's tokens are chosen on the
device, where the next forward reads them; a head's layer also reads the state that it predicted for
their parents (EAGLE). Ids, probabilities and q travel to the host once, after the last level.

On a CPU the same operations run one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specscope.engine.model.attention import PaddedAttention
from specscope.engine.model.slots import Rows
from specscope.engine.model.static import PerCache, captured, graph_pool, read_length
from specscope.engine.sampling.draws import TOP, pick_rows, process_logits, softmax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from specscope.engine.drafting.tree import LevelPlan
    from specscope.engine.model.cache import Buffers, Cache
    from specscope.engine.model.clock import Clock
    from specscope.engine.model.decoder import Decoder
    from specscope.engine.model.static import GraphPool
    from specscope.engine.types import Sampling

MOST_NUMBERS = 1 << 26
"""Most probabilities that a draft keeps: rows with logits x S x N."""
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


class Given(NamedTuple):
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
        given: Given,
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
            levels = DraftLevels(decoder, self._keeps, cache, self._tokens, kind, clock)
            drafts[kind] = FusedDraft(levels, decoder.shape.width, decoder.dtype, self._pool)
        return drafts[kind].run(given, lengths, clock)


class DraftLevels:
    """The device's part of a draft: the same operations at every call.

    Args:
        decoder: Runs the forwards.
        keeps: See `FusedDrafts`.
        cache: The decoder's cache.
        tokens: See `FusedDrafts`.
        kind: The draft's sizes.
        clock: Makes the events before and after each forward.
    """

    def __init__(
        self,
        decoder: Decoder,
        keeps: tuple[int, ...],
        cache: Cache,
        tokens: Tensor | None,
        kind: DraftKind,
        clock: Clock,
    ) -> None:
        self.kind, self._tokens = kind, tokens
        self.device = cache.tensor.device
        self._forwards = _Forwards(decoder, keeps, cache, kind)
        self.cells = self._forwards.cells
        """Query-key cells of each forward."""
        self._levels = [_Choice(plan, kind, self.device) for plan in kind.plans]
        self._events = [(clock.event(), clock.event()) for _ in kind.forwarded]
        self.facts: Tensor | None = None
        """What `read` reads, float64, (S, n)."""
        self.q = list[Tensor]()
        """Of each level, (S, K, N), if its tokens were drawn."""
        self.columns = list[Tensor]()
        """The chosen columns of each level, (S, n)."""

    @property
    def numbers_shape(self) -> tuple[int, int, int]:
        """Levels, slots, and most numbers of a level."""
        kind = self.kind
        return len(kind.plans), kind.slots, max(sum(plan.counts) for plan in kind.plans)

    def compute(self, lengths: Tensor, logits: Tensor, states: Tensor, numbers: Tensor) -> None:
        """Draft after each slot's rows.

        Args:
            lengths: Rows of each slot before the draft, -1 for a void slot, (S,) int64.
            logits: Of each slot's last row, (S, N).
            states: Of a head's layer: the predicted state of each slot's last row, (S, D).
            numbers: What decides the draws, `numbers_shape`, float64.
        """
        logits, states = logits[:, None], states[:, None]
        paths = logits.new_ones((len(lengths), 1), dtype=torch.float64)
        alive = (lengths >= 0)[:, None]
        drafted = list[_Chosen]()
        self._forwards.begin(lengths)
        for level, choice in enumerate(self._levels):
            chosen = choice.choose(logits, paths, alive, numbers[level])
            drafted.append(chosen)
            if level == len(self._events):
                break
            start, end = self._events[level]
            start.record()
            places = choice.onward(chosen.paths, chosen.exists)
            parents = choice.parents[places]
            paths, alive = chosen.paths.gather(1, places), chosen.exists.gather(1, places)
            columns = chosen.columns.gather(1, places)
            tokens = columns if self._tokens is None else self._tokens[columns]
            logits, states = self._forwards.run(level, tokens, parents, states)
            end.record()
        self.q = [chosen.q for chosen in drafted] if self.kind.sampling else []
        self.columns = [chosen.columns for chosen in drafted]
        self.facts = torch.cat([part.double() for part in _facts(drafted, self._levels)], 1)

    def read(self, facts: Tensor, qs: Sequence[Tensor], clock: Clock) -> Drafted:
        """Return the draft, from its facts, (B, n), and the q of its drawn levels on the host."""
        parts = facts.split([choice.width for choice in self._levels], 1)
        each = zip(self._levels, parts, qs or [None] * len(parts), strict=True)
        levels = [choice.read(part, q) for choice, part, q in each]
        times = [(clock.hold(start), clock.hold(end)) for start, end in self._events]
        return Drafted(levels, times, self.cells)


class FusedDraft:
    """Drafts of one kind: inputs in fixed memory."""

    def __init__(self, levels: DraftLevels, width: int, dtype: torch.dtype, pool: GraphPool | None) -> None:
        self._levels, self._kind, self._pool = levels, levels.kind, pool
        kind, device = levels.kind, levels.device
        pinned = device.type == "cuda"
        self._hosted_places = torch.zeros((2, kind.slots), dtype=torch.int64, pin_memory=pinned)
        shape = levels.numbers_shape
        self._hosted_numbers = torch.zeros(shape, dtype=torch.float64, pin_memory=pinned)
        self._places = self._hosted_places.to(device)
        """Rows of each slot before the draft, -1 for a void slot; the lines of the given slots."""
        self._numbers = self._hosted_numbers.to(device)
        self._logits = torch.zeros((kind.slots, kind.columns), device=device)
        self._states = torch.zeros((kind.slots, width), dtype=dtype, device=device)
        self._hosted_q: list[Tensor] = []
        self._launch: Callable[[], None] | None = None

    def run(self, given: Given, lengths: Sequence[int], clock: Clock) -> Drafted:
        lines, levels = self._fill(given, lengths), self._levels
        if self._launch is None:
            self._launch = captured(self._compute, self._pool) if given.logits.is_cuda else self._compute
        self._launch()
        assert levels.facts is not None, "the draft has been computed"
        if len(self._hosted_q) < len(levels.q):
            self._hosted_q = [torch.empty(q.shape, pin_memory=q.is_cuda) for q in levels.q]
        for hosted, q in zip(self._hosted_q, levels.q, strict=True):
            hosted.copy_(q, non_blocking=True)
        facts = levels.facts.cpu()[lines]  # the draft's one synchronisation
        return levels.read(facts, [q[lines] for q in self._hosted_q], clock)

    def _fill(self, given: Given, lengths: Sequence[int]) -> list[int]:
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


class _Chosen(NamedTuple):
    """The n nodes of a level, (S, n); `paths` are the probabilities of the paths to them."""

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
        pairs = [(row, child) for row, count in enumerate(plan.counts) for child in range(count)]
        self.parents, self._child = torch.tensor(pairs, device=device).unbind(1)
        """The row above and the number among its siblings of each node, (n,)."""
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
            ids = self._draw(q, counts, numbers) if sampling else logits.argmax(-1, keepdim=True)
            exists = self._child < counts[:, self.parents]
            node_paths = paths[:, self.parents] - self._child
            columns = ids[:, self.parents, self._child]
        else:
            found = _most_probable(q.flatten(0, 1), self.top)
            top_ids, top = found[0].view(split), found[1].double().view(split)
            counts, ids = self._counts.expand(slots, -1), top_ids[:, :, :0]
            values = top[:, self.parents, self._child]
            exists = (values > 0) & alive[:, self.parents]
            node_paths = paths[:, self.parents] * values.clamp(max=1.0)
            columns = top_ids[:, self.parents, self._child]
        return _Chosen(columns, node_paths, exists, q, alive, ids, counts, found)

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
        ranked = torch.where(exists, paths, -1.0).sort(dim=1, descending=True, stable=True).indices
        return ranked[:, : self._plan.onward_count].sort(1).values

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


class _Forwards:
    """The forwards of a draft: K rows per slot, which see the prefix and their ancestors."""

    def __init__(self, decoder: Decoder, keeps: tuple[int, ...], cache: Cache, kind: DraftKind) -> None:
        self.decoder, self.device = decoder, cache.tensor.device
        self._keeps, self._kind, self._spare = keeps, kind, cache.tensor.shape[3] - 1
        self._windows = tuple(dict.fromkeys(layer.window for layer in decoder.layers))
        self._columns = torch.arange(kind.length, device=self.device)
        self._rotations = decoder.rotations
        forwarded = kind.forwarded
        self._firsts = [sum(forwarded[:level]) for level in range(len(forwarded))]
        self._total = sum(forwarded)
        made = {rows: self._part(cache, rows) for rows in forwarded}
        self._parts = [made[rows] for rows in forwarded]
        self.cells = [attention.cells(None) for _, _, attention in self._parts]

    def _part(self, cache: Cache, rows: int) -> tuple[Buffers, Tensor, PaddedAttention]:
        """Return buffers, cache rows and attention of forwards of K rows per slot."""
        kind = self._kind
        buffers = cache.buffers(kind.slots * rows)
        indices = torch.zeros(kind.slots * rows, dtype=torch.int64, device=self.device)
        slots = range(kind.slot, kind.slot + kind.slots)
        compiler = self.decoder.compiler
        return (
            buffers,
            indices,
            PaddedAttention(cache, buffers, slots, kind.length, indices, compiler=compiler),
        )

    def begin(self, lengths: Tensor) -> None:
        self._lengths = lengths
        self._above = lengths.new_zeros((len(lengths), 1, self._total), dtype=torch.bool)
        """Which forwarded rows are a row of the last forward, or its ancestors, (S, K, T)."""

    def run(self, level: int, tokens: Tensor, parents: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Forward nodes of a level, from 0.

        `tokens` and `parents`, among the rows above, are (S, K); `states` are the predicted states
        of the rows above. Returns logits, (S, K, N), and predicted states, (S, K, D).
        """
        decoder, (slots, count) = self.decoder, tokens.shape
        own = torch.arange(count, device=tokens.device) + self._firsts[level]
        places = torch.arange(self._total, device=tokens.device)
        self._above = _gathered(self._above, parents) | (places == own[:, None])
        void = (self._lengths < 0)[:, None]
        buffers, indices, attention = self._parts[level]
        indices.copy_(torch.where(void, self._spare, self._lengths[:, None] + own).flatten())
        position = (self._lengths + level).clamp(min=0)
        attention.mask(self._sees(position))
        positions = position.repeat_interleave(count)
        rotation = self._rotations.index_select(1, positions) * decoder.scales
        x, attention_input = self._inputs(tokens.flatten(), positions, _gathered(states, parents))
        hidden = decoder.run_static(x, attention_input, rotation, buffers, attention, self._keeps)
        split = (slots, count, -1)
        logits = decoder.logits(x)[:, : self._kind.columns].view(split)
        return logits, hidden[self._keeps[0]].view(split) if self._keeps else states

    def _inputs(self, tokens: Tensor, positions: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        decoder = self.decoder
        if decoder.make_inputs is None:
            return decoder.embed(tokens, positions), None
        embedded = decoder.embedding.index_select(0, tokens)
        rows = Rows.of(0, *np.zeros((2, len(embedded)), dtype=np.int64), vectors=states.flatten(0, 1))
        return decoder.make_inputs(rows, embedded)

    def _sees(self, position: Tensor) -> dict[int | None, Tensor]:
        """Return which cached rows the nodes at a position see, (S, K, N) for each window."""
        own = self._columns - self._lengths.clamp(min=0)[:, None]  # numbers of the forwarded rows
        among = own.clamp(0, self._total - 1)[:, None].expand(-1, self._above.shape[1], -1)
        inside = ((own >= 0) & (own < self._total))[:, None]
        seen = torch.where(inside, self._above.gather(2, among), (own < 0)[:, None])
        void = ((self._lengths < 0)[:, None] & (self._columns == 0))[:, None]  # else it would be NaN
        late = (self._columns - position[:, None])[:, None]  # in a chain a row's number is its position
        return {w: (seen if w is None else seen & (late > -w)) | void for w in self._windows}


def _gathered(rows: Tensor, parents: Tensor) -> Tensor:
    return rows.gather(1, parents[:, :, None].expand(-1, -1, rows.shape[2]))
