"""GGUF files: dequantise one once, keep the result as safetensors in the user's cache, load that.

Reading the format, its block types and its tokenizer is the work of `gguf` and of transformers; this module decides
what is accepted, undoes llama.cpp's order of query and key rows, and writes the model directory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from engine.errors import ModelError, one_line
from engine.pairs.cached import cache_folder

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""GGUF's name of an architecture -> ours. Files of Mistral models name llama."""
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""Block types that are dequantised."""
PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}
"""Block types that keep their width; all others become float32."""
MANIFEST = "conversion.json"
SHARD = 2 * 2**30
"""Bytes of a shard at most, if no single tensor is larger."""
LLAMA3 = ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192))
"""Published llama3 rotations (factor, low and high frequency factor, original context) that a file's table may equal."""

Progress = Callable[[int, int], None]
"""Takes the bytes written so far and in all. An exception that it raises ends the work."""


def converted(file: Path, progress: Progress | None = None) -> Path:
    """Return the model directory of a GGUF file; convert the file if the cache does not have it.

    The directory appears whole or not at all: everything is written beside it and renamed at the end.

    Args:
        file: The .gguf file.
        progress: Takes bytes written and bytes in all.

    Raises:
        ModelError: The file is broken or of an unsupported kind, or the disk has no room for the conversion.
    """
    if (folder := cached(file)) is None:
        folder = _folder(file)
        convert(file, folder, progress)
    return folder


def cached(file: Path) -> Path | None:
    """Return the model directory of a GGUF file that was converted; None before.

    Raises:
        ModelError: The file cannot be read.
    """
    folder = _folder(file)
    return folder if (folder / MANIFEST).is_file() else None


