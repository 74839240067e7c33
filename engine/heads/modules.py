"""What the modules of several kinds share: residual blocks, decoder layers, masks, drafting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.heads.config import HeadConfig, TensorShapes
from engine.heads.drafting import HeadForwards, LevelLogits, Node, Take, level_below
from engine.model.decoder import Decoder
from engine.model.shape import ModelShape
from engine.model.slots import Rows
from engine.model.weights import Linear

_LENT = ("embed_tokens.weight", "lm_head.weight")
"""Tensors of a decoder that the target lends to a head's layer."""


def linear(take: Take, name: str, *, bias: bool = True) -> Linear:
    """Return the linear map whose tensors begin with a name."""
    return Linear(take(f"{name}.weight"), take(f"{name}.bias") if bias else None)


def residual(blocks: Sequence[Linear], x: Tensor) -> Tensor:
    """Apply x + SiLU(W x + b) for each block, (..., D)."""
    for block in blocks:
        x = x + functional.silu(block(x))
    return x


def layer_tensors(shape: ModelShape) -> TensorShapes:
    """Return names and shapes of a decoder layer's tensors, without those that the target lends."""
    shapes = {name.removeprefix("model."): size for name, size in shape.tensors().items()}
    return {name: size for name, size in shapes.items() if name not in _LENT}


def decoder_layer(
    shape: ModelShape,
    take: Take,
    inputs: Callable[[Rows, Tensor], tuple[Tensor, Tensor | None]],
    ends: tuple[Tensor, Callable[[Tensor], Tensor]],
    masks: int = 0,
) -> Decoder:
    """Return a head's layer as a decoder.

    Args:
        shape: Of the layer.
        take: Returns its tensors.
        inputs: (rows, their embeddings) -> (residual input, optional attention input), (T, ...)
            each.
        ends: Embedding, (V, D), and LM head.
        masks: K, number of mask tokens; mask k has id -1 - k.
    """

    def named(key: str) -> Tensor:
        return take(key.removeprefix("model."))

    return Decoder(shape, named, "drafter", ends=ends, before=inputs, masks=masks)


def vectors_of(rows: Rows) -> Tensor:
    """Return the states that rows read beside their tokens, (T, D)."""
    assert rows.vectors is not None, "a head's rows carry states"
    return rows.vectors


def learned_masks(config: HeadConfig, take: Take, name: str) -> Tensor | None:
    """Return the learned vectors of the masks, (K, D); None without masks."""
    return take(f"mask.{name}") if config.masks else None


def replace_masks(rows: Rows, x: Tensor, vectors: Tensor | None) -> Tensor:
    """Return x, (T, D), with the rows of mask tokens replaced by their vectors of (K, D)."""
    masks = np.flatnonzero(rows.tokens < 0)
    if vectors is None or not len(masks):
        return x
    numbers = torch.from_numpy(-1 - rows.tokens[masks]).to(x.device)
    return x.index_copy(0, torch.from_numpy(masks).to(x.device), vectors.index_select(0, numbers))


def draft_with_states(forwards: HeadForwards) -> LevelLogits:
    """Draft with a forward per level: the first reads exact states, the others predicted ones."""
    row_of = {-1: -1}  # tree node index -> index of its forwarded row

    def logits(nodes: Sequence[Node], parents: Sequence[int]) -> Tensor | None:
        if not nodes:
            return forwards.exact()
        level = [row_of[nodes[i].parent] for i in parents]
        row_of.update({node: len(row_of) - 1 + i for i, node in enumerate(parents)})
        return forwards.deepen([nodes[i].id for i in parents], level)

    return logits


def draft_with_masks(forwards: HeadForwards) -> LevelLogits:
    """Draft in one forward over the last token and the masks: one row of logits per level."""
    rows: Tensor | None = None

    def logits(nodes: Sequence[Node], parents: Sequence[int]) -> Tensor | None:
        nonlocal rows
        if not nodes:
            rows = forwards.exact(forwards.levels - 1)
        return None if rows is None else rows[level_below(nodes, parents)][None]

    return logits
