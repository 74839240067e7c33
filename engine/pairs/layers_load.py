"""Loading of drafters made of a target's layers (`engine.pairs.layers`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.model.decoder import Decoder
from engine.model.draft_vocabulary import DraftVocabulary
from engine.model.shape import EMBEDDING, ModelShape
from engine.model.shard import Shard
from engine.model.weights import Linear, Norm, identity
from engine.pairs.checkpoint import Checkpoint
from engine.pairs.config import read_config
from engine.pairs.layers import CPU, LayerDrafter, read_drafter

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from engine.model.shard import Part, Ranks


def load_drafter(
    folder: Path,
    target: Path,
    device: str | torch.device,
    dtype: torch.dtype,
    name: str,
    ranks: Ranks | None = None,
) -> Decoder:
    """Return the decoder of a drafter made of a target's layers.

    Args:
        folder: The drafter's directory.
        target: The target's.
        device: Device of the weights.
        dtype: Dtype of the weights.
        name: The model's name in spans.
        ranks: The ranks of a drafter split by tensors: each holds a part of every layer, and the
            whole LM head, which a shortened vocabulary makes small.

    Raises:
        ModelError: A file is missing or broken.
        PairError: It was made for another target.
    """
    config, deltas = read_drafter(folder, target)
    source, place = Checkpoint(target), torch.device(device)
    shape = config.shape(ModelShape.of(read_config(target), target / "config.json"))
    shard = Shard(shape, *((ranks.rank, ranks.ways) if ranks is not None else (0, 1)))
    source.check_memory(shard.shape.tensors(), device, dtype)
    read = merged(config, source, deltas)

    def take(key: str) -> Tensor:
        return read(key).to(place, dtype)

    def take_part(key: str) -> Tensor:
        return shard.take(key, lambda key, part: _cut(take(key), part))

    ids = deltas.take("ids", place, torch.int64) if config.vocabulary else None
    head = _head(shape, take, ids, Linear(take("map"), drafts=True) if config.mapped else identity)
    # the head contains the last norm, because the map precedes it
    shape = dataclasses.replace(shard.shape, final_norm=False)
    return Decoder(shape, take_part, name, head=head, drafts=True, ranks=ranks)


def _cut(tensor: Tensor, part: Part | None) -> Tensor:
    """Return a part of a tensor, without what lies beyond its end; None for the whole tensor."""
    if part is None:
        return tensor
    size = tensor.shape[part.dim]
    start, stop = min(part.start, size), min(part.stop, size)
    return tensor.narrow(part.dim, start, stop - start).clone()


def _head(
    shape: ModelShape, take: Callable[[str], Tensor], ids: Tensor | None, mapping: Callable[[Tensor], Tensor]
) -> Callable[[Tensor], Tensor]:
    """Return the map, the last norm and the LM head as one function, (T, D) -> (T, V)."""
    norm = Norm(take("model.norm.weight"), shape.eps)
    weight = take(EMBEDDING if shape.tied else "lm_head.weight")
    if ids is None:
        lm_head: Callable[[Tensor], Tensor] = Linear(weight, drafts=True)
    else:
        lm_head = DraftVocabulary(Linear(weight[ids], drafts=True), ids, shape.vocab)
    return lambda x: lm_head(norm(mapping(x)))


def merged(config: LayerDrafter, source: Checkpoint, deltas: Checkpoint) -> Callable[[str], Tensor]:
    """Return a function that returns the drafter's tensors by name, float32 on the CPU.

    Args:
        config: The drafter's config.
        source: The target's weights.
        deltas: The drafter's weights.
    """
    own = deltas.shapes

    def read(name: str) -> Tensor:
        if name in own:
            return deltas.take(name, CPU, torch.float32)
        parts = name.split(".")
        if parts[1] == "layers":
            parts[2] = str(config.layers[int(parts[2])])
        weight = source.take(".".join(parts), CPU, torch.float32)
        matrix = name.removesuffix(".weight")
        if f"{matrix}.a" in own:
            a, b = (deltas.take(f"{matrix}.{factor}", CPU, torch.float32) for factor in "ab")
            weight.addmm_(b, a)
        return weight

    return read
