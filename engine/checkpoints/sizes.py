"""Bytes that a model takes on a device, from its config alone.

No weights are read. Embeddings that processes of one machine share count for each of them.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from specscope.engine.checkpoints.config import config_file, read_config
from specscope.engine.checkpoints.forms import split_form
from specscope.engine.model.int4 import GROUP, fits_int4
from specscope.engine.model.int8 import is_rotated
from specscope.engine.model.shape import EMBEDDING, POSITIONS, ModelShape
from specscope.engine.model.shard import HEAD, Shard
from specscope.engine.model.stage import layer_stages
from specscope.engine.model.weights import PACKED_FROM

_JOINED = re.compile(r"\b(q|k|v|gate|up)_proj\.weight$")
"""Matrices that a layer joins: queries, keys and values; gate and up."""


class Size(NamedTuple):
    """What a model, or a part of it, takes on one device, in bytes."""

    weights: int
    per_token: int
    """Keys and values of one token."""

    def with_cache(self, tokens: int) -> int:
        return self.weights + tokens * self.per_token


class Split(NamedTuple):
    """The part of a model on one device; by default all of it."""

    layers: range | tuple[int, int] | None = None
    """Layers of one stage, or its number and the number of stages of equal size."""
    rank: int = 0
    ways: int = 1
    """Devices that hold a part of every layer."""


def shape_of(model: Path) -> ModelShape:
    """Return the shape of a model: a directory, or the file of its config."""
    model, _ = split_form(model)
    return ModelShape.of(read_config(model), config_file(model))


def model_size(directory: Path, dtype: torch.dtype, *, on_cpu: bool, split: Split | None = None) -> Size:
    """Return the bytes of a model, or of its part on one device.

    On a CPU, matrices have layouts of their own; keys and values have the weights' dtype.
    """
    bits = split_form(directory)[1]
    return _size(shape_of(directory), dtype, on_cpu, split or Split(), bits)


def layer_sizes(shape: ModelShape, dtype: torch.dtype, *, on_cpu: bool) -> list[Size]:
    """Return the bytes of each layer; the first has the embeddings, the last the LM head."""
    return [_size(shape, dtype, on_cpu, Split(range(i, i + 1)), 0) for i in range(shape.layers)]


def stored_size(shape: ModelShape, bits: float, itemsize: int, split: Split | None = None) -> Size:
    """Return the bytes of a shape, or of its part on one device, as a server's files hold it.

    Matrices of layers have `bits` bits a number; embeddings, LM head, norms, keys and values have
    `itemsize` bytes. Ranks share the embeddings, too, as servers do and this engine does not.
    """
    part, span, tensors, head = _tensors(shape, split or Split())
    if EMBEDDING in tensors:
        tensors[EMBEDDING] = head
    counts = {True: 0, False: 0}
    for name, size in tensors.items():
        counts[len(size) == 2 and name.startswith("model.layers.")] += math.prod(size)
    weights = math.ceil(counts[True] * bits / 8) + counts[False] * itemsize
    return Size(weights, part.shape.kv_numbers * len(span) // shape.layers * itemsize)


def _tensors(
    shape: ModelShape, split: Split
) -> tuple[Shard, range, dict[str, tuple[int, ...]], tuple[int, int]]:
    """Return a part of a shape, its layers, its tensors, and the size of its LM head."""
    stage = (0, 1) if split.layers is None else split.layers
    span = stage if isinstance(stage, range) else layer_stages(shape.layers, stage[1])[stage[0]]
    part = Shard(shape, split.rank, split.ways)
    tensors = part.shape.tensors(span)
    head = (part.vocabulary.stop - part.vocabulary.start, shape.width)
    if HEAD in tensors:
        tensors[HEAD] = head
    return part, span, tensors, head


def _size(shape: ModelShape, dtype: torch.dtype, on_cpu: bool, split: Split, bits: int) -> Size:
    """Return the size of a part; the last one may have a copy of the LM head (`Linear`)."""
    if split.ways == 1 and is_rotated(shape, dtype, bits, on_cpu=on_cpu):
        shape = replace(shape, tied=False)
    part, span, tensors, head = _tensors(shape, split)
    tensors = _joined(tensors)
    head_bits = bits if split.ways == 1 else 0  # a rank's part of the LM head is not rounded
    if _bytes(head, dtype.itemsize) >= PACKED_FROM:
        has_product = shape.tied if head_bits else torch.backends.mkl.is_available()
        copied = on_cpu and dtype == torch.float32 and has_product
    else:
        copied = on_cpu and shape.tied and head[0] > head[1]
    padded = shape.tied and part.vocabulary.stop > shape.vocab
    if span.stop == shape.layers and (copied or padded):
        tensors["copy"] = head
    weights = sum(
        _bytes_of(name, size, dtype, on_cpu, head_bits if name in (HEAD, "copy") else bits)
        for name, size in tensors.items()
    )
    return Size(weights, part.shape.kv_numbers * len(span) // shape.layers * dtype.itemsize)


def _joined(tensors: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    joined = dict[str, tuple[int, ...]]()
    for name, size in tensors.items():
        key = _JOINED.sub(lambda found: "qkv.weight" if found[1] in "qkv" else "gate_up.weight", name)
        joined[key] = (joined[key][0] + size[0], size[1]) if key in joined else size
    return joined


def _bytes_of(name: str, size: tuple[int, ...], dtype: torch.dtype, on_cpu: bool, bits: int) -> int:
    whole = _bytes(size, dtype.itemsize)
    if not bits or len(size) < 2 or name in (EMBEDDING, POSITIONS) or whole < PACKED_FROM:
        return whole
    in_int4 = bits == 4 and (on_cpu or dtype == torch.bfloat16) and fits_int4(size)
    if in_int4 and name.startswith("model.layers."):
        return math.prod(size) // 2 + 4 * math.prod(size) // GROUP
    return math.prod(size) + 4 * size[0] if on_cpu and dtype == torch.float32 else whole


def _bytes(size: tuple[int, ...], itemsize: int) -> int:
    return math.prod(size) * itemsize
