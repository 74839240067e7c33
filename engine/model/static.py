"""Forwards of fixed shapes, which CUDA replays as graphs: no Python between two kernels.

A step serves S neighbouring slots with K new rows each and reads N cached rows. A forward runs in
the smallest step that holds it; unused rows are masked, and write to a spare row of the cache.
On a CPU the same operations run one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from specscope.engine.model.attention import PaddedAttention
from specscope.engine.model.cache import Cache
from specscope.engine.model.compiler import BUSY
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.language import Output
from specscope.engine.model.slots import Rows

ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of new rows per slot, K; forwards of more rows are not static."""

SHORTEST = 64
"""Least number of cached rows that a step reads, N (`read_length`)."""

MOST_STEPS = 256
"""Steps kept for a cache; the one made first gives way."""

Key = TypeVar("Key")
Step = TypeVar("Step")


class PerCache(Generic[Key, Step]):
    """Steps of a decoder made for a cache, whose tensor they read.

    A new tensor needs new steps, and so do newly compiled layers.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._steps: WeakKeyDictionary[Cache, tuple[Tensor, int, dict[Key, Step]]] = WeakKeyDictionary()

    def of(self, cache: Cache) -> dict[Key, Step]:
        """Return a cache's steps, with room for one more."""
        version = self._decoder.compiler.version if self._decoder.compiler else 0
        tensor, made, steps = self._steps.get(cache, (None, 0, {}))
        if tensor is not cache.tensor or made != version:
            steps = dict[Key, Step]()
            self._steps[cache] = cache.tensor, version, steps
        if len(steps) == MOST_STEPS:
            del steps[next(iter(steps))]
        return steps


class StepSize(NamedTuple):
    """What a step is made for."""

    slot: int
    """The first slot."""
    slots: int
    """S, the slots from there on."""
    rows: int
    """K, new rows per slot."""
    length: int
    """N, cached rows that attention reads, the new ones included."""
    logits: bool
    """Whether the step computes logits."""
    hidden: tuple[int, ...]
    """Layers whose states it returns; see `Output.hidden`."""


class StaticSteps:
    """The steps of a decoder, made when first needed."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._steps = PerCache[StepSize, StaticStep](decoder)
        self._pool = graph_pool(decoder.device)

    def count(self, cache: Cache) -> int:
        return len(self._steps.of(cache))

    def run(
        self, cache: Cache, rows: Rows, indices: np.ndarray, want: np.ndarray, hidden: tuple[int, ...]
    ) -> Output | None:
        if self._decoder.compiler is not None:
            self._decoder.compiler.used()
        segments = rows.segments()
        most = max((end - first for _, first, end in segments), default=0)
        if not 0 < most <= ROWS[-1]:
            return None
        slot, last = int(rows.slots.min()), int(rows.slots.max())
        length = max(cache.rows_read(s, end - first) for s, first, end in segments)
        size = StepSize(
            slot,
            last - slot + 1,
            next(count for count in ROWS if count >= most),
            read_length(length, cache.tensor.shape[3]),
            len(want) > 0,
            hidden,
        )
        steps = self._steps.of(cache)
        if size not in steps:
            steps[size] = StaticStep(self._decoder, cache, size, self._pool)
        return steps[size].run(cache, rows, indices, want)


class StaticForward:
    """The layers of a decoder on K new rows in each of S neighbouring slots, over N cached rows.

    Args:
        decoder: The decoder.
        cache: Its cache.
        slots: The S slots.
        rows: K.
        length: N.
        hidden: Layers whose states are returned; see `Output.hidden`.
        indices: The cache row of each new row, (S K,) int64, read at each call; default: zeros.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: Cache,
        slots: range,
        rows: int,
        length: int,
        hidden: tuple[int, ...] = (),
        indices: Tensor | None = None,
    ) -> None:
        count, device = len(slots) * rows, cache.tensor.device
        self._decoder, self._hidden, self._buffers = decoder, hidden, cache.buffers(count)
        self.indices = torch.zeros(count, dtype=torch.int64, device=device) if indices is None else indices
        self._attention = PaddedAttention(
            cache, self._buffers, slots, length, self.indices, compiler=decoder.compiler
        )
        self._rotations, self._columns = decoder.rotations, torch.arange(length, device=device)
        self.windows = tuple(dict.fromkeys(cache.shape.windows))
        self.spare = cache.tensor.shape[3] - 1
        """The cache row that unused rows write to."""
        self.cells = self._attention.cells(None)

    def run(
        self, inputs: tuple[Tensor, Tensor | None], positions: Tensor, visible: Mapping[int | None, Tensor]
    ) -> dict[int, Tensor]:
        """Run the layers on the first of `inputs` in place; return the states of `hidden`.

        Args:
            inputs: What `Decoder.inputs` returns for the S K rows.
            positions: Their positions, (S K,) int64.
            visible: Whether a row sees a cached row, by window; see `PaddedAttention.mask`.
        """
        self._attention.mask(visible)
        rotation = self._rotations.index_select(1, positions) * self._decoder.scales
        return self._decoder.run_static(*inputs, rotation, self._buffers, self._attention, self._hidden)

    def visible(
        self, first: Tensor, sees: Tensor, depths: Tensor, positions: Tensor, void: Tensor
    ) -> dict[int | None, Tensor]:
        """Return which cached rows the rows see, (S, K, N) for each window.

        Args:
            first: Rows of each slot's text, which all rows see, (S,) int64; T rows follow them.
                Negative where a prefix is shorter than the rows of its tree.
            sees: Whether a row is one of the T rows, or descends from it, (S, K, T).
            depths: The positions of the T rows after the text, (T,) int64.
            positions: Those of the new rows, (S, K or 1).
            void: Which new rows are unused, (S, K or 1). They see column 0, because a row that sees
                nothing would be NaN.
        """
        number, count = self._columns - first[:, None], len(depths)  # of a cached row among the T rows
        among, text = number.clamp(0, count - 1), number < 0
        own = sees.gather(2, among[:, None].expand(-1, sees.shape[1], -1)) & (number < count)[:, None]
        seen = text[:, None] | own
        cached = torch.where(text, self._columns, first[:, None] + depths[among])
        late = cached[:, None] - positions[:, :, None]
        least = void[:, :, None] & (self._columns == 0)
        return {w: (seen if w is None else seen & (late > -w)) | least for w in self.windows}


