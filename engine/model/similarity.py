"""Cosine similarity of a fuzzy forward and the exact one, layer by layer.

Source: EasySpec (Wu et al. 2025), section 4.3, Table 5. The paper does not define the layers over
which it averages. This module averages over the layers that read another layer's input: all of a
group but its first. Each fuzzy row follows a cache of exact rows, as after bonus calibration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from specscope.engine.errors import UsageError
from specscope.engine.model.cache import Buffers, Cache
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.fuzzy import Fuzzy, layer_groups
from specscope.engine.model.slots import Rows


class Similarity(NamedTuple):
    """Mean cosine similarities of exact and fuzzy vectors; 1 if they are equal."""

    h: float
    """The layer's input."""
    q: float
    """Queries, head by head."""
    k: float
    """Keys, head by head."""
    v: float
    """Values, head by head."""
    attention: float
    """The attention output."""


def similarity(decoder: Decoder, tokens: Sequence[int], size: int) -> Similarity:
    """Compare the fuzzy and the exact forward of every row of a text, at least one token.

    UsageError if the layer-parallel size is out of range, or makes no group of several layers.
    """
    groups = layer_groups(decoder.depth, size)
    stale = {layer: group.start for group in groups for layer in group[1:]}
    if not stale:
        raise UsageError(
            f"with {decoder.depth} layers and size {size} every layer reads its own hidden state"
        )
    cache = decoder.new_cache(1, len(tokens))
    single = layer_groups(decoder.depth, 1)
    rows: list[list[float]] = []
    for i, token in enumerate(tokens):
        row = Rows.chain(0, [token], i)
        fuzzy = _states(decoder, cache, row, groups)
        cache.truncate(0, i)
        exact = _states(decoder, cache, row, single)
        for layer, first in stale.items():
            rows.append(_cosines(exact[layer], [fuzzy[first][0], *fuzzy[layer][1:]]))
    return Similarity(*torch.tensor(rows, dtype=torch.float64).mean(0).tolist())


def _states(decoder: Decoder, cache: Cache, row: Rows, groups: Sequence[range]) -> list[list[Tensor]]:
    """Forward one row; return each layer's input, queries, keys, values and attention output."""
    layers: list[list[Tensor]] = []

    def watch(layer: int, buffers: Buffers) -> None:
        keys, values = buffers.kv[:, 0].chunk(2)
        output = decoder.layers[layer].out(buffers.attended)[0]
        layers.append([buffers.queries[0].clone(), keys.clone(), values.clone(), output])

    hidden = tuple(range(decoder.depth))
    out = decoder.forward(cache, row, np.empty(0, dtype=np.int64), hidden, Fuzzy(groups, watch=watch))
    return [[out.hidden[i][0], *tensors] for i, tensors in enumerate(layers)]


def _cosines(exact: list[Tensor], fuzzy: list[Tensor]) -> list[float]:
    return [float(cosine_similarity(a, b, dim=-1).mean()) for a, b in zip(exact, fuzzy, strict=True)]
