"""Read a GGUF file: architecture, rotary scaling, and tensors as in a transformers checkpoint.

The packages `gguf` and transformers parse the format, its block types and its tokenizer.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from specscope.engine.errors import ModelError, one_line, plain_name, shown
from specscope.engine.model.families import FAMILIES, WAY_OUT, kind_of
from specscope.engine.model.shape import ModelShape

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
"""Architecture in GGUF -> architecture in transformers. Mistral models are `llama` files."""
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}
"""Block types that keep their dtype; all others become float32."""
LLAMA3 = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))
"""Published llama3 rotations: factor, low and high frequency factor, original context."""
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Versions with this header; `gguf` refuses others."""
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 8


class TensorSource(NamedTuple):
    """A tensor of `gguf.GGUFReader`, from which a checkpoint tensor is made."""

    tensor: Any
    permuted_heads: int
    """Heads whose rows llama.cpp has permuted."""
    expert: int = -1
    """Number of the matrix among those of a tensor, (E, rows, columns); -1 for a tensor."""

    @property
    def shape(self) -> list[int]:
        return [int(n) for n in reversed(self.tensor.shape)][int(self.expert >= 0) :]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * (2 if self.tensor.tensor_type.name in PLAIN else 4)

    def read(self) -> Tensor:
        data = self.tensor.data if self.expert < 0 else self.tensor.data[self.expert]
        weights = torch.from_numpy(_dequantized(data, self.tensor.tensor_type).copy())
        if heads := self.permuted_heads:
            # llama.cpp interleaves the rows (i, i + d/2) of a head; a checkpoint has two halves.
            rows = weights.shape[0] // heads // 2
            weights = weights.view(heads, rows, 2, *weights.shape[1:]).transpose(1, 2).reshape(weights.shape)
        return weights.to(PLAIN.get(self.tensor.tensor_type.name, torch.float32)).contiguous()


class GgufFile:
    """A GGUF file of a supported architecture with supported block types."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.path = path
        try:
            _check_counts(path)
            self._reader = GGUFReader(path)
        except ModelError:
            raise
        except Exception as error:  # noqa: BLE001 - numpy raises many kinds for a truncated file
            raise ModelError(f"{path} is not a complete GGUF file: {one_line(error)}") from None
        self.architecture = self._value("general.architecture")
        if not isinstance(self.architecture, str) or self.architecture not in ARCHITECTURES:
            raise ModelError(
                f"{path}: architecture {shown(self.architecture)} is not supported{kind_of(str(self.architecture))}; "
                f"supported are {', '.join(ARCHITECTURES)}; {WAY_OUT}"
            )
        family = FAMILIES[ARCHITECTURES[self.architecture]]
        if (experts := self._value(f"{self.architecture}.expert_count")) and not family.mixture:
            raise ModelError(
                f"{path} is a mixture of {shown(experts)} experts of the architecture {self.architecture}; of such files those "
                "of qwen3moe are read, and the same model as safetensors (docs/models.md)"
            )
        for tensor in self._reader.tensors:
            if tensor.tensor_type.name not in KINDS:
                raise ModelError(
                    f"{path}: {plain_name(tensor.name)} is of type {tensor.tensor_type.name}; supported are {', '.join(KINDS)}"
                )

    @property
    def size(self) -> int:
        return sum(TensorSource(tensor, 0).size for tensor in self._reader.tensors)

    @property
    def sizes(self) -> dict[str, int]:
        """Fields of the config that transformers does not read from every file."""
        keys = {"head_dim": "attention.key_length", "moe_intermediate_size": "expert_feed_forward_length"}
        sizes = dict[str, int]()
        for field, key in keys.items():
            value = self._value(f"{self.architecture}.{key}")
            if value and not isinstance(value, int):
                raise ModelError(f"{self.path}: {key} is {shown(value)}; it must be a whole number")
            sizes |= {field: value} if value else {}
        return sizes

    def sources(self, config: Any) -> dict[str, TensorSource]:
        """Return checkpoint tensor name -> tensor of the file, of the config's shape."""
        tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        gguf_name = _gguf_names(config.num_hidden_layers)
        heads: dict[str, int] = {}
        if self.architecture == "llama":
            heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        sources, shape = dict[str, TensorSource](), ModelShape.of(config, self.path)
        places = shape.places(["model."])
        for ours, size in shape.tensors().items():
            name = places[ours].key
            module, _, kind = name.rpartition(".")
            number = _EXPERT.search(module)
            stored = f"{gguf_name(_EXPERT.sub('.experts.', module))}.{kind}"
            if stored not in tensors:
                raise ModelError(f"{self.path} lacks the tensor {stored}")
            expert = int(number[1]) if number else -1
            source = TensorSource(tensors[stored], heads.get(module.rpartition(".")[2], 0), expert)
            whole = TensorSource(tensors[stored], 0).shape
            if source.shape != [*size] or (number and expert >= whole[0]):
                asked = [config.num_experts, *size] if number else [*size]
                raise ModelError(f"{self.path}: {stored} has shape {whole}; its metadata asks for {asked}")
            sources[name] = source
        return sources

    def rope_parameters(self, config: Any) -> dict[str, Any]:
        """Return the file's rotary scaling, which transformers does not read."""
        prefix = f"{self.architecture}.rope."
        kind = self._value(prefix + "scaling.type") or "none"
        factor = self._value(prefix + "scaling.factor") or 1.0
        table = next((t for t in self._reader.tensors if t.name == "rope_freqs.weight"), None)
        if table is not None:
            return self._llama3(_dequantized(table.data, table.tensor_type).tolist(), config)
        if kind == "linear":
            return {"rope_type": "linear", "factor": float(factor)}
        if kind == "yarn":
            original = self._value(prefix + "scaling.original_context_length")
            return {
                "rope_type": "yarn",
                "factor": float(factor),
                "original_max_position_embeddings": int(original or config.max_position_embeddings),
            }
        if kind != "none":
            raise ModelError(
                f"{self.path}: rope scaling {shown(kind)} is not supported; supported are linear, yarn, llama3"
            )
        return {}

    def _llama3(self, divisors: list[float], config: Any) -> dict[str, Any]:
        """Return the published llama3 rotation with these frequency divisors."""
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        theta, dim = config.rope_parameters["rope_theta"], 2 * len(divisors)
        expected = torch.tensor([theta ** (-2 * i / dim) / f for i, f in enumerate(divisors)])
        for factor, low, high, original in LLAMA3:
            parameters = {
                "rope_type": "llama3",
                "rope_theta": theta,
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
            candidate = type(config)(**{**config.to_dict(), "rope_parameters": parameters})
            frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](candidate, torch.device("cpu"))
            if torch.allclose(frequencies, expected, rtol=1e-3):
                return parameters
        raise ModelError(f"{self.path}: its table of rotary frequencies is none of the published llama3 ones")

    def _value(self, key: str) -> Any:
        field = self._reader.get_field(key)
        return None if field is None else field.contents()


