"""How near a fuzzy forward comes to the exact one, layer by layer.

Source: EasySpec (Wu et al. 2025), section 4.3: average cosine similarities of Table 5. The paper does not say over which layers it
takes the mean; here over those that read an older state than their own, so all of a group but its first. Each row
is forwarded fuzzily after a cache of exact rows, as after a bonus calibration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cosine_similarity

from engine.errors import UsageError
from engine.model.fuzzy import Fuzzy, layer_groups
from engine.model.slots import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from engine.model.cache import Buffers, Cache
    from engine.model.decoder import Decoder


class Similarity(NamedTuple):
    """Mean cosine similarities of exact and fuzzy vectors: 1 where nothing is lost."""

    h: float
    """The hidden state that a layer's attention reads."""
    q: float
    """Queries, head by head."""
    k: float
    """Keys, head by head."""
    v: float
    """Values, head by head."""
    attention: float
    """The attention's output."""


def similarity(decoder: Decoder, tokens: Sequence[int], size: int) -> Similarity:
    """Compare the fuzzy forward of every row of a text with the exact one.

    Args:
        decoder: The drafter.
        tokens: The text's ids, at least 1.
        size: Layer-parallel size.

    Raises:
        UsageError: The size is out of range, or so small that no layer reads an older state than its own.
    """
    groups = layer_groups(decoder.depth, size)
    stale = {layer: group.start for group in groups for layer in group[1:]}
    if not stale:
        raise UsageError(
            f"with {decoder.depth} layers and size {size} every layer reads its own hidden state"
        )
    cache = decoder.new_cache(1, len(tokens))
    ordinary = layer_groups(decoder.depth, 1)
    rows: list[list[float]] = []
    for at, token in enumerate(tokens):
        row = Rows.chain(0, [token], at)
        fuzzy = _states(decoder, cache, row, groups)
        cache.truncate(0, at)
        exact = _states(decoder, cache, row, ordinary)
        for layer, first in stale.items():
            rows.append(_cosines(exact[layer], [fuzzy[first][0], *fuzzy[layer][1:]]))
    return Similarity(*torch.tensor(rows, dtype=torch.float64).mean(0).tolist())


def _states(decoder: Decoder, cache: Cache, row: Rows, groups: Sequence[range]) -> list[list[Tensor]]:
    """Forward one row and return, for each layer: its input, queries, keys, values and attention output."""
    seen: list[list[Tensor]] = []

    def watch(layer: int, buffers: Buffers) -> None:
        keys, values = buffers.kv[:, 0].chunk(2)
        read = decoder.layers[layer].out(buffers.read)[0]
        seen.append([buffers.queries[0].clone(), keys.clone(), values.clone(), read])

    hidden = tuple(range(decoder.depth))
    out = decoder.forward(cache, row, np.empty(0, dtype=np.int64), hidden, Fuzzy(groups, watch=watch))
    return [[out.hidden[i][0], *tensors] for i, tensors in enumerate(seen)]


def _cosines(exact: list[Tensor], fuzzy: list[Tensor]) -> list[float]:
    return [float(cosine_similarity(a, b, dim=-1).mean()) for a, b in zip(exact, fuzzy, strict=True)]
