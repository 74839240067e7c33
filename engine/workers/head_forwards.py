"""The forwards of a drafting head on its worker (`engine.heads.drafting.HeadForwards`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from engine.heads.drafting import HeadLayer
from engine.heads.work import Work
from engine.types import Prefix, Tree
from engine.workers.forwards import NO_DRAFT, Forwards
from engine.workers.jobs import Stamp

TARGET = "target"


class PrefixForwards:
    """The forwards of one head after one prefix.

    Args:
        forwards: Models, heads and KV slots of the worker.
        name: The head's name.
        prefix: The tokens so far.
        stamps: Takes one stamp per forward.
        levels: Most levels of the draft.
        unread: Known tokens after the prefix, before the first level.
    """

    def __init__(
        self,
        forwards: Forwards,
        name: str,
        prefix: Prefix,
        stamps: list[Stamp],
        levels: int = 0,
        unread: int = 0,
    ) -> None:
        self.prefix, self.levels, self.unread = prefix, levels, unread
        self._forwards, self._name, self._stamps = forwards, name, stamps
        self._rest = Prefix(prefix.sequence, prefix.tokens[1:])
        """The tokens with a row in the head's layer: the row of a token reads the state of the one
        before."""

    def target_state(self) -> torch.Tensor | None:
        """Return the target's final state of the last token but one, (D,); None if not cached."""
        if len(self.prefix) < 2:
            return None
        states = self._forwards.features(TARGET, self.prefix, len(self.prefix) - 2)
        return None if states is None else states[0]

    def timed(self, rows: int, work: Work, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return `compute()`; stamp its time as a forward of `rows` rows."""
        start = time.perf_counter_ns()
        out = compute()
        if out.is_cuda:
            torch.cuda.current_stream(out.device).synchronize()
        self._stamps.append(Stamp("draft", start, time.perf_counter_ns(), rows, 0, work=work))
        return out

    def exact(self, masks: int = 0) -> torch.Tensor | None:
        """Forward the prefix's uncached rows, with the target's states, then mask tokens.

        Returns:
            The logits of the last token and of the masks, (1 + masks, N); None if the target has
            not forwarded the prefix.
        """
        chain = tuple(range(-1, -1 - masks, -1)), tuple(range(-1, masks - 1))
        return self._follow("draft", chain)

    def prefill(self) -> None:
        """Cache the prefix's rows in the head's layer."""
        self._follow("prefill", NO_DRAFT, logits=False)

    def deepen(self, ids: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Forward one level of the tree; each row reads its parent's predicted state.

        Args:
            ids: The level's R tokens.
            parents: Their parents' rows in the tree; -1 is the prefix's last token.

        Returns:
            The logits after each, (R, N).
        """
        parent_rows = [len(self._rest) + parent for parent in parents]
        predicted = self._forwards.states(self._name, self._rest.sequence, parent_rows)
        level: Tree = (tuple(ids), tuple(parents))
        (logits,) = self._forwards.branch(
            self._name, [self._rest], [level], self._stamps, "draft", provisional=True, vectors=predicted
        )
        self._stamps[-1] = self._stamps[-1]._replace(work=self._layer.guessed)
        return logits

    @property
    def _layer(self) -> HeadLayer:
        layer = self._forwards.heads[self._name].layer
        assert layer is not None, "only a head with a layer caches rows"
        return layer

    def _follow(self, kind: str, masks: Tree, *, logits: bool = True) -> torch.Tensor | None:
        """Forward the rows that are not cached; None if the target has not forwarded the prefix."""
        rest, layer = self._rest, self._layer
        if not len(rest) or self._forwards.features(TARGET, self.prefix, len(rest) - 1) is None:
            return None

        def vectors(first: int) -> torch.Tensor:
            states = self._forwards.features(TARGET, self.prefix, first)
            assert states is not None, "all rows are cached"
            fused = layer.fuse(states)
            return torch.cat([fused, fused.new_zeros(len(masks[0]), fused.shape[1])]) if masks[0] else fused

        (rows,) = self._forwards.extend(
            self._name, [rest], [masks], self._stamps, kind, logits=logits, vectors=vectors
        )
        self._stamps[-1] = self._stamps[-1]._replace(work=layer.exact)
        return rows


def prefill(forwards: Forwards, name: str, prefixes: Sequence[Prefix], stamps: list[Stamp]) -> None:
    """Cache prefixes in a head's layer, if it has one; the target has forwarded them."""
    if forwards.heads[name].layer is not None:
        for prefix in prefixes:
            PrefixForwards(forwards, name, prefix, stamps).prefill()