def _gguf_names(layers: int) -> Callable[[str], str | None]:
    from gguf import MODEL_ARCH, get_tensor_name_map

    llama = get_tensor_name_map(MODEL_ARCH.LLAMA, layers)
    qwen3 = get_tensor_name_map(MODEL_ARCH.QWEN3MOE, layers)  # has the norms of queries and keys
    return lambda name: llama.get_name(name) or qwen3.get_name(name)


def _dequantized(data: Any, kind: Any) -> np.ndarray[Any, Any]:
    from gguf import dequantize

    return dequantize(data, kind)


def _check_counts(path: Path) -> None:
    """Check that no count of a little-endian file claims more than the bytes that follow it.

    The package `gguf` believes counts: an array of 2^30 values in a 5 KB file takes memory without
    end.
    A file of another format passes: its reader refuses it.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < len(MAGIC) or file.read(len(MAGIC)) != MAGIC:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Counts(path, data).check()


class _Counts:
    """Reads a file's header from its start."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, len(MAGIC)

    def check(self) -> None:
        version = self._number("<I")
        if not version & 0xFFFF:  # the other byte order
            raise ModelError(f"{self._path} is a big-endian GGUF file; only little-endian ones are read")
        if version not in VERSIONS:
            return
        tensors, keys = self._number("<Q"), self._number("<Q")
        self._fits(tensors, 24)
        self._fits(keys, 13)
        for _ in range(keys):
            self._string()
            self._value(self._number("<I"))
        for _ in range(tensors):
            self._string()
            dimensions = self._number("<I")
            if dimensions > _MOST_DIMENSIONS:
                raise self._error(f"a tensor of {dimensions:,} dimensions")
            self._skip(8 * dimensions + 12)

    def _value(self, kind: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            self._array()
        elif kind in _SIZES:
            self._skip(_SIZES[kind])
        else:
            raise self._error(f"a value of the unknown type {kind}")

    def _array(self) -> None:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            self._fits(count, 8)
            for _ in range(count):
                self._string()
        elif kind in _SIZES:
            self._skip(self._fits(count, _SIZES[kind]))
        else:
            raise self._error(f"an array of the type {kind}")

    def _string(self) -> None:
        self._skip(self._number("<Q"))

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        self._fits(1, size)
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return number

    def _skip(self, count: int) -> None:
        self._at += self._fits(count, 1)

    def _fits(self, count: int, size: int) -> int:
        """Return the bytes of `count` things of at least `size` bytes."""
        left = len(self._data) - self._at
        if count * size > left:
            raise self._error(f"{count:,} values or characters where {left:,} bytes are left")
        return count * size

    def _error(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is not a complete GGUF file: it claims {what}")
