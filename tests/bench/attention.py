"""Attention of several sequences in one forward: which way is the fastest here?

The sequences have different numbers of cached rows. `loop` calls once for each sequence and layer,
as eager forwards do. `masked` is one call per layer over the longest cache, whose mask hides the
rest, as in static steps. `varlen` is `torch.nn.attention.varlen`, on a GPU and for chains only; it
reads a cache in which the keys of a token lie together, unlike the engine's.
`python -m tests.bench.attention [--quick] [--json]`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specscope.app.bench.cuda import CPU, GPU, NOT_ON_A_GPU, LlamaShape
from specscope.app.bench.figures import Measurement, Note
from specscope.app.bench.speed import one_core
from specscope.engine.model.attention import PaddedAttention, SlotAttention
from specscope.engine.model.cache import Cache
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from tests.bench import script

SHORTEST, LONGEST = 64, 2048
"""Cached rows of the first sequence, and of the last one with its new rows.

From one sequence to the next they rise by one factor."""
TREE_WIDTH = 4
"""Nodes per level of a tree."""
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 0.02}
"""Largest difference of two ways' outputs."""


@dataclass(frozen=True, slots=True)
class Case:
    """The new rows of one forward."""

    sequences: int
    rows: int
    """New rows of each sequence."""
    tree: bool = False
    """Whether they are a tree after the first row; else a chain."""

    @property
    def name(self) -> str:
        return f"{self.sequences}x{self.rows}" + "_tree" * self.tree

    def parents(self) -> list[int]:
        """Return the parent of each new row, as an index among them; -1 is the last cached row."""
        if not self.tree:
            return list(range(-1, self.rows - 1))
        return [-1, *(max(0, i - TREE_WIDTH) for i in range(1, self.rows))]


CASES = (Case(8, 1), Case(8, 6), Case(8, 21, tree=True), Case(32, 6))


