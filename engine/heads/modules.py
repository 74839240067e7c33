"""What several kinds draft with: residual blocks, decoder layers, masks, ways to draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.heads.config import HeadConfig, TensorShapes
from engine.heads.drafting import Columns, Growing, HeadForwards, HeadLayer, LevelLogits, Take
from engine.model.decoder import Decoder
from engine.model.shape import ModelShape
from engine.model.slots import Rows
from engine.model.weights import Linear

_LENT = ("embed_tokens.weight", "lm_head.weight")
"""Tensors of a decoder that the target lends to a head's layer."""


def linear(take: Take, name: str, *, bias: bool = True) -> Linear:
    return Linear(take(f"{name}.weight"), take(f"{name}.bias") if bias else None, bits=8)


def residual(blocks: Iterable[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
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

    embedding, lm_head = ends
    return Decoder(
        shape,
        named,
        "drafter",
        embedding=embedding,
        head=lm_head,
        make_inputs=inputs,
        mask_tokens=masks,
        bits=8,
    )


def vectors_of(rows: Rows) -> Tensor:
    """Return the states that rows read beside their tokens, (T, D)."""
    assert rows.vectors is not None, "a head's rows carry states"
    return rows.vectors


def learned_masks(config: HeadConfig, take: Take, *names: str) -> list[Tensor | None]:
    """Return the masks' learned vectors of each name, (K, D); None without masks."""
    return [take(f"mask.{name}") if config.masks else None for name in names]


def mask_tensors(config: HeadConfig, *names: str) -> TensorShapes:
    """Return names and shapes of the masks' learned vectors."""
    return {f"mask.{name}": (config.masks, config.hidden_size) for name in names if config.masks}


def mask_rows(rows: Rows, x: Tensor, vectors: Tensor | None) -> Tensor:
    """Return x, (T, D), with the rows of masks replaced by their vectors; see `replace_masks`."""
    if vectors is None:
        return x
    return replace_masks(torch.from_numpy(np.maximum(-rows.tokens, 0)), x, vectors)


def replace_masks(numbers: Tensor, x: Tensor, vectors: Tensor | None) -> Tensor:
    """Return x, (T, D), with the rows of masks replaced by their vectors.

    Args:
        numbers: Number of each row's mask, from 1, and 0 for other rows, (T,) int64.
        x: (T, D).
        vectors: One per mask, (K, D); None without masks.
    """
    if vectors is None:
        return x
    numbers = numbers.to(x.device)
    return torch.where((numbers == 0)[:, None], x, vectors[(numbers - 1).clamp(min=0)])


@dataclass(frozen=True, slots=True)
class LayeredHead:
    """A head that drafts with one decoder layer."""

    columns: Columns
    layer: HeadLayer
    draft: Callable[[HeadForwards], LevelLogits]
    keeps: tuple[int, ...] = ()


def draft_with_states(forwards: HeadForwards) -> LevelLogits:
    """Draft with a forward per level: the first reads exact states, the others predicted ones."""

    def logits(trees: Sequence[Growing]) -> Sequence[Tensor]:
        return forwards.deepen(trees) if trees[0].depth else forwards.exact(trees, [0] * len(trees))

    return logits


def draft_at_once(compute: Callable[[Sequence[Growing]], Sequence[Tensor]], unread: int = 0) -> LevelLogits:
    """Draft all levels in one forward; one row of logits holds for every node of a level.

    Args:
        compute: Trees -> the logits of all levels of each, (unread + levels, N).
        unread: Rows before the first level's.
    """
    rows = dict[int, Tensor]()

    def logits(trees: Sequence[Growing]) -> Sequence[Tensor]:
        if not trees[0].depth:
            computed = zip(trees, compute(trees), strict=True)
            rows.update((tree.prefix.sequence, levels) for tree, levels in computed)
        return [rows[tree.prefix.sequence][unread + tree.depth][None] for tree in trees]

    return logits


def draft_with_masks(forwards: HeadForwards) -> LevelLogits:
    """Draft in one forward over the last tokens and the masks."""
    unread = forwards.unread
    return draft_at_once(
        lambda trees: forwards.exact(trees, [tree.levels - 1 + unread for tree in trees]), unread
    )
