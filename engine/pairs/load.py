"""Load a decoder from safetensors: a local directory or a hub id. Nothing else is read, remote code is never run."""

from __future__ import annotations

import math
import os
import reprlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError, UsageError, one_line, plain_name
from engine.files import parse_json, read_bytes
from engine.model.decoder import Decoder
from engine.model.fields import READ, check_fields
from engine.model.shape import FAMILIES, ModelShape
from engine.model.stage import layer_stages
from engine.pairs.sources import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FLOATS = ("F64", "F32", "F16", "BF16")
_INDEX = "model.safetensors.index.json"
MOST_SHARDS = 1000
LONGEST_CONFIG = 1 << 20
"""Bytes of a config.json."""
LONGEST_INDEX = 1 << 24
"""Bytes of an index, and of the header of a safetensors file."""
_LLAMA = {
    "vocab_size": int,
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "num_key_value_heads": int,
    "head_dim": int,
    "max_position_embeddings": int,
    "rms_norm_eps": float,
    "hidden_act": str,
    "attention_bias": bool,
    "mlp_bias": bool,
    "tie_word_embeddings": bool,
}
"""What a Llama config says, besides its rotation."""
_TYPES = dict(zip(FAMILIES, ("llama", "mistral", "qwen2", "qwen3"), strict=True))
"""The `model_type` of each architecture."""


def load(
    model: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    name: str = "target",
    stage: tuple[int, int] = (0, 1),
) -> Decoder:
    """Return the decoder of a model directory or hub id.

    Weights are read tensor by tensor, so that at most one layer is in memory twice. Of a model that is split by its layers
    only those of one stage are read; `stage` says which of how many.

    Raises:
        ModelError: The directory, its config or its weights are missing, broken or of an unsupported kind.
        UsageError: The model has fewer layers than there are stages.
    """
    directory = resolve(model)
    shape = ModelShape.of(read_config(directory), directory / "config.json")
    checkpoint = Checkpoint(directory)
    checkpoint.check(shape.tensors())
    checkpoint.check_memory(shape.tensors(), device, dtype)
    span = layer_stages(shape.layers, stage[1])[stage[0]]
    return Decoder(shape, lambda key: checkpoint.take(key, torch.device(device), dtype), name, span)


def read_config(directory: Path) -> Any:
    """Return the transformers config of a model directory.

    Raises:
        ModelError: It is missing, not JSON, or of an unsupported architecture.
    """
    path = directory / "config.json"
    raw = read_json(path)
    families = raw.get("architectures") if isinstance(raw, dict) else None
    family = families[0] if isinstance(families, list) and families else None
    if family not in FAMILIES:
        raise ModelError(
            f"{path}: architecture {reprlib.repr(family)} is not supported; supported are {', '.join(FAMILIES)}"
        )
    check_fields(raw, path)
    kind = _TYPES[family]
    if raw.get("model_type", kind) != kind:
        raise ModelError(
            f"{path}: model_type is {reprlib.repr(raw['model_type'])}; it must be {kind!r} for {family}"
        )
    fields = {name: raw[name] for name in READ if name in raw}
    if _says_all(raw):
        return SimpleNamespace(**fields)
    from transformers import AutoConfig  # takes a second, in every worker

    try:
        return AutoConfig.for_model(kind, **{name: fields[name] for name in fields if name != "model_type"})
    except Exception as e:  # noqa: BLE001 - whatever transformers finds wrong with it
        raise ModelError(f"{path}: {one_line(e)}") from None


def _says_all(raw: Mapping[str, Any]) -> bool:
    """Return whether a Llama config leaves nothing to the defaults and old spellings that transformers knows.

    Then it is taken as it stands: only importing transformers' class for it takes a second, in every process.
    """
    if raw["architectures"] != ["LlamaForCausalLM"] or raw.get("model_type") != "llama":
        return False
    given = "eos_token_id" in raw and all(type(raw.get(key)) is kind for key, kind in _LLAMA.items())
    rope: Any = raw.get("rope_parameters")
    plain = isinstance(rope, dict) and rope.keys() == {"rope_type", "rope_theta"}
    return given and plain and rope["rope_type"] == "default" and type(rope["rope_theta"]) is float


