"""Read and write drafting heads: SpecScope's own form (`engine.heads.form`), and published ones (`engine.heads.official`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine.errors import ModelError, UsageError
from engine.heads.form import KINDS, LAYER, LAYERED, HeadConfig
from engine.heads.official import Published, Shapes, is_needless, recognise
from engine.model.load import read_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

VERSION = 1
_PICKLES = (".pt", ".bin", ".pth", ".ckpt")


class Head(NamedTuple):
    """A drafting head, read."""

    config: HeadConfig
    tensors: dict[str, Tensor]
    """Named as in `HeadConfig.tensors`."""


def read_head(
    path: Path,
    target: Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Head:
    """Read a head of SpecScope's own form or a published one; whole, or not at all.

    Args:
        path: Its directory.
        target: Directory of the target it is to serve; where given, the head must be of that target.
        device: Where the tensors go.
        dtype: What they are turned into.

    Raises:
        ModelError: It is missing, broken, pickled, or of a kind that is unknown or cannot be run.
        UsageError: It is of another target: hidden size, vocabulary or tokenizer differ.
    """
    raw, where = _read_config(path), _find_tensors(path)
    shapes = {name: shape for name, (_, shape) in where.items()}
    found = _own(path, raw, shapes) if "specscope_head" in raw else recognise(path, raw, shapes)
    _check_tensors(path, found, shapes, published="specscope_head" not in raw)
    if target is not None:
        check_target(path, found.config, target)
    tensors = dict[str, torch.Tensor]()
    for name in found.config.tensors():
        key = found.names[name]
        with safe_open(where[key][0], "pt") as file:
            tensors[name] = file.get_tensor(key).to(device, dtype, copy=True)
    return Head(found.config, tensors)


def write_head(folder: Path, config: HeadConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a head: its config, and its tensors in bf16; the tensors come last and whole."""
    content = {"specscope_head": VERSION} | dataclasses.asdict(config)
    (folder / "config.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part = folder / "model.safetensors.part"
    save_file({name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in tensors.items()}, part)
    os.replace(part, folder / "model.safetensors")


def check_target(path: Path, config: HeadConfig, target: Path) -> None:
    """Check that a head serves a target.

    Raises:
        UsageError: It does not; both values are named.
    """
    theirs, digest = read_config(target), tokenizer_digest(target)
    pairs: list[tuple[str, object, object]] = [("hidden_size", config.hidden_size, theirs.hidden_size)]
    if config.vocab_size:
        pairs.append(("vocab_size", config.vocab_size, theirs.vocab_size))
    if config.tokenizer and digest:
        pairs.append(("tokenizer", config.tokenizer[:12], digest[:12]))
    for name, mine, its in pairs:
        if mine != its:
            raise UsageError(
                f"{path} is a head for another target: its {name} is {mine}, that of {target} is {its}; "
                "use a head that was trained for this target"
            )


def tokenizer_digest(target: Path) -> str | None:
    """Return the SHA-256 of a target's tokenizer.json; None where it has none."""
    path = target / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def layer_shape(config: Any) -> dict[str, Any]:
    """Return the sizes of one decoder layer of a transformers config."""
    return {name: getattr(config, name) for name in LAYER}


def _read_config(path: Path) -> dict[str, Any]:
    """Return a head's config.json; empty where there is none, as beside some published heads."""
    if not path.is_dir():
        raise ModelError(
            f"{path} is no directory; give the one that holds a head's config.json and *.safetensors"
        )
    file = path / "config.json"
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{file} is not a JSON object ({error})") from None


def _find_tensors(path: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Return the file and the shape of every tensor: in model.safetensors, or else in all *.safetensors there are."""
    whole = path / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        pickled = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
        if not pickled:
            raise ModelError(f"{path} holds no *.safetensors")
        raise ModelError(
            f"{path / pickled[0]}: pickled weights can run code and are not read; convert them to safetensors: "
            "torch.load(FILE, weights_only=True), then safetensors.torch.save_file(tensors, 'model.safetensors')"
        )
    found = dict[str, tuple[Path, tuple[int, ...]]]()
    for file in files:
        try:
            with safe_open(file, "pt") as shard:
                found |= {name: (file, tuple(shard.get_slice(name).get_shape())) for name in shard.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} is not a complete safetensors file ({error})") from None
    return found


def _own(path: Path, raw: dict[str, Any], shapes: Shapes) -> Published:
    """Return what a head of SpecScope's own form says it is."""
    file, version = path / "config.json", raw["specscope_head"]
    if version != VERSION:
        raise ModelError(f"{file}: specscope_head is {version!r}; this version reads {VERSION}")
    fields = {field.name for field in dataclasses.fields(HeadConfig)}
    try:
        given: dict[str, Any] = {name: value for name, value in raw.items() if name in fields}
        given["features"] = tuple(given.get("features", (-1,)))
        config = HeadConfig(**given)
        expected = config.tensors() if config.kind in KINDS else {}
    except (TypeError, KeyError) as error:
        raise ModelError(f"{file} is no head's config ({error})") from None
    if config.kind not in KINDS:
        raise ModelError(f"{file}: kind is {config.kind!r}; it must be one of {', '.join(KINDS)}")
    if config.kind in LAYERED and (lacking := [name for name in LAYER if name not in config.shape]):
        raise ModelError(f"{file}: shape lacks {', '.join(lacking)}")
    return Published(config, {name: name for name in (*expected, *shapes)})


def _check_tensors(path: Path, found: Published, shapes: Shapes, *, published: bool) -> None:
    expected = found.config.tensors()
    if missing := [name for name in expected if found.names.get(name) not in shapes]:
        raise ModelError(f"{path}: tensors missing in a head of kind {found.config.kind}: {_some(missing)}")
    known = {found.names[name] for name in expected}
    more = [name for name in shapes if name not in known and not (published and is_needless(name))]
    if more:
        raise ModelError(f"{path}: tensors unknown to a head of kind {found.config.kind}: {_some(more)}")
    for name, shape in expected.items():
        if shapes[found.names[name]] != shape:
            raise ModelError(
                f"{path}: {found.names[name]} has shape {list(shapes[found.names[name]])}; in a head of kind "
                f"{found.config.kind} and these sizes it has {list(shape)}"
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
