"""The forwards of a drafting head on its worker (`engine.heads.drafting.HeadForwards`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.heads.drafting import Growing, HeadLayer
from engine.heads.work import Work
from engine.types import Prefix, Tree
from engine.worker.forwards import NO_DRAFT, Forwards
from engine.worker.jobs import Stamp


class PackedForwards:
    """The forwards of one head after several prefixes: each has the rows of all of them.

    Args:
        forwards: Models, heads and KV slots of the worker.
        name: The head's name.
        stamps: Takes one stamp per forward.
        unread: Last tokens of each prefix that the head does not read.
    """

    def __init__(self, forwards: Forwards, name: str, stamps: list[Stamp], unread: int = 0) -> None:
        self.unread = unread
        self._forwards, self._name, self._stamps = forwards, name, stamps
        self._states = dict[int, torch.Tensor]()
        """The target's final state of the last token read but one, (1, D), by sequence."""

    def begin(self, prefix: Prefix) -> bool:
        """Return whether the head can draft after a prefix: the target has forwarded it."""
        if len(prefix) - self.unread < 2:
            return False
        read = self._read(prefix)
        states = self._forwards.features(self._forwards.target, read, len(read) - 2)
        if states is None:
            return False
        self._states[prefix.sequence] = states
        return True

    def target_states(self, trees: Sequence[Growing]) -> torch.Tensor:
        """Return the target's final state of the last token read but one of B prefixes, (B, D)."""
        return _joined([self._states[tree.prefix.sequence] for tree in trees])

    def timed(
        self, trees: Sequence[Growing], rows: int, work: Work, compute: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """Return `compute()`; stamp its time as a forward of `rows` rows for these trees."""
        clock = self._forwards.clock
        start, out, end = clock.mark(), compute(), clock.mark()
        self._stamps.append(Stamp("draft", start, end, rows, 0, batch=len(trees), work=work))
        return out

    def exact(self, trees: Sequence[Growing], masks: Sequence[int]) -> list[torch.Tensor]:
        """Forward the prefixes' uncached rows, with the target's states, then mask tokens.

        Args:
            trees: B trees.
            masks: Number of mask tokens after each prefix.

        Returns:
            For each prefix the logits of its last token and its masks, (1 + masks, N).
        """
        chains = [(tuple(range(-1, -1 - n, -1)), tuple(range(-1, n - 1))) for n in masks]
        return self._follow("draft", [tree.prefix for tree in trees], chains)

    def prefill(self, prefixes: Sequence[Prefix]) -> None:
        self._follow("prefill", prefixes, [NO_DRAFT] * len(prefixes), logits=False)

    def deepen(self, trees: Sequence[Growing]) -> list[torch.Tensor]:
        """Forward the frontiers in one forward; each row reads its parent's predicted state.

        Returns:
            The logits after each frontier, (R, N).
        """
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
        return Prefix(prefix.sequence, prefix.tokens[: len(prefix) - self.unread])

    def rest(self, prefix: Prefix) -> Prefix:
        """Return the tokens with a row in the head's layer.

        The row of a token reads the target's state of the one before.
        """
        return Prefix(prefix.sequence, prefix.tokens[1 : len(prefix) - self.unread])

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
    """Append `count` rows of zeros, which masks do not read."""
    return torch.cat([vectors, vectors.new_zeros(count, vectors.shape[1])]) if count else vectors
