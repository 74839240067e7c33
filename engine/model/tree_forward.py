"""A forward of a tree's rows whose tokens and places only the device knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from specscope.engine.model.attention import PaddedAttention

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        hidden: Sequence[int] = (),
        masks: int = 0,
    ) -> None:
        self._decoder, cache = model
        device = cache.tensor.device
        self._buffers, self._hidden = cache.buffers(rows), tuple(hidden)
        self._indices = torch.zeros(rows, dtype=torch.int64, device=device)
        slots, compiler = range(slot, slot + 1), self._decoder.compiler
        self._attention = PaddedAttention(
            cache, self._buffers, slots, length, self._indices, compiler=compiler
        )
        self._own, self._columns = torch.arange(rows, device=device), torch.arange(length, device=device)
        self._chain = self._own, self._own[:, None] >= self._own
        self._masks = (self._own - (rows - masks) + 1).clamp(min=0)
        self._windows = tuple(dict.fromkeys(layer.window for layer in self._decoder.layers))
        self._spare, self._rotations = cache.tensor.shape[3] - 1, self._decoder.rotations
        self.cells = self._attention.cells(None)
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
        decoder, (depths, sees) = self._decoder, tree or self._chain
        positions = (first + depths).clamp(min=0)
        self._indices.copy_(torch.where(self._own < void, self._spare, first + self._own))
        self._attention.mask(self._visible(first, depths, sees))
        rotation = self._rotations.index_select(1, positions) * decoder.scales
        if decoder.make_inputs is None:
            x, attention_input = decoder.embed(tokens, positions), None
        else:
            assert vectors is not None, "a head's rows carry states"
            embedded = decoder.embedding.index_select(0, tokens)
            x, attention_input = decoder.make_inputs(self._masks, embedded, vectors)
        self.states = decoder.run_static(
            x, attention_input, rotation, self._buffers, self._attention, self._hidden
        )
        return x

    def _visible(self, first: Tensor, depths: Tensor, sees: Tensor) -> dict[int | None, Tensor]:
        """Return which cached rows the rows see, (1, K, N) for each window."""
        number = self._columns - first  # of a column among the rows
        among = number.clamp(0, len(self._own) - 1)
        own = sees.index_select(1, among) & (number >= 0) & (number < len(self._own))
        seen = own | (number < 0)
        positions = torch.where(number < 0, self._columns, first + depths.index_select(0, among))
        late = positions - (first + depths)[:, None]
        void = (first + self._own < 0)[:, None] & (self._columns == 0)
        near = {w: seen if w is None else seen & (late > -w) for w in self._windows}
        return {w: (rows | void)[None] for w, rows in near.items()}
