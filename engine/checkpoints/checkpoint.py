"""The safetensors files of a directory: checked against the expected tensors, read one by one.

A tensor of int8 is read as the matrix that it and its scales represent
(`specscope.engine.model.int8`). The scales of `name` are a second tensor, `name.scale`, in bf16;
float32 is read, too.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specscope.engine.checkpoints.config import read_json, unused_layers
from specscope.engine.errors import ModelError, one_line, plain_name
from specscope.engine.files import cache_folder
from specscope.engine.model.families import FAMILIES, TensorPlace
from specscope.engine.model.int8 import dequantised, quantised
from specscope.engine.model.shape import EMBEDDING, ModelShape
from specscope.engine.model.shard import TensorPart

SUFFIX = ".scale"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FLOATS = ("F64", "F32", "F16", "BF16")
_INDEX = "model.safetensors.index.json"
MOST_SHARDS = 1000
LONGEST_INDEX = 1 << 24
"""Most bytes of an index, and of the header of a safetensors file."""

_LAYER = re.compile(r"model\.layers\.\d+\.")
_MTP = "enorm.weight"
"""The tensor that only a layer for drafting has, in DeepSeek's form."""


class Checkpoint:
    """One or several safetensors files, by default those of a model in a directory.

    With the `shape` of the model, whose family may store our tensors in other ways, names are ours;
    without it, they are those of the file. A ModelError if a file is missing or broken, or the
    directory has only pickled weights.
    """

    def __init__(self, directory: Path, files: Sequence[Path] = (), shape: ModelShape | None = None) -> None:
        self.directory = directory
        self._shards = {path: _open(path) for path in files or self._files()}
        self._paths = {key: path for path, shard in self._shards.items() for key in shard.keys()}  # noqa: SIM118
        scaled = [key.removesuffix(SUFFIX) for key in self._paths if key.endswith(SUFFIX)]
        self._scaled = {key for key in scaled if key in self._paths and self._slice(key).get_dtype() == "I8"}
        self._places = {} if shape is None else shape.places(self._paths)
        self._ignored = () if shape is None else FAMILIES[shape.family].ignored

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of all tensors, without the scales of int8."""
        return {key: tuple(self._slice(key).get_shape()) for key in self._paths if not self._is_scale(key)}

    @property
    def is_scaled(self) -> bool:
        return bool(self._scaled)

    @property
    def holds_drafting_layers(self) -> bool:
        """Whether the model has layers of its own for drafting (MTP)."""
        return any(map(self._drafts, self._paths))

    def _drafts(self, key: str) -> bool:
        """Return whether a tensor is of a layer for drafting, which the model does not use."""
        layer = _LAYER.match(key)
        return layer is not None and layer[0] + _MTP in self._paths

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Compare names, shapes and types of the tensors with the config's."""
        expected = self._stored(expected)
        if missing := [key for key in expected if key not in self._paths]:
            raise ModelError(
                f"{self.directory}: the weights lack {some(missing)}, which config.json asks for"
            )
        if unexpected := [
            key
            for key in self.shapes
            if key not in expected
            and not _is_ignorable(key, expected)
            and not key.endswith(self._ignored)
            and not self._drafts(key)
        ]:
            raise ModelError(f"{self.directory}: the weights hold {some(unexpected)}, unknown to config.json")
        for key, shape in expected.items():
            path = self._paths[key]
            stored = self._slice(key).get_shape()
            if tuple(stored) != shape:
                raise ModelError(f"{path}: {key} has shape {stored}; config.json asks for {list(shape)}")
            self.check_type(key)

    def _stored(self, ours: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        stored, stacks = dict[str, tuple[int, ...]](), dict[str, int]()
        for key, size in ours.items():
            place = self._places.get(key, TensorPlace(key))
            rows, held = place.start + size[0], stored.get(place.key)
            if held is not None:  # fused: the last of ours ends it
                rows = max(rows, held[-1] if place.transposed else held[0])
            stored[place.key] = (*size[:0:-1], rows) if place.transposed else (rows, *size[1:])
            if place.expert >= 0:
                stacks[place.key] = max(place.expert + 1, stacks.get(place.key, 0))
        return {key: (stacks[key], *size) if key in stacks else size for key, size in stored.items()}

    def check_type(self, key: str, kinds: Sequence[str] = FLOATS) -> None:
        """Check that the type of a tensor is among `kinds`, in safetensors' names.

        A matrix of int8 with valid scales passes as floating-point numbers.
        """
        path, stored = self._paths[key], self._slice(key)
        if key in self._scaled and kinds == FLOATS:
            self.check_type(key + SUFFIX)
            try:
                _check_scale(key, tuple(stored.get_shape()), self._scale(key))
            except ModelError as error:
                raise ModelError(f"{path}: {error}") from None
        elif (kind := stored.get_dtype()) == "I8" and kinds == FLOATS:
            raise ModelError(f"{path}: {key} is of type I8, but there is no {key}{SUFFIX} with its scales")
        elif kind not in kinds:
            raise ModelError(f"{path}: {key} is of type {kind}; supported are {', '.join(kinds)}")

    def check_memory(
        self, expected: Mapping[str, tuple[int, ...]], device: str | torch.device, dtype: torch.dtype
    ) -> None:
        """Check that such tensors fit a CPU's memory: a sparse file can claim any size."""
        needed = sum(map(math.prod, expected.values())) * dtype.itemsize
        available = psutil.virtual_memory().total
        if torch.device(device).type == "cpu" and needed > available:
            raise ModelError(
                f"{self.directory}: the weights take {needed / 1e9:.1f} GB in memory; this machine has "
                f"{available / 1e9:.1f} GB"
            )

    def take(
        self, key: str, device: torch.device, dtype: torch.dtype, part: TensorPart | None = None
    ) -> Tensor:
        """Return a copy of one tensor, or its `part` without what lies beyond the tensor's end.

        The embeddings may be memory that processes share: they are the file's own memory, mapped
        anew so that no other tensor of the file remains in memory, if a CPU uses them as stored in
        the cache folder: its files are never rewritten.
        """
        place = self._places.get(key, TensorPlace(key))
        whole = self._slice(place.key).get_shape()
        is_fused = 0 < place.rows < whole[0]
        if place.added:
            return (self._cut(place, part).to(device, torch.float32) + place.added).to(dtype)
        if part is not None or place.start or place.transposed or is_fused or place.expert >= 0:
            return self._cut(place, part).to(device, dtype, copy=True)
        path, is_embedding = self._paths[place.key], key == EMBEDDING
        tensor = (_open(path) if is_embedding else self._shards[path]).get_tensor(place.key)
        if place.key in self._scaled:
            return dequantised(tensor, self._scale(place.key)).to(device, dtype)
        return tensor.to(device, dtype, copy=not is_embedding or cache_folder() not in path.parents)

    def _cut(self, place: TensorPlace, part: TensorPart | None) -> Tensor:
        """Return our tensor, or a part of it, as stored, or in float32 if that is int8."""
        stored = self._slice(place.key)
        shape = stored.get_shape()[int(place.expert >= 0) :]
        size = place.rows or shape[0]
        first, last, other = 0, size, slice(None)
        if part is not None and part.dim == 0:
            first, last = min(part.start, size), min(part.stop, size)
        elif part is not None:
            width = shape[0 if place.transposed else 1]
            other = slice(min(part.start, width), min(part.stop, width))
        rows = slice(place.start + first, place.start + last)
        if len(shape) == 1:
            return stored[rows]
        cut = (other, rows) if place.transposed else (rows, other)
        if place.expert >= 0:
            return stored[(slice(place.expert, place.expert + 1), *cut)][0]
        tensor = stored[cut]
        if place.key in self._scaled:
            tensor = dequantised(tensor, self._slice(place.key + SUFFIX)[cut[0]])
        return tensor.t() if place.transposed else tensor

    def _scale(self, key: str) -> Tensor:
        return self._shards[self._paths[key + SUFFIX]].get_tensor(key + SUFFIX)

    def _slice(self, key: str) -> Any:
        return self._shards[self._paths[key]].get_slice(key)

    def _is_scale(self, key: str) -> bool:
        return key.endswith(SUFFIX) and key.removesuffix(SUFFIX) in self._scaled

    def _files(self) -> list[Path]:
        directory = self.directory
        index = directory / _INDEX
        if os.path.lexists(index):
            return [directory / name for name in _shards(index)]
        if (directory / "model.safetensors").is_file():
            return [directory / "model.safetensors"]
        if pickles := [path.name for pattern in PICKLES for path in sorted(directory.glob(pattern))]:
            raise ModelError(
                f"{directory / pickles[0]}: pickled weights can run code and are not read; convert them to safetensors "
                "(transformers: save_pretrained writes it)"
            )
        raise ModelError(f"{directory}: there is no model.safetensors and no {_INDEX}")


def _shards(index: Path) -> list[str]:
    raw = read_json(index, LONGEST_INDEX)
    names = raw.get("weight_map") if isinstance(raw, dict) else None
    shards = sorted({str(name) for name in names.values()}) if isinstance(names, dict) else []
    if len(shards) > MOST_SHARDS:
        raise ModelError(
            f"{index}: weight_map names {len(shards)} shards; there may be at most {MOST_SHARDS}"
        )
    if not shards or any(Path(name).name != name for name in shards):
        raise ModelError(f"{index}: weight_map must name the shards beside it")
    for name in shards:
        # os.path.isfile is False for a device and for an impossible name.
        if not os.path.isfile(index.with_name(name)):
            raise ModelError(f"{index.parent / plain_name(name)}: this shard is missing, {_INDEX} names it")
    return shards


def _open(path: Path) -> Any:
    try:
        if not path.is_file():
            raise ModelError(f"{path} is not a regular file; give a safetensors file")
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > LONGEST_INDEX:
            raise ModelError(
                f"{path} is not a complete safetensors file: its header has {header} bytes; the limit is {LONGEST_INDEX}"
            )
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as e:
        raise ModelError(f"{path} is not a complete safetensors file: {one_line(e)}") from None


def drafts_itself(directory: Path) -> bool:
    """Return whether a model's config declares layers for drafting, and its weights hold them."""
    return bool(unused_layers(directory)) and Checkpoint(directory).holds_drafting_layers


def _is_ignorable(key: str, expected: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether a tensor is unused: rotary frequencies, or a copy of a tied head."""
    return key.endswith("rotary_emb.inv_freq") or (key == "lm_head.weight" and key not in expected)


def some(keys: Sequence[str]) -> str:
    return ", ".join(map(plain_name, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def pack(tensors: Mapping[str, Tensor], keep: Collection[str] = ()) -> dict[str, Tensor]:
    """Return tensors to store: all matrices but those to `keep` as int8 with their scales."""
    packed = dict[str, torch.Tensor]()
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not tensor.is_floating_point() or name in keep:
            packed[name] = tensor
            continue
        packed[name], packed[name + SUFFIX] = quantised(tensor)
    return packed


def _check_scale(name: str, shape: tuple[int, ...], scale: Tensor) -> None:
    if len(shape) != 2 or scale.shape != shape[:1]:
        raise ModelError(
            f"{name}{SUFFIX} has shape {list(scale.shape)}; {name} of shape {list(shape)} needs one scale per row"
        )
    for i in (~(scale.isfinite() & (scale > 0))).nonzero()[:1, 0].tolist():
        raise ModelError(f"{name}{SUFFIX} is {scale[i]:g} in row {i}; it must be a finite number above 0")
