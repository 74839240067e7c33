"""Convert a GGUF file once to a model directory with safetensors, in the user's cache."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.engine.checkpoints.progress import Progress, Report
from specscope.engine.errors import ModelError, RunCancelled, one_line
from specscope.engine.files import cache_folder

if TYPE_CHECKING:
    from torch import Tensor

    from specscope.engine.checkpoints.gguf_file import GgufFile, TensorSource

MANIFEST = "conversion.json"
SHARD = 2 * 2**30
"""Most bytes of a shard, unless a single tensor is larger."""


def converted(file: Path, progress: Report | None = None, cancel: threading.Event | None = None) -> Path:
    """Return the model directory of a GGUF file, converted first if it is not in the cache."""
    if (folder := cached(file)) is None:
        folder = _folder(file)
        convert(file, folder, progress, cancel)
    return folder


def cached(file: Path) -> Path | None:
    folder = _folder(file)
    return folder if (folder / MANIFEST).is_file() else None


def convert(
    file: Path,
    folder: Path,
    progress: Report | None = None,
    cancel: threading.Event | None = None,
    name: str | None = None,
) -> None:
    """Write the model directory of a GGUF file, which reports call `name`, by default the file's.

    The conversion writes to another directory and renames it at the end, so `folder` is complete or
    absent. Setting `cancel` raises RunCancelled; a ModelError for a file that is broken or of an
    unsupported kind, or a full disk.
    """
    from specscope.engine.checkpoints.gguf_file import GgufFile  # imports torch, which takes seconds

    model = name or file.name

    def report(done: int, total: int) -> None:
        if cancel is not None and cancel.is_set():
            raise RunCancelled(f"the conversion of {model} was stopped")
        if progress is not None:
            progress(Progress(model, "model.safetensors", done, total, "Converting"))

    part = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        part.mkdir(parents=True)
        _write(GgufFile(file), part, report)
        try:
            part.rename(folder)
        except OSError:  # another process was faster; its result is the same
            if not (folder / MANIFEST).is_file():
                raise
    except OSError as error:
        raise ModelError(
            f"{file} cannot be converted in {folder.parent}: {error.strerror or error}"
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _folder(file: Path) -> Path:
    """Return the directory of a file's conversion, by the file's path, size and time."""
    try:
        status = file.stat()
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{file} is not a regular file; give a .gguf file")
    facts = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    key = hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return cache_folder() / "gguf" / f"{file.stem[:80]}-{key}"


def _write(source: GgufFile, folder: Path, report: Callable[[int, int], None]) -> None:
    """Write tokenizer, config, weights and manifest; `report` takes bytes done and in all."""
    size, free = source.size, shutil.disk_usage(folder).free
    if size > free:
        raise ModelError(
            f"{source.path}: its weights need {_mib(size)} as safetensors, {folder.parent} has {_mib(free)} free; "
            "free some space, or set SPECSCOPE_CACHE to another folder"
        )
    report(0, size)
    config = _write_config(source, folder)
    _write_weights(source.sources(config), folder, lambda done: report(done, size))
    manifest = {
        "source": source.path.name,
        "source_bytes": source.path.stat().st_size,
        "source_sha256": sha256_of(source.path),
        "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _write_config(source: GgufFile, folder: Path) -> Any:
    from transformers import AutoConfig, AutoTokenizer

    from specscope.engine.checkpoints.gguf_file import ARCHITECTURES

    parent, options = source.path.parent, {"gguf_file": source.path.name, "local_files_only": True}
    try:
        config: Any = AutoConfig.from_pretrained(parent, **options)
        tokenizer = AutoTokenizer.from_pretrained(parent, **options, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - transformers raises many kinds
        raise ModelError(
            f"{source.path}: its config or tokenizer cannot be read: {one_line(error)}"
        ) from None
    config.update(source.sizes)
    config.architectures = [ARCHITECTURES[source.architecture]]
    config.rope_parameters = {**config.rope_parameters, **source.rope_parameters(config)}
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _drop_extra_tokens(folder / "tokenizer.json", config.vocab_size)
    return config


def _drop_extra_tokens(path: Path, vocab_size: int) -> None:
    """Remove from a tokenizer.json tokens that transformers adds beyond the vocabulary."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens"] = [token for token in content["added_tokens"] if token["id"] < vocab_size]
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _write_weights(sources: dict[str, TensorSource], folder: Path, report: Callable[[int], None]) -> None:
    """Write all tensors in shards, with one shard in memory; `report` takes the bytes done."""
    from safetensors.torch import save_file

    shard: dict[str, Tensor] = {}
    index: dict[str, str] = {}
    done = shard_size = 0

    def flush() -> None:
        name = f"model-{len(set(index.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, name))
        shard.clear()

    for name, source in sources.items():
        if shard and shard_size + source.size > SHARD:
            flush()
            shard_size = 0
        shard[name] = source.read()
        shard_size += source.size
        done += source.size
        report(done)
    flush()
    content = {"metadata": {"total_size": done}, "weight_map": index}
    text = json.dumps(content, indent=1) + "\n"
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
