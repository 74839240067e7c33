"""Drafts chains and trees: a forward gives the logits of a level, the shape selects its nodes.

All drafts of a job share the forward of a level. A chain is a tree of width 1. Where the next
tokens need no host, the whole draft is one step of the device (`specscope.engine.model.fused`).

A fuzzy tree (EasySpec) starts with an exact forward over the rows that have only been forwarded
fuzzily or not at all: the accepted tokens and the target's own (bonus calibration, section 3.2).
Its last row gives the first level; the forwards of the levels below are fuzzy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from specscope.engine.drafting.level import Level, drawn, levels, next_level
from specscope.engine.drafting.tree import Node, line, root
from specscope.engine.heads.drafting import Columns, Growing, LevelLogits
from specscope.engine.layout import Packing
from specscope.engine.model.cache import Cache
from specscope.engine.model.fused import DraftInputs
from specscope.engine.model.fuzzy import DeviceGroup, Fuzzy, SingleDevice, layer_groups
from specscope.engine.model.slots import Rows
from specscope.engine.sampling.draws import TOP, Draws, Key, most_probable_of
from specscope.engine.types import NO_TREE, Prefix, Sampling, Tree
from specscope.engine.worker.forwards import Forwards
from specscope.engine.worker.head_forwards import PackedForwards
from specscope.engine.worker.jobs import Grown, Propose, Stamp

if TYPE_CHECKING:
    from specscope.engine.drafting.tree import LevelPlan
    from specscope.engine.model.levels import ChosenLevel
    from specscope.engine.worker.rounds import Found


class Partners(DeviceGroup, Protocol):
    """The devices that draft one tree together."""

    def agree(self, stopped: bool) -> bool:
        """Return whether any device was stopped, so that all stop after the same forward."""
        ...


class Drafting(NamedTuple):
    """What a draft needs besides its job."""

    sampling: Sampling
    draws: Callable[[int], Draws]
    vocab_size: int
    write: Callable[[int, torch.Tensor], None]
    """Writes one row of q, (V,), to the q buffer."""
    partners: Partners = SingleDevice()


def draft(
    forwards: Forwards, job: Propose, drafting: Drafting, stamps: list[Stamp], stopped: Callable[[], bool]
) -> tuple[tuple[Grown, ...], ...]:
    """Draft a chain or a tree after each prefix; each forward's stamp is appended.

    The drafted rows stay cached: the next job reuses the paths that were accepted. `stopped` is
    called between forwards.
    """
    head, most = forwards.heads.get(job.model), list(job.levels)
    packed = None if head is None else PackedForwards(forwards, job.model, stamps, job.masked_tail)
    if head is None or packed is None:
        columns, source = Columns(), _model_levels(forwards, job, drafting.partners, stamps)
    else:
        columns, source = head.columns, head.draft(packed)
        most = [
            min(count, packed.begin(prefix)) for count, prefix in zip(job.levels, job.prefixes, strict=True)
        ]
    trees = [
        TreeBuilder(*tree, job, drafting, columns) for tree in zip(job.prefixes, most, job.rows, strict=True)
    ]
    fused = (
        job.model in forwards.fused
        and not stopped()
        and _draft_fused(forwards, job, drafting, source, packed, trees, stamps)
    )
    while not fused and (growing := [tree for tree in trees if tree.grows]):
        if drafting.partners.agree(stopped()):
            break
        rows = [logits[:, : drafting.vocab_size] for logits in source(growing)]
        damping = job.damping[growing[0].depth] if job.damping else None
        how = {"sampled": job.sampled, "chain": job.chain}
        found = levels(rows, job.shape, drafting.sampling, damping=damping, **how)
        for tree, level in zip(growing, found, strict=True):
            tree.add(level, len(stamps) - 1)
    return tuple(tree.kept() for tree in trees)


def read_round(
    job: Propose, drafting: Drafting, found: Found, stamps: list[Stamp]
) -> tuple[tuple[Grown, ...], ...]:
    """Return the drafts of a round that the device made, as `draft` does."""
    assert found.facts.drafted is not None, "it has drafted"
    columns = found.head.columns if found.head else Columns()
    tree = TreeBuilder(job.prefixes[0], job.levels[0], job.rows[0], job, drafting, columns)
    before = 0
    for number, level in enumerate(found.facts.drafted.levels):
        if not tree.grows:
            break
        if number < found.forwards:
            rows = len(tree.frontier) if number else 0
            stamps.append(found.drafting(number, rows, before))
            before += rows
        _add(tree, level, 0, min(number, found.forwards - 1))
    return (tree.kept(),)


def _model_levels(forwards: Forwards, job: Propose, partners: Partners, stamps: list[Stamp]) -> LevelLogits:
    """Return the level source of a model: one forward per level.

    The first forward has the uncached rows of the prefixes, each other one the frontier nodes.
    """
    depth, calibrates = forwards.models[job.model].depth, job.fuzzy > 1 and job.calibrate
    fuzzy = None
    if depth and job.fuzzy > 1:
        fuzzy = Fuzzy(layer_groups(depth, job.fuzzy), partners, mark=forwards.clock.mark)

    def level(trees: Sequence[Growing]) -> list[torch.Tensor]:
        prefixes = [tree.prefix for tree in trees]
        if not trees[0].depth:
            kind, first = ("calibrate", None) if calibrates else ("draft", fuzzy)
            return forwards.extend(job.model, prefixes, [NO_TREE] * len(trees), stamps, kind, fuzzy=first)
        nodes = [tree.level() for tree in trees]
        return forwards.branch(
            job.model, prefixes, nodes, stamps, "draft", fuzzy=fuzzy, provisional=calibrates
        )

    return level


class TreeBuilder:
    """A growing tree of at most `levels` levels after a prefix; its q go to `rows`."""

    def __init__(
        self,
        prefix: Prefix,
        levels: int,
        rows: Sequence[int],
        job: Propose,
        drafting: Drafting,
        columns: Columns,
    ) -> None:
        self.prefix, self.levels, self._columns = prefix, levels, columns
        self.depth = 0
        self.nodes = list[Grown]()
        self.frontier = [-1]
        """Nodes of the last level that get children; -1 is the prefix's last token."""
        self._above = [root(drafting.sampling, job.sampled)]
        self._paths = list[float]()
        self._rows, self._job, self._drafting = iter(rows), job, drafting
        self._draws = drafting.draws(prefix.sequence)
        self._forwarded = {-1: -1}

    @property
    def grows(self) -> bool:
        return self.depth < self.levels and bool(self.frontier)

    def level(self) -> Tree:
        """Return the frontier as rows of the next forward, (tokens, parents' rows in the tree)."""
        rows, nodes = self._forwarded, [self.nodes[i] for i in self.frontier]
        level = tuple(node.id for node in nodes), tuple(rows[node.parent] for node in nodes)
        rows |= {node: len(rows) - 1 + i for i, node in enumerate(self.frontier)}
        return level

    def numbers(self, plans: Sequence[LevelPlan]) -> list[list[float]]:
        return [
            [self._draws.value(Key(len(self.prefix) + level, "draft", i)) for i in range(sum(plan.counts))]
            for level, plan in enumerate(plans[: self.levels])
        ]

    def add(self, level: Level, forward: int, children: Sequence[Sequence[int]] | None = None) -> None:
        """Add a level, the rows after the frontier, that the job's forward of this number computed.

        `children`: the columns drawn after each node of the frontier; None to choose them here.
        """
        job, drafting, columns = self._job, self._drafting, self._columns
        nodes = self._chosen(level) if children is None else drawn(children, self._above)
        lines = [line(node.parent, level.q) for node in nodes]
        sampled = job.sampled and not drafting.sampling.greedy
        q_rows = {i: next(self._rows) for i in dict.fromkeys(lines)} if sampled else {}
        for i, row in q_rows.items():
            drafting.write(row, columns.spread(level.q[i], drafting.vocab_size))
        tops = [tuple((columns.token(c), p) for c, p in top[:TOP]) for top in level.tops]
        first = len(self.nodes)
        for node, i in zip(nodes, lines, strict=True):
            token, parent = columns.token(node.token), self.frontier[node.parent]
            p = level.probability(i, node.token)
            self.nodes.append(Grown(token, parent, self.depth, q_rows.get(i, -1), p, tops[i], forward))
        self.depth += 1
        self._paths += [node.path for node in nodes]
        onward = [i for i in job.shape.onward(nodes) if self.nodes[first + i].probability >= job.stop_below]
        self._above = [nodes[i] for i in onward]
        self.frontier = [first + i for i in onward]

    def _chosen(self, level: Level) -> list[Node]:
        return next_level(
            level,
            self._above,
            self._job.shape,
            position=len(self.prefix) + self.depth,
            sampling=self._drafting.sampling,
            draws=self._draws,
            sampled=self._job.sampled,
        )

    def kept(self) -> tuple[Grown, ...]:
        """Return the nodes that the shape keeps, with parents as indices into them."""
        kept = self._job.shape.kept(self._paths)
        number = {-1: -1} | {old: new for new, old in enumerate(kept)}
        return tuple(self.nodes[old]._replace(parent=number[self.nodes[old].parent]) for old in kept)


