"""The forwards of a drafting head on its worker, each with the rows of several prefixes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from specscope.engine.heads.drafting import Growing, HeadLayer, part_name
from specscope.engine.heads.work import Work
from specscope.engine.types import NO_TREE, Prefix, Tree
from specscope.engine.worker.forwards import Forwards
from specscope.engine.worker.jobs import Stamp


class PackedForwards:
    """`HeadForwards`: the forwards of one head, each with the rows of all prefixes.

    The head does not read the last `masked_tail` tokens of a prefix.
    """

    def __init__(self, forwards: Forwards, name: str, stamps: list[Stamp], masked_tail: int = 0) -> None:
        self.masked_tail = masked_tail
        self._forwards, self._name, self._stamps = forwards, name, stamps
        self._states = dict[int, torch.Tensor]()
        """The target's final state of the last token read but one, (1, D), by sequence."""

    def begin(self, prefix: Prefix) -> int:
        """Return how many levels the head can draft after a prefix.

        None before the target has forwarded it. The layer of a place reads a known token there.
        """
        if len(prefix) - self.masked_tail < 2:
            return 0
        read = self._read(prefix)
        states = self._forwards.features(self._forwards.target, read, len(read) - 2)
        if states is None:
            return 0
        self._states[prefix.sequence] = states
        return len(prefix) - 1 if self._forwards.heads[self._name].further else sys.maxsize

    def target_states(self, trees: Sequence[Growing]) -> torch.Tensor:
        return _joined([self._states[tree.prefix.sequence] for tree in trees])

    def timed(
        self, trees: Sequence[Growing], rows: int, work: Work, compute: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        clock = self._forwards.clock
        start, out, end = clock.mark(), compute(), clock.mark()
        self._stamps.append(Stamp("draft", start, end, rows, 0, batch=len(trees), work=work))
        return out

    def exact(self, trees: Sequence[Growing], masks: Sequence[int]) -> list[torch.Tensor]:
        chains = [_chain(tuple(range(-1, -1 - n, -1))) for n in masks]
        return self._follow("draft", [tree.prefix for tree in trees], chains)

    def block(self, trees: Sequence[Growing], mask: int) -> list[torch.Tensor]:
        ends = [int(tree.prefix.tokens[-1]) for tree in trees]
        blocks = [(end, *[mask] * tree.levels) for end, tree in zip(ends, trees, strict=True)]
        logits = self._follow("draft", [tree.prefix for tree in trees], [_chain(ids) for ids in blocks])
        return [rows[2:] for rows in logits]  # neither the last state nor the last token drafts

    def prefill(self, prefixes: Sequence[Prefix]) -> None:
        self._follow("prefill", prefixes, [NO_TREE] * len(prefixes), logits=False)
        for place, _ in enumerate(self._forwards.heads[self._name].further, 1):
            if long := [prefix for prefix in prefixes if len(prefix) > place + 1]:
                self._forward_place("prefill", place, long, [()] * len(long))

    def _forward_place(
        self, kind: str, place: int, prefixes: Sequence[Prefix], drafted: Sequence[tuple[int, ...]]
    ) -> list[torch.Tensor]:
        """Forward prefixes and drafted tokens in the layer of a place, from 1; see `extend`.

        Row i, from 0, has token i + place + 1, and reads the state of row i in the layer before.
        Rows that depend on drafted tokens are not cached.
        """
        rests = [Prefix(prefix.sequence, prefix.tokens[place + 1 :]) for prefix in prefixes]
        chains = [_chain(ids) for ids in drafted]
        before = part_name(self._name, place - 1)

        def vectors(firsts: Sequence[int]) -> list[torch.Tensor]:
            ends = [len(rest) + len(ids) for rest, ids in zip(rests, drafted, strict=True)]
            asked = zip(rests, firsts, ends, strict=True)
            return [self._forwards.states(before, r.sequence, range(first, end)) for r, first, end in asked]

        logits = self._forwards.extend(
            part_name(self._name, place),
            rests,
            chains,
            self._stamps,
            kind,
            logits=kind == "draft",
            vectors=vectors,
        )
        self._stamps[-1] = self._stamps[-1]._replace(work=self.layer.guessed)
        return logits

    def deepen(self, trees: Sequence[Growing]) -> list[torch.Tensor]:
        if self._forwards.heads[self._name].further:
            place, prefixes = trees[0].depth, [tree.prefix for tree in trees]
            drafted = [tuple(node.id for node in tree.nodes) for tree in trees]
            return [rows[-1:] for rows in self._forward_place("draft", place, prefixes, drafted)]
        rests, levels = [self.rest(tree.prefix) for tree in trees], [tree.level() for tree in trees]
        predicted = [
            self._forwards.states(self._name, rest.sequence, [len(rest) + parent for parent in parents])
            for rest, (_, parents) in zip(rests, levels, strict=True)
        ]
        logits = self._forwards.branch(
            self._name, rests, levels, self._stamps, "draft", provisional=True, vectors=predicted
        )
        self._stamps[-1] = self._stamps[-1]._replace(work=self.layer.guessed)
        return logits

    @property
    def layer(self) -> HeadLayer:
        layer = self._forwards.heads[self._name].layer
        assert layer is not None, "only a head with a layer caches rows"
        return layer

    def _read(self, prefix: Prefix) -> Prefix:
        return Prefix(prefix.sequence, prefix.tokens[: len(prefix) - self.masked_tail])

    def rest(self, prefix: Prefix) -> Prefix:
        """Return the tokens with a row in the head's layer.

        The row of a token reads the target's state of the one before.
        """
        return Prefix(prefix.sequence, prefix.tokens[1 : len(prefix) - self.masked_tail])

    def _follow(
        self, kind: str, prefixes: Sequence[Prefix], masks: Sequence[Tree], *, logits: bool = True
    ) -> list[torch.Tensor]:
        rests, layer = [self.rest(prefix) for prefix in prefixes], self.layer

        def vectors(firsts: Sequence[int]) -> list[torch.Tensor]:
            states = list[torch.Tensor]()
            for prefix, first in zip(prefixes, firsts, strict=True):
                found = self._forwards.features(self._forwards.target, self._read(prefix), first)
                assert found is not None, "all rows are cached"
                states.append(found)
            fused = layer.fuse(_joined(states)).split([len(part) for part in states])
            return [_with_zeros(part, len(ids)) for part, (ids, _) in zip(fused, masks, strict=True)]

        rows = self._forwards.extend(
            self._name, rests, masks, self._stamps, kind, logits=logits, vectors=vectors
        )
        self._stamps[-1] = self._stamps[-1]._replace(work=layer.exact)
        return rows


def prefill(forwards: Forwards, name: str, prefixes: Sequence[Prefix], stamps: list[Stamp]) -> None:
    """Cache prefixes in a head's layer, if it has one and the target has forwarded them."""
    if forwards.heads[name].layer is not None:
        packed = PackedForwards(forwards, name, stamps)
        if known := [prefix for prefix in prefixes if packed.begin(prefix)]:
            packed.prefill(known)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _with_zeros(vectors: torch.Tensor, count: int) -> torch.Tensor:
    return torch.cat([vectors, vectors.new_zeros(count, vectors.shape[1])]) if count else vectors


def _chain(ids: tuple[int, ...]) -> Tree:
    """Return tokens as rows of which each follows the one before."""
    return ids, tuple(range(-1, len(ids) - 1))
