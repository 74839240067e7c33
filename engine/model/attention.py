"""Attention of new rows to their ancestors, within the layer's sliding window.

If slots are padded to one length (`Slots.pad`), attention reads the padding, too, and masks it.
Neighbouring slots of equal lengths then take one batched call per layer, as in the vanilla method
of EMS-SD (section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specscope.engine.model.cache import Buffers, Cache
from specscope.engine.model.flex import FROM_LENGTH, Flex, fastest
from specscope.engine.model.slots import PAD, PROVISIONAL

if TYPE_CHECKING:
    from specscope.engine.model.compiler import Compiler


class CacheView(NamedTuple):
    """The part of the cache that layers with one sliding window read, N rows."""

    keys: Sequence[Tensor]
    """Per layer (kv_heads, head_dim, N) for a single row, else (1, kv_heads, N, head_dim)."""
    values: Sequence[Tensor]
    """Per layer (kv_heads, N, head_dim) for a single row, else (1, kv_heads, N, head_dim)."""
    mask: Tensor | None
    """(count, N): 0 for visible rows, minus infinity for others; None if no mask is needed."""
    causal: bool
    """Whether row i sees exactly rows 0 to i."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    cap: float,
    *,
    causal: bool = False,
    grouped: bool = False,
) -> Tensor:
    """Return the weighted values, (S, heads, T, head_dim), of T scaled queries per slot.

    Args:
        queries: (S, heads, T, head_dim).
        keys: (S, kv_heads, N, head_dim).
        values: The same shape.
        mask: Added to the scores, (T, N) or (S or 1, 1, T, N); None for none.
        cap: See `ModelShape.attention_cap`; torch's fused attention has no cap.
        causal: Whether row i sees rows 0 to i; then T = N, without a mask.
        grouped: Whether several heads share keys and values.
    """
    if not cap:
        return scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=causal, scale=1.0, enable_gqa=grouped
        )
    split = queries.unflatten(1, (keys.shape[1], -1))
    scores = split @ keys.unsqueeze(2).transpose(-1, -2)
    scores = scores.div_(cap).tanh_().mul_(cap)
    if causal:
        mask = scores.new_full(scores.shape[-2:], -torch.inf).triu_(1)
    if mask is not None:
        scores += mask.unsqueeze(-3)
    return (torch.softmax(scores, -1) @ values.unsqueeze(2)).flatten(1, 2)


class SlotAttention:
    """Attention of the new rows of one slot, in one forward."""

    def __init__(self, cache: Cache, buffers: Buffers, slot: int, first: int, count: int) -> None:
        self.slot = slot
        self.stop = cache.length(slot)
        """Rows in the slot, new ones included."""
        self.start = self.stop - count
        """Index of the first new row in the slot."""
        self.chained = cache.chain_length(slot) == self.stop
        """Whether all rows of the slot form one chain; a row's position is then its index."""
        self.count = count
        self.rows_read = cache.rows_read(slot, count)
        """Rows that attention reads: the slot's rows, then padding."""
        self._is_block = bool(cache.shape.block) and bool(cache.flags[slot, self.stop - 1] & PROVISIONAL)
        self.causal = not self._is_block and (self.chained or self._is_padded_chain(cache))
        """Whether a causal mask is right for all rows but padding, whose output is not used."""
        self._cache = cache
        self._single = count == 1 and self.causal and self.rows_read == self.stop
        self._kv = cache.tensor.select(1, slot)
        self._new_kv = self._kv.narrow(2, self.start, count).unbind(0)
        self._buffered_kv = buffers.kv.narrow(1, first, count)
        self._views: dict[int | None, CacheView] = {}
        shape = cache.shape
        self._grouped, self._cap = shape.heads != shape.kv_heads, shape.attention_cap
        queries = buffers.queries.narrow(0, first, count)
        attended = buffers.attended.narrow(0, first, count)
        if self._single:
            self._queries = queries.view(shape.kv_heads, -1, shape.head_dim)
            self._attended = attended.view(shape.kv_heads, -1, shape.head_dim)
        else:
            self._queries = queries.transpose(0, 1).unsqueeze(0)
            self._attended = attended.view(queries.shape).transpose(0, 1).unsqueeze(0)

    def _is_padded_chain(self, cache: Cache) -> bool:
        chain = cache.chain_length(self.slot)
        return chain > self.start and bool((cache.flags[self.slot, chain : self.stop] & PAD).all())

    def _first_read(self, window: int | None) -> int:
        return max(0, self.start + 1 - window) if window is not None and self.causal else 0

    def cells(self, window: int | None) -> int:
        return self.count * (self.rows_read - self._first_read(window))

    def run(self, layer: int, window: int | None) -> None:
        self._new_kv[layer].copy_(self._buffered_kv)
        view = self._views.get(window)
        if view is None:
            view = self._views[window] = self._view(window)
        if self._single:
            scores = torch.bmm(self._queries, view.keys[layer])
            if self._cap:
                scores.div_(self._cap).tanh_().mul_(self._cap)
            weights = torch.softmax(scores, -1)
            torch.bmm(weights, view.values[layer], out=self._attended)
        else:
            kv, how = (
                (view.keys[layer], view.values[layer]),
                {"causal": view.causal, "grouped": self._grouped},
            )
            self._attended.copy_(attend(self._queries, *kv, view.mask, self._cap, **how))

    def _view(self, window: int | None) -> CacheView:
        first = self._first_read(window)
        keys, values = self._kv.narrow(2, first, self.rows_read - first).chunk(2, 1)
        if self._single:
            return CacheView(keys.transpose(2, 3).unbind(0), values.unbind(0), None, causal=False)
        unlimited = window is None or self.stop - first <= window
        causal = self.causal and self.start == 0 and unlimited and self.rows_read == self.stop
        mask = None
        if not causal:
            mask = self._chain_mask(first, window) if self.causal else self._tree_mask(window)
        return CacheView(keys.unsqueeze(1).unbind(0), values.unsqueeze(1).unbind(0), mask, causal)

    def _chain_mask(self, first: int, window: int | None) -> Tensor:
        hidden = self._kv.new_full((self.count, self.rows_read - first), -torch.inf)
        mask = hidden.triu(self.start - first + 1)
        return mask if window is None else mask + hidden.tril(self.start - first - window)

    def _tree_mask(self, window: int | None) -> Tensor:
        visible = self._cache.ancestor_mask(self.slot, self.start)
        if self._is_block and (window is None or self._cache.shape.block == "all"):
            drafted = self._cache.flags[self.slot, : self.stop] & PROVISIONAL != 0
            visible |= drafted[self.start :, None] & drafted
        if window is not None:
            positions = self._cache.positions[self.slot, : self.stop]
            visible &= np.abs(positions - positions[self.start :, None]) < window
        hidden = torch.from_numpy(~visible).to(self._kv.device)
        mask = self._kv.new_full((self.count, self.rows_read), -torch.inf)
        mask[:, : self.stop].zero_().masked_fill_(hidden, -torch.inf)
        return mask


