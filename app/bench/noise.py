"""A model whose weights lie on no grid of 16 steps.

Files that were quantised to four bits lie on such a grid, so a drafter in int4 has nearly the same
weights. Noise of one step shows what rounding costs other files.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor

from engine.model.decoder import Decoder
from engine.model.int4 import GROUP
from engine.model.shape import ModelShape
from engine.pairs.checkpoint import Checkpoint
from engine.pairs.config import read_config


def load_noisy(directory: Path, bits: int = 0) -> Decoder:
    """Return a model with noise on the matrices of its layers, the same in every call.

    Args:
        directory: The model's directory.
        bits: Bits to which the matrices with noise are rounded; 0 keeps them.

    Raises:
        ModelError: The directory, its config or its weights are missing or broken.
    """
    shape = ModelShape.of(read_config(directory), directory / "config.json")
    checkpoint, cpu = Checkpoint(directory, shape=shape), torch.device("cpu")
    checkpoint.check(shape.tensors())
    checkpoint.check_memory(shape.tensors(), cpu, torch.float32)

    def take(key: str) -> Tensor:
        tensor = checkpoint.take(key, cpu, torch.float32)
        return with_noise(tensor, key) if key.startswith("model.layers.") and tensor.ndim == 2 else tensor

    return Decoder(shape, take, "drafter" if bits else "target", bits=bits)


def with_noise(matrix: Tensor, key: str) -> Tensor:
    """Return a matrix (out, in) plus uniform noise of one step of a group's grid of 16 steps.

    Args:
        matrix: The matrix; one whose rows are no groups of 32 is returned unchanged.
        key: Its name, from which the noise follows.
    """
    if matrix.shape[1] % GROUP:
        return matrix
    groups = matrix.unflatten(1, (-1, GROUP))
    step = (groups.amax(2, keepdim=True) - groups.amin(2, keepdim=True)) / 15
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return (groups + (torch.rand(groups.shape, generator=generator) - 0.5) * step).flatten(1)
