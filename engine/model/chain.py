"""A chain of drafted tokens without a host between its forwards; CUDA replays it as one graph.

The rows of a chain are known before its tokens are: the row of draft j is after that of draft
j - 1, and sees the rows up to its own. Each token is drawn on the device, where the next forward
reads it. The random numbers are known beforehand, too: they are a function of the position
(`engine.draws`). Token ids, probabilities and q travel to the host once, after the chain.

On a CPU the same operations run one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from engine.draws import TOP, pick_rows, softmax, warp
from engine.model.static import PerCache, Size, StaticAttention, captured, graph_pool, read_length

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from engine.model.cache import Cache
    from engine.model.clock import Clock
    from engine.model.decoder import Decoder
    from engine.types import Sampling

MOST_NUMBERS = 1 << 26
"""Most probabilities that a chain keeps, gamma x S x V."""


class Kind(NamedTuple):
    """What a chain is made for."""

    slot: int
    """The first slot."""
    slots: int
    """S, the slots from there on."""
    gamma: int
    """Most tokens after a slot's rows."""
    length: int
    """N, cached rows that attention reads."""
    vocab: int
    """V, the tokens to draw from: the first ones."""
    sampling: Sampling | None
    """The warp of q; None: each token is the argmax."""


@dataclass(frozen=True)
class Chained:
    """Drafts of B slots."""

    ids: Tensor
    """(B, gamma) int64; a slot's own number of tokens counts, the others are void."""
    probabilities: Tensor
    """Of each token, (B, gamma) float64: its q, or the softmax of the argmax."""
    top_ids: Tensor
    """The most probable tokens, (B, gamma, TOP)."""
    top: Tensor
    """Their probabilities."""
    q: Tensor | None
    """(gamma, B, V) if the tokens were sampled."""
    times: list[tuple[int, int]]
    """Marks of the start and the end of all forwards but the first (`engine.model.clock`)."""
    cells: int
    """Query-key cells of a forward's attention, see `Output.cells`."""


