"""Attention of few rows by `flex_attention`, where it is faster than torch's default.

A verification's rows see different parts of the cache. torch's default then reads a mask, and on an
H200 takes two to four times as long as a compiled `flex_attention` that reads whether a row is
seen. Both are measured at each size. For a short cache or a single row nothing is compiled: there
the default is as fast, or faster.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specscope.engine.model.compiler import fused

BLOCK = 128
"""Cached rows of a block that the kernel reads at once."""
FROM_LENGTH = 512
"""Cached rows from which on several rows may be worth a compiled kernel."""
REPEATS = 20
"""Calls of each way that are timed."""


def compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention  # takes a second

    return fused(flex_attention)


class Flex:
    """Calls for R rows of each of S slots, which see N cached rows or not.

    Args:
        visible: Whether a row sees a cached one, (S, R, N); read at each call.
        groups: G, the heads that share keys and values.
        cap: See `specscope.engine.model.attention.attend`.
    """

    def __init__(self, visible: Tensor, groups: int, cap: float) -> None:
        from torch.nn.attention.flex_attention import BlockMask

        slots, rows, length = visible.shape
        blocks = -(-length // BLOCK)
        counts = torch.full((slots, 1, 1), blocks, dtype=torch.int32, device=visible.device)
        numbers = torch.arange(blocks, dtype=torch.int32, device=visible.device)

        def sees(slot: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG001
            return visible[slot, query % rows, key]

        def capped(score: Tensor, *place: Tensor) -> Tensor:  # noqa: ARG001
            return torch.tanh(score / cap) * cap

        self._score = capped if cap else None
        self._mask = BlockMask.from_kv_blocks(
            counts,
            numbers.expand(slots, 1, 1, blocks).contiguous(),
            BLOCK_SIZE=BLOCK,
            mask_mod=sees,
            seq_lengths=(groups * rows, length),
        )

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the weighted values, (S, kv_heads, G R, head_dim), of scaled queries.

        Row R g + r of a slot's queries is row r of head g.
        """
        return compiled_flex()(queries, keys, values, self._score, self._mask, scale=1.0)


def fastest(ways: Mapping[str, Callable[[], object]], device: torch.device) -> str:
    """Return the name of the fastest call; on CUDA the calls are timed inside graphs.

    A call that fails is not the fastest: `flex_attention` has no kernels for narrow heads.
    """
    timed = _in_graph if device.type == "cuda" else _times
    seconds = dict[str, float]()
    for name, call in ways.items():
        with contextlib.suppress(Exception):  # of any part of torch's compiler
            seconds[name] = median(timed(call))
    return min(seconds, key=seconds.__getitem__)


def _times(call: Callable[[], object]) -> list[float]:
    times = list[float]()
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def _in_graph(call: Callable[[], object]) -> list[float]:
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        side.synchronize()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            for _ in range(REPEATS):
                call()
        times = list[float]()
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
    return times
