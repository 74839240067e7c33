"""Drafters made of some of a target's own layers: a few megabytes beside the target's weights.

Layer j of the drafter is layer `layers[j]` of the target, with W + B A instead of each matrix W
(B: out x rank, A: rank x in) and with its own norms. The hidden state passes an optional linear map
before the last norm. The LM head has the rows of N tokens of the target's head (FR-Spec, Zhao et
al. 2025, section 3). Deltas are added when the drafter is loaded, so a forward costs as much as
that of any model with these layers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from engine.errors import ModelError, PairError, UsageError, plain_name, shown
from engine.files import replacing
from engine.model.shape import ModelShape
from engine.pairs.checkpoint import Checkpoint
from engine.pairs.config import DRAFTER_MARK, read_config, read_object
from engine.pairs.int8 import pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor


VERSION = 1
WEIGHTS = "model.safetensors"
CPU = torch.device("cpu")
MATRICES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
"""Matrices of a layer that have deltas."""


@dataclass(frozen=True, slots=True)
class LayerDrafter:
    """Config of a drafter made of a target's layers."""

    layers: tuple[int, ...]
    """Numbers of the kept layers in the target, ascending, from 0."""
    rank: int
    """Rank of the deltas."""
    vocabulary: int
    """Number N of tokens that can be drafted; 0: all tokens of the target."""
    mapped: bool
    """Whether a linear map precedes the last norm."""
    target: str
    """Name of the target, for people."""
    digest: str
    """`target_digest` of the target."""

    def shape(self, target: ModelShape) -> ModelShape:
        """Return the shape of the decoder.

        Raises:
            ModelError: A number does not fit the target.
        """
        check_layers(self.layers, target.layers)
        check_rank(self.rank, target)
        check_vocabulary(self.vocabulary, target.vocab)
        windows = tuple(target.windows[i] for i in self.layers)
        return dataclasses.replace(target, layers=len(self.layers), windows=windows)

    def tensors(self, target: ModelShape) -> dict[str, tuple[int, ...]]:
        """Return name -> shape of the stored tensors."""
        shapes = self.shape(target).tensors()
        stored = {name: size for name, size in shapes.items() if "norm" in name}
        for j in range(len(self.layers)):
            for matrix in MATRICES:
                name = f"model.layers.{j}.{matrix}"
                rows, columns = shapes[f"{name}.weight"]
                stored[f"{name}.a"], stored[f"{name}.b"] = (self.rank, columns), (rows, self.rank)
        if self.mapped:
            stored["map"] = (target.width, target.width)
        if self.vocabulary:
            stored["ids"] = (self.vocabulary,)
        return stored


def check_layers(layers: Sequence[int], count: int) -> None:
    """Check the numbers of kept layers.

    Raises:
        UsageError: There is none, or one does not exist, repeats or is out of order.
    """
    numbers = ",".join(map(str, layers))
    if not layers:
        raise UsageError("layers is empty; name at least one layer")
    if missing := [i for i in layers if not 0 <= i < count]:
        raise UsageError(
            f"layers is {numbers}; there is no layer {missing[0]}, the target's are 0 to {count - 1}"
        )
    if len(set(layers)) < len(layers):
        raise UsageError(f"layers is {numbers}; each layer may be named once")
    if sorted(layers) != list(layers):
        raise UsageError(f"layers is {numbers}; write the numbers in ascending order")


def check_rank(rank: int, target: ModelShape) -> None:
    """Check the rank of the deltas.

    Raises:
        UsageError: It is not from 1 to the smallest side of the target's matrices.
    """
    most = min(target.width, target.inner, target.kv_heads * target.head_dim)
    if not 1 <= rank <= most:
        raise UsageError(
            f"rank is {rank}; it must be at least 1 and at most {most}, the smallest side of the target's matrices"
        )


def check_vocabulary(tokens: int, vocab: int) -> None:
    """Check the number of tokens that can be drafted.

    Raises:
        UsageError: It exceeds the target's vocabulary.
    """
    if not 0 <= tokens <= vocab:
        raise UsageError(
            f"vocabulary is {tokens}; it must be at least 0 and at most {vocab}, the target's tokens"
        )