class Chains:
    """The chains of a decoder, made when first needed.

    Args:
        decoder: Runs the forwards.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._chains = PerCache[Kind, Chain]()
        self._pool = graph_pool(decoder.device)

    def count(self, cache: Cache) -> int:
        """Return the number of chains made for a cache."""
        return len(self._chains.of(cache))

    def fits(self, cache: Cache, lengths: Sequence[int], counts: Sequence[int], vocab: int) -> bool:
        """Return whether sequences of these lengths can get chains of these numbers of tokens."""
        rows = max(length + count - 1 for length, count in zip(lengths, counts, strict=True))
        return (
            max(counts) > 1
            and self._decoder.make_inputs is None
            and rows <= min(cache.capacity, self._decoder.context)
            and max(counts) * cache.slots * vocab <= MOST_NUMBERS
        )

    @torch.inference_mode()
    def draft(
        self,
        cache: Cache,
        slots: Sequence[int],
        counts: Sequence[int],
        logits: Tensor,
        numbers: Sequence[Sequence[float]],
        sampling: Sampling,
        clock: Clock,
    ) -> Chained:
        """Draft a chain in each slot; the drafted tokens are not added to the slots' books.

        Args:
            cache: The cache; the slots hold chains.
            slots: B slots.
            counts: Tokens to draft in each.
            logits: Of each slot's last row, (B, V).
            numbers: The number that decides each draw, counts[b] per slot; none for the argmax.
            sampling: The warp of q.
            clock: Takes the times of the forwards.
        """
        slot = min(slots)
        kind = Kind(
            slot,
            max(slots) - slot + 1,
            max(counts),
            read_length(max(map(cache.length, slots)) + max(counts) - 1, cache.tensor.shape[3]),
            logits.shape[1],
            replace(sampling, seed=0) if numbers else None,
        )
        chains = self._chains.of(cache)
        if kind not in chains:
            chains[kind] = Chain(self._decoder, cache, kind, clock, self._pool)
        return chains[kind].run(slots, [cache.length(s) for s in slots], counts, logits, numbers, clock)


class Chain:
    """A chain of one kind: inputs in fixed memory, the same operations at every call.

    Args:
        decoder: Its layers and head.
        cache: The cache that the chain reads and writes.
        kind: The kind.
        clock: Makes the events of the forwards.
        pool: See `graph_pool`.
    """

    def __init__(self, decoder: Decoder, cache: Cache, kind: Kind, clock: Clock, pool: Any = None) -> None:
        self._decoder, self.kind, self._pool = decoder, kind, pool
        device, shape = cache.tensor.device, (kind.gamma, kind.slots)
        pinned = device.type == "cuda"
        self._windows = tuple(dict.fromkeys(layer.window for layer in decoder.layers))
        self._spare = cache.tensor.shape[3] - 1
        self._columns = torch.arange(kind.length, device=device)
        self._rotations = decoder.rotations
        self._hosted_places = torch.zeros((3, kind.slots), dtype=torch.int64, pin_memory=pinned)
        self._hosted_numbers = torch.zeros(shape, dtype=torch.float64, pin_memory=pinned)
        self._places = self._hosted_places.to(device)
        """Rows of each slot before the chain, its tokens' number; the lines of the given slots."""
        self._numbers = self._hosted_numbers.to(device)
        self._logits = torch.zeros((kind.slots, kind.vocab), device=device)
        self._q = torch.zeros((*shape, kind.vocab), device=device) if kind.sampling else None
        self._top = min(TOP, kind.vocab)
        self._facts = torch.zeros((*shape, 2 + 2 * self._top), dtype=torch.float64, device=device)
        """Of each token: its id, its probability, the most probable ids, their probabilities."""
        self._hosted_q = None if self._q is None else torch.empty(self._q.shape, pin_memory=pinned)
        self._indices = torch.zeros(kind.slots, dtype=torch.int64, device=device)
        self._buffers = cache.buffers(kind.slots)
        size = Size(kind.slot, kind.slots, 1, kind.length, logits=True, hidden=())
        self._attention = StaticAttention(cache, self._buffers, size, self._indices)
        self._events = [(clock.event(), clock.event()) for _ in range(1, kind.gamma)]
        self._launch: Callable[[], None] | None = None

    def run(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        counts: Sequence[int],
        logits: Tensor,
        numbers: Sequence[Sequence[float]],
        clock: Clock,
    ) -> Chained:
        """Draft the chains; see `Chains.draft`."""
        lines = self._fill(slots, lengths, counts, logits, numbers)
        if self._launch is None:
            self._launch = captured(self._compute, self._pool) if logits.is_cuda else self._compute
        self._launch()
        if self._q is not None and self._hosted_q is not None:
            self._hosted_q.copy_(self._q, non_blocking=True)
        facts = self._facts.cpu()[:, lines].transpose(0, 1)  # the chain's one synchronisation
        ids, probabilities, top_ids, top = facts.split((1, 1, self._top, self._top), 2)
        return Chained(
            ids[:, :, 0].long(),
            probabilities[:, :, 0],
            top_ids.long(),
            top,
            None if self._hosted_q is None else self._hosted_q[:, lines],
            [(clock.hold(start), clock.hold(end)) for start, end in self._events],
            self._attention.cells(None),
        )

    def _fill(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        counts: Sequence[int],
        logits: Tensor,
        numbers: Sequence[Sequence[float]],
    ) -> list[int]:
        """Write the inputs; return each slot's line."""
        lines = [slot - self.kind.slot for slot in slots]
        places, us = self._hosted_places.zero_(), self._hosted_numbers.zero_()
        places[0, lines], places[1, lines] = torch.tensor(lengths), torch.tensor(counts)
        places[2, : len(lines)] = torch.tensor(lines)
        for line, drawn in zip(lines, numbers, strict=False):
            us[: len(drawn), line] = torch.tensor(drawn, dtype=torch.float64)
        self._places.copy_(places, non_blocking=True)
        self._numbers.copy_(us, non_blocking=True)
        self._logits.index_copy_(0, self._places[2, : len(lines)], logits)
        return lines

    def _compute(self) -> None:
        """Draw all tokens, with a forward between two of them."""
        token = self._draw(0, self._logits)
        for j, (start, end) in enumerate(self._events, 1):
            start.record()
            logits = self._forward(j, token)
            end.record()
            token = self._draw(j, logits)

    def _forward(self, j: int, token: Tensor) -> Tensor:
        """Return the logits after token j - 1 of each slot, (S, V)."""
        decoder, (lengths, counts, _) = self._decoder, self._places
        position = lengths + (j - 1)
        self._indices.copy_(torch.where(counts > j, position, self._spare))  # a void row is in no slot
        position = torch.where(counts > j, position, 0)
        seen = {window: self._sees(position, window)[:, None] for window in self._windows}
        self._attention.mask(seen)
        rotation = self._rotations.index_select(1, position) * decoder.scales
        x = decoder.embed(token, position)
        decoder.run_layers(x, None, rotation, self._buffers, [self._attention], ())
        return decoder.logits(x)[:, : self.kind.vocab]

    def _sees(self, position: Tensor, window: int | None) -> Tensor:
        """Return which cached rows the row at a position sees, (S, N)."""
        seen = self._columns <= position[:, None]
        return seen if window is None else seen & (self._columns > position[:, None] - window)

    def _draw(self, j: int, logits: Tensor) -> Tensor:
        """Return token j of each slot, (S,); keep its facts."""
        sampling = self.kind.sampling
        p = warp(logits, sampling) if sampling else softmax(logits)
        token = pick_rows(self._numbers[j], p) if sampling else logits.argmax(-1)
        if self._q is not None:
            self._q[j].copy_(p)
        top, top_ids = p.topk(self._top)
        chosen = p.gather(1, token[:, None])
        parts: list[Any] = [token[:, None], chosen, top_ids, top]
        self._facts[j].copy_(torch.cat([part.double() for part in parts], 1))
        return token
