"""The rows of a head's layer that read predicted states, for all levels of a growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.model.slots import Rows
from engine.model.static import Size, StaticAttention

if TYPE_CHECKING:
    from torch import Tensor

    from engine.model.cache import Cache
    from engine.model.choice import GrowthKind
    from engine.model.decoder import Decoder


class PredictedRows:
    """The forwards of a growth: K rows per slot, which see the prefix and their ancestors.

    Args:
        decoder: The head's layer.
        keeps: The state that the next level reads, see `engine.heads.drafting.Head.keeps`.
        cache: The cache that the rows are written to and read from.
        kind: The growth's kind.
    """

    def __init__(self, decoder: Decoder, keeps: tuple[int, ...], cache: Cache, kind: GrowthKind) -> None:
        self._decoder, self._keeps, self._kind = decoder, keeps, kind
        self._spare, device = cache.tensor.shape[3] - 1, cache.tensor.device
        self._columns = torch.arange(kind.length, device=device)
        self._rotations = decoder.rotations
        forwarded = kind.forwarded
        self._firsts = [sum(forwarded[:level]) for level in range(len(forwarded))]
        self._total = sum(forwarded)
        self._buffers = [cache.buffers(kind.slots * rows) for rows in forwarded]
        self._indices = [
            torch.zeros(kind.slots * rows, dtype=torch.int64, device=device) for rows in forwarded
        ]
        sizes = [
            Size(kind.slot, kind.slots, rows, kind.length, logits=True, hidden=keeps) for rows in forwarded
        ]
        self._attentions = [
            StaticAttention(cache, buffers, size, indices)
            for buffers, size, indices in zip(self._buffers, sizes, self._indices, strict=True)
        ]
        self.cells = [attention.cells(None) for attention in self._attentions]

    def begin(self, lengths: Tensor) -> None:
        """Take the rows of each slot before the tree, (S,), -1 for a void slot."""
        self._lengths = lengths
        self._above = lengths.new_zeros((len(lengths), 1, self._total), dtype=torch.bool)
        """Which forwarded rows are a row of the last forward, or its ancestors, (S, K, T)."""

    def forward(self, level: int, tokens: Tensor, parents: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Forward nodes of a level.

        Args:
            level: The level, from 0.
            tokens: (S, K).
            parents: The row above of each node, (S, K).
            states: The predicted states of the rows above, (S, K above, D).

        Returns:
            The logits after the nodes, (S, K, N), and their predicted states, (S, K, D).
        """
        decoder, (slots, count) = self._decoder, tokens.shape
        own = torch.arange(count, device=tokens.device) + self._firsts[level]
        places = torch.arange(self._total, device=tokens.device)
        self._above = self._gathered(self._above, parents) | (places == own[:, None])
        void = (self._lengths < 0)[:, None]
        index = torch.where(void, self._spare, self._lengths[:, None] + own)
        self._indices[level].copy_(index.flatten())
        position = (self._lengths + level).clamp(min=0)
        attention = self._attentions[level]
        attention.mask({None: self._sees()})  # a head's layer has no window
        rotation = self._rotations.index_select(1, position.repeat_interleave(count)) * decoder.scales
        x, attention_input = self._inputs(tokens, self._gathered(states, parents))
        hidden = decoder.run_layers(
            x, attention_input, rotation, self._buffers[level], [attention], self._keeps
        )
        split = (slots, count, -1)
        return decoder.logits(x)[:, : self._kind.columns].view(split), hidden[self._keeps[0]].view(split)

    def _inputs(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the inputs of the layer for nodes and the states of their parents, (S, K, D)."""
        assert self._decoder.make_inputs is not None, "it is the layer of a head"
        embedded = self._decoder.embedding.index_select(0, tokens.flatten())
        rows = Rows.of(0, *np.zeros((2, len(embedded)), dtype=np.int64), vectors=states.flatten(0, 1))
        x, attention_input = self._decoder.make_inputs(rows, embedded)
        return x, attention_input

    def _sees(self) -> Tensor:
        """Return which cached rows the nodes see, (S, K, N)."""
        own = self._columns - self._lengths.clamp(min=0)[:, None]  # numbers of the forwarded rows
        among = own.clamp(0, self._total - 1)[:, None].expand(-1, self._above.shape[1], -1)
        inside = ((own >= 0) & (own < self._total))[:, None]
        seen = torch.where(inside, self._above.gather(2, among), (own < 0)[:, None])
        seen[:, :, 0] |= (self._lengths < 0)[:, None]  # a row that saw nothing would be NaN
        return seen

    @staticmethod
    def _gathered(rows: Tensor, parents: Tensor) -> Tensor:
        """Return the rows (S, K above, ...) of the parents, (S, K, ...)."""
        return rows.gather(1, parents[:, :, None].expand(-1, -1, rows.shape[2]))