def convert(file: Path, folder: Path, progress: Progress | None = None) -> None:
    """Write the model directory of a GGUF file; arguments and errors as for `converted`."""
    part = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        part.mkdir(parents=True)
        _Conversion(file, part, progress or _ignore).write()
        try:
            part.rename(folder)
        except OSError:  # another process was faster: its result is the same
            if not (folder / MANIFEST).is_file():
                raise
    except OSError as error:
        raise ModelError(
            f"{file} cannot be converted in {folder.parent}: {error.strerror or error}"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def size_of(file: Path) -> tuple[int, int]:
    """Return the bytes of a GGUF file and of its weights once converted.

    Raises:
        ModelError: The file is broken or of an unsupported kind.
    """
    return file.stat().st_size, sum(_bytes_of(tensor) for tensor in _read(file).tensors)


def _ignore(done: int, total: int) -> None:
    del done, total


def _folder(file: Path) -> Path:
    """Return where a file's conversion is kept: another path, size or time makes another folder."""
    try:
        status = file.stat()
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{file} is not a regular file; give a .gguf file")
    facts = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    key = hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return cache_folder() / "gguf" / f"{file.stem[:80]}-{key}"


class _Conversion:
    """One file on its way into a directory."""

    def __init__(self, file: Path, folder: Path, progress: Progress) -> None:
        self.file, self.folder, self.progress = file, folder, progress
        self.reader = _read(file)
        self.total = sum(_bytes_of(tensor) for tensor in self.reader.tensors)
        self.done = 0

    def write(self) -> None:
        """Write tokenizer, config, weights and the manifest."""
        free = shutil.disk_usage(self.folder).free
        if self.total > free:
            raise ModelError(
                f"{self.file}: its weights need {_mib(self.total)} as safetensors, {self.folder.parent} has {_mib(free)} free; "
                "free some space, or set SPECSCOPE_CACHE to another folder"
            )
        self.progress(0, self.total)
        config = self._write_config()
        self._write_weights(self._sources(config))
        manifest = {
            "source": self.file.name,
            "source_bytes": self.file.stat().st_size,
            "source_sha256": _sha256(self.file),
            "files": {path.name: _sha256(path) for path in sorted(self.folder.iterdir())},
        }
        (self.folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

    def _sources(self, config: Any) -> dict[str, tuple[Any, int]]:
        """Map each tensor name of our checkpoint to the file's tensor and its permuted heads, 0 for none.

        Raises:
            ModelError: A tensor is missing or has another shape than the metadata asks for.
        """
        from engine.model.shape import ModelShape

        held = {tensor.name: tensor for tensor in self.reader.tensors}
        names = _names(config.num_hidden_layers)
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        permuted = _architecture(self.reader, self.file) == "llama"
        sources: dict[str, tuple[Any, int]] = {}
        for ours, shape in ModelShape.of(config, self.file).tensors().items():
            base, _, kind = ours.rpartition(".")
            theirs = f"{names(base)}.{kind}"
            if theirs not in held:
                raise ModelError(f"{self.file} lacks the tensor {theirs}")
            if (given := [int(n) for n in reversed(held[theirs].shape)]) != [*shape]:
                raise ModelError(f"{self.file}: {theirs} has shape {given}; its metadata asks for {[*shape]}")
            part = base.rpartition(".")[2]
            sources[ours] = held[theirs], heads.get(part, 0) if permuted else 0
        return sources

    def _write_config(self) -> Any:
        """Write config and tokenizer as transformers reads them from the file; return the config."""
        from transformers import AutoConfig, AutoTokenizer

        try:
            config = AutoConfig.from_pretrained(
                self.file.parent, gguf_file=self.file.name, local_files_only=True
            )
            tokenizer = AutoTokenizer.from_pretrained(
                self.file.parent, gguf_file=self.file.name, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # noqa: BLE001 - whatever transformers finds wrong with it
            raise ModelError(
                f"{self.file}: its config or tokenizer cannot be read: {one_line(error)}"
            ) from None
        if head_dim := _value(self.reader, f"{_architecture(self.reader, self.file)}.attention.key_length"):
            config.head_dim = int(head_dim)  # transformers reads no Qwen3 file's
        config.architectures = [ARCHITECTURES[_architecture(self.reader, self.file)]]
        config.rope_parameters = {**config.rope_parameters, **self._rope(config)}
        config.save_pretrained(self.folder)
        tokenizer.save_pretrained(self.folder)
        _keep_tokens(self.folder / "tokenizer.json", config.vocab_size)
        return config

    def _rope(self, config: Any) -> dict[str, Any]:
        """Return how the file scales its rotation, in the config's words; transformers leaves this out.

        Raises:
            ModelError: The scaling is of a kind that no config describes.
        """
        prefix = f"{_architecture(self.reader, self.file)}.rope."
        kind = _value(self.reader, prefix + "scaling.type") or "none"
        factor = _value(self.reader, prefix + "scaling.factor") or 1.0
        table = next((t for t in self.reader.tensors if t.name == "rope_freqs.weight"), None)
        if table is not None:
            return _llama3(_dequantized(table).tolist(), config, self.file)
        if kind == "linear":
            return {"rope_type": "linear", "factor": float(factor)}
        if kind == "yarn":
            original = _value(self.reader, prefix + "scaling.original_context_length")
            return {
                "rope_type": "yarn",
                "factor": float(factor),
                "original_max_position_embeddings": int(original or config.max_position_embeddings),
            }
        if kind != "none":
            raise ModelError(
                f"{self.file}: rope scaling {kind} is not supported; supported are linear, yarn, llama3"
            )
        return {}

    def _write_weights(self, sources: dict[str, tuple[Any, int]]) -> None:
        """Write all tensors in shards, holding one shard in memory."""
        shard: dict[str, Tensor] = {}
        index: dict[str, str] = {}
        held = 0

        def flush() -> None:
            name = f"model-{len(set(index.values())) + 1:05d}.safetensors"
            save_file(shard, self.folder / name, metadata={"format": "pt"})
            index.update(dict.fromkeys(shard, name))
            shard.clear()

        for ours, (tensor, heads) in sources.items():
            size = _bytes_of(tensor)
            if shard and held + size > SHARD:
                flush()
                held = 0
            shard[ours] = _weights(tensor, heads)
            held += size
            self.done += size
            self.progress(self.done, self.total)
        flush()
        content = {"metadata": {"total_size": self.total}, "weight_map": index}
        text = json.dumps(content, indent=1) + "\n"
        (self.folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _keep_tokens(path: Path, vocabulary: int) -> None:
    """Drop from a tokenizer.json what transformers adds beyond the file's vocabulary, such as GPT-2's end of text."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocabulary]
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _read(file: Path) -> Any:
    """Return the reader of a file whose architecture and block types are supported.

    Raises:
        ModelError: The file is truncated, no GGUF, or of an unsupported kind.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
    except Exception as error:  # noqa: BLE001 - numpy's errors on a truncated file are of many kinds
        raise ModelError(f"{file} is not a complete GGUF file: {one_line(error)}") from None
    _architecture(reader, file)
    for tensor in reader.tensors:
        if tensor.tensor_type.name not in KINDS:
            raise ModelError(
                f"{file}: {tensor.name} is of type {tensor.tensor_type.name}; supported are {', '.join(KINDS)}"
            )
    return reader


def _architecture(reader: Any, file: Path) -> str:
    name = _value(reader, "general.architecture")
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{file}: architecture {name} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    return name


def _value(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _names(layers: int) -> Callable[[str], str | None]:
    """Return the function from a module's name in our checkpoint to its name in the file."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    llama = get_tensor_name_map(MODEL_ARCH.LLAMA, layers)
    qwen3 = get_tensor_name_map(MODEL_ARCH.QWEN3, layers)  # has the norms of queries and keys
    return lambda name: llama.get_name(name) or qwen3.get_name(name)


def _weights(tensor: Any, heads: int) -> Tensor:
    """Return a tensor as the checkpoint holds it; `heads` of a permuted matrix is its number of heads, else 0."""
    weights = torch.from_numpy(_dequantized(tensor).copy())
    if heads:
        # llama.cpp stores each head's rows as pairs (i, i + d/2), interleaved; here they lie in two halves.
        rows = weights.shape[0] // heads // 2
        weights = weights.view(heads, rows, 2, *weights.shape[1:]).transpose(1, 2).reshape(weights.shape)
    return weights.to(PLAIN.get(tensor.tensor_type.name, torch.float32)).contiguous()


def _dequantized(tensor: Any) -> np.ndarray[Any, Any]:
    from gguf import dequantize

    return dequantize(tensor.data, tensor.tensor_type)


def _bytes_of(tensor: Any) -> int:
    return int(tensor.n_elements) * (2 if tensor.tensor_type.name in PLAIN else 4)


def _llama3(table: list[float], config: Any, file: Path) -> dict[str, Any]:
    """Return the llama3 rotation whose table of divisors a file holds.

    Raises:
        ModelError: The table is none of the published ones.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    plain, dim = config.rope_parameters["rope_theta"], 2 * len(table)
    wanted = torch.tensor([plain ** (-2 * i / dim) / f for i, f in enumerate(table)])
    for factor, low, high, original in LLAMA3:
        given = {
            "rope_type": "llama3",
            "rope_theta": plain,
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }
        trial = type(config)(**{**config.to_dict(), "rope_parameters": given})
        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](trial, torch.device("cpu"))
        if torch.allclose(frequencies, wanted, rtol=1e-3):
            return given
    raise ModelError(f"{file}: its table of rotary frequencies is none of the published llama3 ones")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