def read_object(path: Path, limit: int = LONGEST_CONFIG) -> dict[str, Any]:
    """Return what a JSON file of at most `limit` bytes says; nothing when there is none.

    Raises:
        ModelError: It is not a JSON object.
    """
    raw = read_json(path, limit) if os.path.lexists(path) else {}
    if not isinstance(raw, dict):
        raise ModelError(f"{path} is not a JSON object")
    return raw


class Checkpoint:
    """The safetensors files of a directory, one or several shards.

    Args:
        directory: Where they lie.
        files: Those to read; left out, a model's.

    Raises:
        ModelError: A file is missing or broken, or there are only pickled weights.
    """

    def __init__(self, directory: Path, files: Sequence[Path] = ()) -> None:
        self.directory = directory
        self._shards = {path: _open(path) for path in files or self._files()}
        self._where = {key: path for path, shard in self._shards.items() for key in shard.keys()}  # noqa: SIM118

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """All tensors' shapes, by name."""
        return {
            key: tuple(self._shards[path].get_slice(key).get_shape()) for key, path in self._where.items()
        }

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Compare names, shapes and types of the tensors with what the config asks for.

        Raises:
            ModelError: They differ.
        """
        if missing := [key for key in expected if key not in self._where]:
            raise ModelError(
                f"{self.directory}: the weights lack {some(missing)}, which config.json asks for"
            )
        if unexpected := [
            key for key in self._where if key not in expected and not _is_ignorable(key, expected)
        ]:
            raise ModelError(f"{self.directory}: the weights hold {some(unexpected)}, unknown to config.json")
        for key, shape in expected.items():
            path = self._where[key]
            held = self._shards[path].get_slice(key)
            if tuple(held.get_shape()) != shape:
                raise ModelError(
                    f"{path}: {key} has shape {held.get_shape()}; config.json asks for {list(shape)}"
                )
            self.check_type(key)

    def check_type(self, key: str, kinds: Sequence[str] = FLOATS) -> None:
        """Check that a tensor is of one of some types, safetensors' names for them.

        Raises:
            ModelError: It is not.
        """
        path = self._where[key]
        if (kind := self._shards[path].get_slice(key).get_dtype()) not in kinds:
            raise ModelError(f"{path}: {key} is of type {kind}; supported are {', '.join(kinds)}")

    def check_memory(
        self, expected: Mapping[str, tuple[int, ...]], device: str | torch.device, dtype: torch.dtype
    ) -> None:
        """Check that tensors of these shapes fit this machine's memory at all.

        Raises:
            ModelError: They do not, as in a file that is mostly holes.
        """
        needed, there = sum(map(math.prod, expected.values())) * dtype.itemsize, psutil.virtual_memory().total
        if torch.device(device).type == "cpu" and needed > there:
            raise ModelError(
                f"{self.directory}: the weights take {needed / 1e9:.1f} GB in memory; this machine has {there / 1e9:.1f} GB"
            )

    def take(self, key: str, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return one tensor, copied out of its file."""
        return self._shards[self._where[key]].get_tensor(key).to(device, dtype, copy=True)

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
    """Return the names of the shards that an index names, each a file beside it."""
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
        # os.path.isfile says no to a device, and to a name that no file can have.
        if not os.path.isfile(index.with_name(name)):
            raise ModelError(f"{index.parent / plain_name(name)}: this shard is missing, {_INDEX} names it")
    return shards


def _open(path: Path) -> Any:
    """Return an open safetensors file; its size and its header's are checked before the library reads them."""
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


def read_json(path: Path, limit: int = LONGEST_CONFIG) -> Any:
    """Return what a JSON file of at most `limit` bytes holds.

    Raises:
        ModelError: It is missing, too large, no regular file or no JSON.
    """
    if not os.path.lexists(path):
        raise ModelError(f"{path} is missing; a model directory holds config.json and *.safetensors")
    try:
        return parse_json(read_bytes(path, limit).decode("utf-8"))
    except UsageError as e:
        raise ModelError(str(e)) from None
    except ValueError as e:
        raise ModelError(f"{path} is not valid JSON: {one_line(e)}") from None


def _is_ignorable(key: str, expected: Mapping[str, tuple[int, ...]]) -> bool:
    """Old checkpoints hold rotary frequencies, and some tied ones the head a second time."""
    return key.endswith("rotary_emb.inv_freq") or (key == "lm_head.weight" and key not in expected)


def some(keys: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return ", ".join(map(plain_name, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