class PaddedAttention:
    """Attention of S neighbouring slots with R new rows each over N cached rows, in one forward.

    One call per layer; the heads that share keys and values are rows of one product.

    Args:
        cache: The cache.
        buffers: Buffers of the forward.
        slots: The S slots.
        length: N.
        indices: The cache row of each new row, (S R,).
        first: Index of the first slot's first row in the packed batch.
        compiler: If given, `flex_attention` reads the cache where it is ready and faster.
    """

    def __init__(
        self,
        cache: Cache,
        buffers: Buffers,
        slots: range,
        length: int,
        indices: Tensor,
        first: int = 0,
        compiler: Compiler | None = None,
    ) -> None:
        shape, count, rows = cache.shape, len(indices), len(indices) // len(slots)
        groups = shape.heads // shape.kv_heads
        self._split = (len(slots), rows, shape.kv_heads, groups, shape.head_dim)
        self._length, self._indices, self._cap = length, indices, shape.attention_cap
        self._slots = torch.arange(len(slots), device=indices.device).repeat_interleave(rows)
        kv = cache.tensor.narrow(1, slots.start, len(slots))
        self._kv, self._cached, self._first_slot = kv.unbind(0), cache.tensor, slots.start
        keys, values = kv.narrow(3, 0, length).chunk(2, 2)
        self._keys, self._values = keys.unbind(0), values.unbind(0)
        self._new_kv = buffers.kv.narrow(1, first, count).transpose(0, 1)
        self._queries = buffers.queries.narrow(0, first, count)
        self._attended = buffers.attended.narrow(0, first, count)
        self._masks: dict[int | None, Tensor] = {}
        self._seen: dict[int | None, Tensor] = {}
        self._flex: dict[int | None, Flex] = {}
        if compiler is not None and rows > 1 and length >= FROM_LENGTH:
            self._choose(dict.fromkeys(shape.windows), compiler)

    def _choose(self, windows: Iterable[int | None], compiler: Compiler) -> None:
        size, device = (*self._split[:2], self._length), self._indices.device
        seen = {w: torch.ones(size, dtype=torch.bool, device=device) for w in windows}
        flex = {w: Flex(visible, self._split[3], self._cap) for w, visible in seen.items()}
        key = ("attention", self._split, self._length, self._keys[0].stride())
        window = next(iter(seen))
        if compiler.get(key, partial(self._fastest, seen[window], flex[window])) == "flex":
            self._seen, self._flex = seen, flex

    def _fastest(self, seen: Tensor, flex: Flex) -> str:
        queries = self._grouped(torch.zeros_like(self._queries))
        keys, values, mask = self._keys[0], self._values[0], self._mask(seen)
        ways = {
            "default": lambda: attend(queries, keys, values, mask, self._cap),
            "flex": lambda: flex(queries, keys, values),
        }
        return fastest(ways, queries.device)

    def _grouped(self, queries: Tensor) -> Tensor:
        """Return queries, (S R, heads, head_dim), as (S, kv_heads, G R, head_dim)."""
        return queries.view(self._split).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def mask(self, visible: Mapping[int | None, Tensor]) -> None:
        """Say whether a new row sees a cached row in this forward, (S or 1, R, N) by window."""
        for window, seen in visible.items():
            if window in self._flex:
                self._seen[window].copy_(seen)
            else:
                self._masks[window] = self._mask(seen)

    def _mask(self, seen: Tensor) -> Tensor:
        mask = self._new_kv.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        return mask[:, None, None].expand(-1, -1, self._split[3], -1, -1).flatten(2, 3)

    @cached_property
    def lines(self) -> tuple[Tensor, ...]:
        """Of each layer, a line for each slot, head of keys, then of values, and cache row."""
        return self._cached.flatten(1, 3).unbind(0)

    @cached_property
    def _first_lines(self) -> Tensor:
        """The line of cache row 0 of each new row's slot, for each head, (S R, 2 x kv_heads)."""
        heads, rows = self._cached.shape[2:4]
        numbers = torch.arange(heads, device=self._slots.device)
        return ((self._slots[:, None] + self._first_slot) * heads + numbers) * rows

    def places(self) -> Tensor:
        """Return the lines of the new rows' keys and values, (S R, 2 x kv_heads)."""
        return self._first_lines + self._indices[:, None]

    def run(self, layer: int, window: int | None) -> None:
        self._kv[layer][self._slots, :, self._indices] = self._new_kv
        self._attended.copy_(self.read(layer, window, self._queries))

    def read(self, layer: int, window: int | None, queries: Tensor) -> Tensor:
        """Return the weighted values, (S R, heads x head_dim).

        Queries are (S R, heads, head_dim).
        """
        grouped, keys, values = self._grouped(queries), self._keys[layer], self._values[layer]
        if window in self._flex:
            attended = self._flex[window](grouped, keys, values)
        else:
            attended = attend(grouped, keys, values, self._masks[window], self._cap)
        slots, rows, kv_heads, groups, size = self._split
        by_row = attended.view(slots, kv_heads, groups, rows, size).permute(0, 3, 1, 2, 4)
        return by_row.reshape(slots * rows, kv_heads * groups * size)

    def cells(self, window: int | None) -> int:  # noqa: ARG002 - all keys are read, whatever the window
        return len(self._indices) * self._length


