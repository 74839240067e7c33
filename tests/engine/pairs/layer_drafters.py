"""Drafters made of the layers of tiny targets, with random or zero deltas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.model.shape import ModelShape
from engine.pairs.config import read_config
from engine.pairs.layers import LayerDrafter, target_digest, write_drafter


def make_drafter(folder: Path, target: Path, noise: float = 0.0, **fields: Any) -> Path:
    """Write a drafter and return its folder; by default it equals the target.

    Args:
        folder: A new folder.
        target: Directory of the target.
        noise: Standard deviation of the deltas, norms and map around those of the target.
        fields: Fields of `LayerDrafter`.
    """
    shape = ModelShape.of(read_config(target), target / "config.json")
    facts = {"layers": tuple(range(shape.layers)), "rank": 2, "vocabulary": 0, "mapped": False}
    config = LayerDrafter(**{**facts, "target": target.name, "digest": target_digest(target), **fields})
    from engine.pairs.checkpoint import Checkpoint

    weights, tensors = Checkpoint(target), dict[str, torch.Tensor]()
    generator = torch.Generator().manual_seed(3)
    for name, size in config.tensors(shape).items():
        tensors[name] = noise * torch.randn(size, generator=generator)
        if name.endswith(".a"):
            tensors[name] = torch.randn(size, generator=generator)
        elif name == "map":
            tensors[name] += torch.eye(*size)
        elif name == "ids":
            tensors[name] = torch.randperm(shape.vocab, generator=generator)[: size[0]].sort().values
        elif "norm" in name:
            parts = name.split(".")
            if parts[1] == "layers":
                parts[2] = str(config.layers[int(parts[2])])
            tensors[name] += weights.take(".".join(parts), torch.device("cpu"), torch.float32)
    folder.mkdir(parents=True)
    write_drafter(folder, config, tensors)
    return folder