def measure(repeats: int, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    """Return the figures; and the device, and each case's fastest way, also as lines of text."""
    on_gpu = torch.cuda.is_available()
    device, size = (torch.device("cuda:0"), GPU[1]) if on_gpu else (torch.device("cpu"), CPU[1])
    figures, fastest = dict[str, Measurement](), dict[str, str]()
    with contextlib.nullcontext("") if on_gpu else one_core():
        for case in CASES:
            note(case.name)
            times = Ragged(size, case, device).times(repeats)
            figures |= {f"attention_{way}_{case.name}": figure for way, figure in times.items()}
            valid = {way: figure.median for way, figure in times.items() if figure.valid}
            fastest[case.name] = min(valid, key=valid.__getitem__)
    name = torch.cuda.get_device_name(0) if on_gpu else NOT_ON_A_GPU
    facts = {"device": name, "on_gpu": on_gpu, "shape": size.name, "fastest": fastest}
    return figures, facts | {"lines": lines(figures, fastest)}


class Ragged:
    """Attention of one forward over sequences of different lengths, in all layers."""

    def __init__(self, size: LlamaShape, case: Case, device: torch.device) -> None:
        self._case, self._shape = case, ModelShape.of(size.config(), Path(size.name))
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._cache = Cache(self._shape, case.sequences, LONGEST, dtype, device)
        generator = torch.Generator(device).manual_seed(0)
        self._cache.tensor.normal_(generator=generator)
        parents, parts = np.array(case.parents()), list[Rows]()
        for slot, cached in enumerate(
            np.geomspace(SHORTEST, LONGEST - case.rows, case.sequences).round().astype(int)
        ):
            self._cache.append(Rows.chain(slot, np.zeros(cached, dtype=np.int64), 0))
            rows = np.where(parents < 0, cached - 1, cached + parents)
            parts.append(Rows.of(slot, np.zeros(case.rows, dtype=np.int64), rows))
        self._rows = Rows.join(parts)
        self._indices = torch.from_numpy(self._cache.append(self._rows)).to(device)
        self._buffers = self._cache.buffers(len(self._rows))
        self._buffers.qkv.normal_(generator=generator)
        self._buffers.queries.div_(self._shape.head_dim**0.5)

    def times(self, repeats: int) -> dict[str, Measurement]:
        expected, figures = self._output(self.loop), dict[str, Measurement]()
        for name, way in self.ways().items():
            error = float((self._output(way) - expected).abs().max())
            seconds = [self._seconds(way) for _ in range(repeats)]
            detail = {"largest_difference": error}
            values = tuple(1e3 * second for second in seconds)
            figures[name] = Measurement(values, "ms", valid=error < CLOSE[expected.dtype], detail=detail)
        return figures

    def ways(self) -> dict[str, Callable[[], None]]:
        ways = {"loop": self.loop, "masked": self.masked}
        varlen = _varlen_attn() if self._cache.tensor.is_cuda and not self._case.tree else None
        if varlen is not None:
            ways["varlen"] = VariableLengths(self._cache, self._buffers, self._rows, varlen).run
        return ways

    def loop(self) -> None:
        """Call once for each sequence and layer."""
        parts = [
            SlotAttention(self._cache, self._buffers, slot, first, end - first)
            for slot, first, end in self._rows.segments()
        ]
        for layer in range(self._shape.layers):
            for part in parts:
                part.run(layer, None)

    def masked(self) -> None:
        """Call once for each layer, over the longest cache."""
        case, longest = self._case, LONGEST
        visible = np.zeros((case.sequences, case.rows, longest), dtype=bool)
        for slot in range(case.sequences):
            length = self._cache.length(slot)
            visible[slot, :, :length] = self._cache.ancestor_mask(slot, length - case.rows)
        slots = range(case.sequences)
        attention = PaddedAttention(self._cache, self._buffers, slots, longest, self._indices)
        attention.mask({None: torch.from_numpy(visible).to(self._cache.tensor.device)})
        for layer in range(self._shape.layers):
            attention.run(layer, None)

    def _output(self, way: Callable[[], None]) -> Tensor:
        """Return the last layer's attention, (T, heads x head_dim)."""
        self._buffers.attended.zero_()
        way()
        return self._buffers.attended.clone()

    def _seconds(self, way: Callable[[], None]) -> float:
        begun = time.perf_counter()
        way()
        if self._cache.tensor.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begun


def _varlen_attn() -> Callable[..., Any] | None:
    """Return torch's `varlen_attn` if it exists and can read a part of each slot."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if "seqused_k" in signature(varlen_attn).parameters else None


class VariableLengths:
    """Attention by `varlen_attn`, which reads each slot's own number of cached rows."""

    def __init__(self, cache: Cache, buffers: Any, rows: Rows, attend: Callable[..., Any]) -> None:
        self._buffers, self._attend, shape = buffers, attend, cache.shape
        self._kv_heads, self._grouped = shape.kv_heads, shape.heads != shape.kv_heads
        self._kv = cache.tensor.permute(0, 1, 3, 2, 4).flatten(1, 2).contiguous()
        """Keys, then values of each token, (layers, slots x capacity, 2 x kv_heads, head_dim)."""
        capacity, segments = cache.tensor.shape[3], rows.segments()
        lengths = [cache.length(slot) for slot, _, _ in segments]
        self._most = (max(end - first for _, first, end in segments), max(lengths))
        places = [
            slot * capacity + np.arange(length - (end - first), length)
            for (slot, first, end), length in zip(segments, lengths, strict=True)
        ]
        self._places = torch.from_numpy(np.concatenate(places)).to(cache.tensor.device)
        self._starts = [
            self._numbers(starts)
            for starts in (
                [0, *(end for _, _, end in segments)],
                [capacity * i for i in range(len(segments) + 1)],
            )
        ]
        self._lengths = self._numbers(lengths)

    def run(self) -> None:
        new = self._buffers.kv.transpose(0, 1)
        for kv in self._kv:
            kv[self._places] = new
            keys, values = kv.split(self._kv_heads, 1)
            attended = self._attend(
                self._buffers.queries,
                keys,
                values,
                *self._starts,
                *self._most,
                scale=1.0,
                window_size=(-1, 0),
                enable_gqa=self._grouped,
                seqused_k=self._lengths,
            )
            self._buffers.attended.copy_(attended.flatten(1))

    def _numbers(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self._kv.device)


def lines(figures: dict[str, Measurement], fastest: dict[str, str]) -> list[str]:
    found = list[str]()
    for case, best in fastest.items():
        times = {
            key.removeprefix("attention_").removesuffix(f"_{case}"): figure.median
            for key, figure in figures.items()
            if key.endswith(f"_{case}")
        }
        others = [
            f"{way} takes {ms / times[best]:.1f} times as long" for way, ms in times.items() if way != best
        ]
        found.append(f"{case}: {best} is the fastest; {', '.join(others)}")
    return found


if __name__ == "__main__":
    script.main(script.options(__doc__), lambda args, note: measure(5 if args.quick else 20, note), {})