Attention: TypeAlias = SlotAttention | PaddedAttention
"""Attention of the new rows of one or several slots, in one forward.

`run` moves the buffered keys and values of a layer to the cache, and writes the output of its
window to `buffers.attended`; `cells` counts the query-key cells of one layer and head, masked ones
included."""


def attention_parts(
    cache: Cache, buffers: Buffers, segments: Sequence[tuple[int, int, int]]
) -> Iterator[Attention]:
    """Yield the attention of a forward's slots; neighbouring slots of equal lengths share a part.

    Args:
        cache: The cache; the rows are appended, their keys and values not yet written.
        buffers: Buffers of the forward.
        segments: (slot, first, end) of each slot's rows, as `Rows.segments` returns them.
    """
    parts = [SlotAttention(cache, buffers, slot, first, end - first) for slot, first, end in segments]
    cuts = {0, *(i for i, (a, b) in enumerate(pairwise(parts), 1) if not _can_join(a, b)), len(parts)}
    for low, high in pairwise(sorted(cuts)):
        yield parts[low] if high - low == 1 else _joined(cache, buffers, parts[low:high], segments[low][1])


def _joined(cache: Cache, buffers: Buffers, parts: Sequence[SlotAttention], first: int) -> PaddedAttention:
    slots, device = range(parts[0].slot, parts[0].slot + len(parts)), cache.tensor.device
    starts = torch.tensor([part.start for part in parts], device=device)
    indices = starts[:, None] + torch.arange(parts[0].count, device=device)
    joined = PaddedAttention(cache, buffers, slots, parts[0].rows_read, indices.flatten(), first)
    own = indices if len({part.start for part in parts}) > 1 else indices[:1]  # equal slots share a mask
    distances = own[:, :, None] - torch.arange(parts[0].rows_read, device=device)
    seen = {w: distances < (parts[0].rows_read if w is None else w) for w in set(cache.shape.windows)}
    joined.mask({window: near & (distances >= 0) for window, near in seen.items()})
    return joined


def _can_join(one: SlotAttention, other: SlotAttention) -> bool:
    neighbours = one.slot + 1 == other.slot
    equal = (one.count, one.rows_read) == (other.count, other.rows_read)
    return neighbours and equal and one.causal and other.causal
