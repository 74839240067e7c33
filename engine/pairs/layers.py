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
from engine.model.decoder import Decoder
from engine.model.draft_vocabulary import DraftVocabulary
from engine.model.shape import EMBEDDING, ModelShape
from engine.model.shard import Shard
from engine.model.weights import Linear, Norm, identity
from engine.pairs.checkpoint import Checkpoint
from engine.pairs.config import DRAFTER_MARK, read_config, read_object
from engine.pairs.int8 import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from engine.model.shard import Part, Ranks

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