class StaticStep:
    """A forward of one size: inputs in fixed memory, the same operations at every call."""

    def __init__(self, decoder: Decoder, cache: Cache, size: StepSize, pool: GraphPool | None) -> None:
        self.size, self._pool = size, pool
        self._decoder = decoder
        count = size.slots * size.rows
        device = cache.tensor.device
        shape = (len(set(cache.shape.windows)), size.slots, size.rows, size.length)
        self._hosted = torch.zeros(
            40 * count + math.prod(shape), dtype=torch.uint8, pin_memory=device.type == "cuda"
        )
        self._given = self._hosted.to(device)
        self._hosted_numbers, self._hosted_visible = (t.numpy() for t in _split(self._hosted, count, shape))
        self._numbers, self._visible = _split(self._given, count, shape)
        self._inputs: tuple[Tensor, Tensor | None] | None = None
        """Inputs of a drafting head's layer, made outside the step."""
        slots = range(size.slot, size.slot + size.slots)
        self._forward = StaticForward(
            decoder, cache, slots, size.rows, size.length, size.hidden, self._numbers[2]
        )
        self._logits: Tensor | None = None
        self._states: dict[int, Tensor] = {}
        self._launch: Callable[[], None] | None = None
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    def run(self, cache: Cache, rows: Rows, indices: np.ndarray, want: np.ndarray) -> Output:
        self._fill(cache, rows, indices, want)
        if self._launch is None:
            self._launch = captured(self._compute, self._pool)
        self._launch()
        kept, wanted = self._numbers[3, : len(rows)], self._numbers[4, : len(want)]
        logits = (
            kept.new_empty((0, self._decoder.vocab_size), dtype=torch.float32)
            if self._logits is None
            else self._logits.index_select(0, wanted)
        )
        states = {layer: state.index_select(0, kept) for layer, state in self._states.items()}
        return Output(logits, states, self._forward.cells)

    def _fill(self, cache: Cache, rows: Rows, indices: np.ndarray, want: np.ndarray) -> None:
        if self._copied is not None:  # the inputs of the step's last forward
            self._copied.synchronize()
        size, numbers, visible = self.size, self._hosted_numbers, self._hosted_visible
        numbers[...] = 0
        numbers[2] = self._forward.spare
        visible[...] = False
        visible[..., 0] = True  # a row that saw nothing would be NaN
        places = np.empty(len(rows), dtype=np.int64)
        for slot, first, end in rows.segments():
            line, count = slot - size.slot, end - first
            places[first:end] = line * size.rows + np.arange(count)
            self._see(visible[:, line, :count], cache, slot, cache.length(slot) - count)
        positions = cache.positions[rows.slots, indices]
        numbers[0, places], numbers[1, places] = rows.tokens, positions
        numbers[2, places] = indices
        numbers[3, : len(places)], numbers[4, : len(want)] = places, places[want]
        self._given.copy_(self._hosted, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        if self._decoder.make_inputs is not None:
            self._fill_inputs(rows, positions, self._numbers[3, : len(rows)])

    def _see(self, visible: np.ndarray, cache: Cache, slot: int, start: int) -> None:
        """Write which cached rows the slot's rows from `start` on see, (W, count, N)."""
        length = cache.length(slot)
        ancestors = cache.ancestor_mask(slot, start)
        positions = cache.positions[slot, :length]
        for seen, window in zip(visible, self._forward.windows, strict=True):
            seen[:, :length] = ancestors
            if window is not None:
                seen[:, :length] &= positions > positions[start:, None] - window

    def _fill_inputs(self, rows: Rows, positions: np.ndarray, places: Tensor) -> None:
        made = self._decoder.inputs_of(rows, positions)
        if self._inputs is None:
            count = self.size.slots * self.size.rows
            x, attention = (t if t is None else t.new_zeros((count, *t.shape[1:])) for t in made)
            assert x is not None
            self._inputs = x, attention
        for held, part in zip(self._inputs, made, strict=True):
            if held is not None and part is not None:
                held.index_copy_(0, places, part)

    def _compute(self) -> None:
        ids, positions = self._numbers[:2]
        if self._inputs is None:
            x, attention = self._decoder.embed(ids, positions), None
        else:
            x, attention = self._inputs[0].clone(), self._inputs[1]
        visible = dict(zip(self._forward.windows, self._visible, strict=True))
        self._states = self._forward.run((x, attention), positions, visible)
        if self.size.logits:
            self._logits = self._decoder.logits(x)


def _split(inputs: Tensor, count: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the inputs of a step, which are copied to its device as one, from their bytes.

    Token id, position, and cache row of each new row; the given rows' places among them, and the
    wanted ones', (5, S K) int64; and whether a new row sees a cached row, per window, (W, S, K, N).
    """
    numbers, visible = inputs.split((40 * count, math.prod(shape)))
    return numbers.view(torch.int64).view(5, count), visible.view(torch.bool).view(shape)


def read_length(needed: int, most: int) -> int:
    """Return the rows that a step reads: the next power of two, or three quarters of it."""
    length = SHORTEST
    while length < needed:
        length *= 2
    shorter = 3 * length // 4
    return min(shorter if needed <= shorter and length > SHORTEST else length, most)


class GraphPool:
    """The memory that a model's graphs share, for they never run at once.

    torch cannot use a pool again whose graphs are all gone, as after a cache has grown: one stays.
    """

    def __init__(self, device: torch.device) -> None:
        self.handle, self._first = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
        number = torch.zeros(1, device=device)
        with torch.cuda.device(device):
            _capture(self._first, lambda: number.add_(1), self.handle)


def graph_pool(device: torch.device) -> GraphPool | None:
    """Return a pool for a model's graphs; None on a CPU."""
    return GraphPool(device) if device.type == "cuda" else None


def captured(compute: Callable[[], None], pool: GraphPool | None) -> Callable[[], None]:
    """Return the replay of a CUDA graph of `compute`; it runs once to warm up, once recorded.

    On a CPU, which has no pool, it is `compute` itself.
    """
    if pool is None:
        return compute
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        compute()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    _capture(graph, compute, pool.handle)
    return graph.replay


def _capture(graph: torch.cuda.CUDAGraph, compute: Callable[[], object], pool: Any) -> None:
    # Other workers of this process may use CUDA meanwhile, but `torch.cuda.graph` first waits for
    # the device, which is an error while another thread captures.
    with BUSY, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        compute()