def is_layer_drafter(folder: Path) -> bool:
    """Return whether a directory holds a drafter made of a target's layers.

    Raises:
        ModelError: Its config.json holds no JSON object.
    """
    return DRAFTER_MARK in read_object(folder / "config.json")


def target_digest(folder: Path) -> str:
    """Return a digest that identifies a target in any float type, sharded or not.

    It is the SHA-256 of the names and shapes of the tensors and of the values of the last norm.
    """
    shape, weights = ModelShape.of(read_config(folder), folder / "config.json"), Checkpoint(folder)
    shape.check_llama(folder)
    weights.check(shape.tensors())
    digest = hashlib.sha256(json.dumps(sorted(shape.tensors().items())).encode())
    digest.update(weights.take("model.norm.weight", CPU, torch.float32).numpy().tobytes())
    return digest.hexdigest()


def read_drafter(folder: Path, target: Path) -> tuple[LayerDrafter, Checkpoint]:
    """Return the config and the checked weights of a drafter made of a target's layers.

    Raises:
        ModelError: A file is missing or broken.
        PairError: It was made for another target.
    """
    file = folder / "config.json"
    config = _parse(file)
    if config.digest != target_digest(target):
        raise PairError(
            f"{folder} is a drafter made of layers of another target ({plain_name(config.target)}), not of {target}; "
            "use that target, or make a drafter for this one: specscope train drafter"
        )
    shape = ModelShape.of(read_config(target), target / "config.json")
    try:
        expected = config.tensors(shape)
    except UsageError as error:
        raise ModelError(f"{file}: {error}") from None
    weights = Checkpoint(folder, [folder / WEIGHTS])
    weights.check(expected, integers=("ids",))
    if config.vocabulary:
        ids = weights.take("ids", CPU, torch.int64)
        if ids[0] < 0 or ids[-1] >= shape.vocab or (ids.diff() <= 0).any():
            raise ModelError(f"{folder / WEIGHTS}: ids must be ascending, from 0 to {shape.vocab - 1}")
    return config, weights


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return a drafter's own tensors: ids as int64, all others in float32.

    Raises:
        ModelError: The file is missing or broken.
    """
    weights = Checkpoint(folder, [folder / WEIGHTS])
    kinds = {"ids": torch.int64}
    return {name: weights.take(name, CPU, kinds.get(name, torch.float32)) for name in weights.shapes}


def write_drafter(folder: Path, config: LayerDrafter, tensors: Mapping[str, Tensor]) -> None:
    """Write matrices in int8 and norms in bf16, then the config; each file appears whole."""
    part = folder / f"{WEIGHTS}.part"
    stored = {name: t.to(torch.int32 if name == "ids" else torch.bfloat16) for name, t in tensors.items()}
    save_file({name: t.detach().cpu().contiguous() for name, t in pack(stored).items()}, part)
    os.replace(part, folder / WEIGHTS)
    with replacing(folder / "config.json") as file:
        file.write(json.dumps({DRAFTER_MARK: VERSION} | dataclasses.asdict(config)) + "\n")


def _parse(file: Path) -> LayerDrafter:
    """Return the config in a drafter's config.json.

    Raises:
        ModelError: It has another version, or a field is missing or of a wrong type.
    """
    raw = read_object(file)
    if (version := raw.get(DRAFTER_MARK)) != VERSION:
        raise ModelError(f"{file}: {DRAFTER_MARK} is {shown(version)}; this version reads {VERSION}")
    kinds = {"layers": list, "rank": int, "vocabulary": int, "mapped": bool, "target": str, "digest": str}
    for name, kind in kinds.items():
        if type(raw.get(name)) is not kind:
            raise ModelError(f"{file}: {name} is {shown(raw.get(name))}; it must be of type {kind.__name__}")
    if not all(type(layer) is int for layer in raw["layers"]):
        raise ModelError(f"{file}: layers is {shown(raw['layers'])}; it must hold whole numbers")
    fields: dict[str, Any] = {name: raw[name] for name in kinds}
    fields["layers"] = tuple(raw["layers"])
    return LayerDrafter(**fields)
