"""A forward of a tree's rows whose tokens and places only the device knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from specscope.engine.model.static import StaticForward

if TYPE_CHECKING:
    from specscope.engine.model.cache import Cache
    from specscope.engine.model.decoder import Decoder


class CachedModel(NamedTuple):
    """A model with its cache."""

    decoder: Decoder
    cache: Cache


class TreeForward:
    """A forward of K rows of one slot: a token, and a tree after it.

    Args:
        model: The model; the rows before the tree are a chain in its cache.
        slot: Its slot.
        rows: K.
        length: Cached rows that attention reads.
        hidden: Layers whose states are kept in `states`; see `Output.hidden`.
        masks: Of a head's layer: how many of the last rows are masks.
    """

    def __init__(
        self,
        model: CachedModel,
        slot: int,
        rows: int,
        length: int,
        hidden: tuple[int, ...] = (),
        masks: int = 0,
    ) -> None:
        self._decoder, cache = model
        self._forward = StaticForward(self._decoder, cache, range(slot, slot + 1), rows, length, hidden)
        self._own = torch.arange(rows, device=cache.tensor.device)
        self._chain = self._own, self._own[:, None] >= self._own
        self._masks = (self._own - (rows - masks) + 1).clamp(min=0)
        self.cells = self._forward.cells
        self.states: dict[int, Tensor] = {}
        """The states of the last forward, (K, D) by layer."""

    def run(
        self,
        tokens: Tensor,
        first: Tensor,
        tree: tuple[Tensor, Tensor] | None = None,
        void: Tensor | int = 0,
        vectors: Tensor | None = None,
    ) -> Tensor:
        """Forward K tokens, the first of them in cache row `first`; return their states, (K, D).

        Args:
            tokens: Their ids, (K,) int64; those of masks do not count.
            first: A chain's row is its position.
            tree: The rows' depths, (K,), and `DeviceTree.ancestors`; None for a chain.
            void: Rows in front that are not wanted, for they are cached: they stay as they are.
            vectors: What a head's layer reads beside the tokens, (K, D).
        """
        forward, (depths, sees) = self._forward, tree or self._chain
        rows, places = first + self._own, first + depths
        forward.indices.copy_(torch.where(self._own < void, forward.spare, rows))
        visible = forward.visible(first[None], sees[None], depths, places[None], (rows < 0)[None])
        positions = places.clamp(min=0)
        inputs = self._decoder.inputs(tokens, positions, self._masks, vectors)
        self.states = forward.run(inputs, positions, visible)
        return inputs[0]