def _draft_fused(
    forwards: Forwards,
    job: Propose,
    drafting: Drafting,
    source: LevelLogits,
    packed: PackedForwards | None,
    trees: Sequence[TreeBuilder],
    stamps: list[Stamp],
) -> bool:
    """Draft the chains of a model, or the trees of a head, without a host between the levels.

    They equal those of a loop. False if the draft needs a host: it is of one forward, the places of
    its nodes are not known beforehand, its end depends on probabilities, or it finds no room.
    """
    fused, growing = forwards.fused[job.model], [tree for tree in trees if tree.grows]
    needs_host = job.stop_below or job.fuzzy > 1 or job.group or job.damping or not (packed or job.chain)
    if needs_host or not growing or forwards.run.packing != Packing():
        return False
    cache, sampled = forwards.cache(job.model), job.sampled and not drafting.sampling.greedy
    assert isinstance(cache, Cache), "it is a decoder's"
    plans = job.shape.plans(max(tree.levels for tree in growing))
    rests = [packed.rest(tree.prefix) if packed else tree.prefix for tree in growing]
    if not fused.fits(cache, list(map(len, rests)), plans, drafting.vocab_size):
        return False
    logits = torch.cat([rows[:1, : drafting.vocab_size] for rows in source(growing)])
    slots = [forwards.slot(rest.sequence) for rest in rests]
    numbers = [tree.numbers(plans) for tree in growing if sampled]
    states = [forwards.states(job.model, rest.sequence, [len(rest) - 1]) for rest in rests if packed]
    given = DraftInputs(slots, logits, numbers, torch.cat(states) if states else None)
    found = fused.draft(cache, plans, given, drafting.sampling, forwards.clock, argmax=job.chain)
    context, work = [cache.length(slot) for slot in slots], packed.layer.guessed if packed else None
    for number, level in enumerate(found.levels):
        going = [b for b, tree in enumerate(growing) if tree.grows]
        if number and going:
            (start, end), cells = found.times[number - 1], found.cells[number - 1]
            rows, before = [len(growing[b].frontier) for b in going], sum(context[b] for b in going)
            stamps.append(
                Stamp("draft", start, end, sum(rows), before, cells=cells, batch=len(going), work=work)
            )
            for b, count in zip(going, rows, strict=True):
                context[b] += count
        for b in going:
            _add(growing[b], level, b, number)
    for slot, tree in sorted(zip(slots, growing, strict=True), key=lambda item: item[0]):
        if not packed:
            rows = Rows.chain(slot, [node.id for node in tree.nodes[:-1]], cache.length(slot))
            cache.append(rows)
    return True


def _add(tree: TreeBuilder, level: ChosenLevel, b: int, forward: int) -> None:
    rows = level.alive[b].nonzero()[:, 0]
    tops = most_probable_of(level.top_ids[b, rows], level.top[b, rows])
    ids = [
        row[:count]
        for row, count in zip(level.ids[b, rows].tolist(), level.counts[b, rows].tolist(), strict=True)
    ]
    if level.q is not None:
        tree.add(Level(level.q[b, rows], tops), forward, ids)
    else:
        argmax = [token for row in ids for token in row]
        tree.add(Level(level.top.new_empty((len(rows), 0)), tops, argmax), forward)
