"""Read drafting heads, in SpecScope's own form or as published, and write them in the former."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import reprlib
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from specscope.engine.checkpoints.checkpoint import FLOATS, MOST_SHARDS, PICKLES, Checkpoint, pack, some
from specscope.engine.checkpoints.config import read_config, read_object
from specscope.engine.errors import ModelError, UsageError, one_line, plain_name
from specscope.engine.files import parse_json, read_bytes, replacing
from specscope.engine.heads.config import INDEX_TENSORS, HeadConfig, TensorShapes
from specscope.engine.heads.kind import Kind
from specscope.engine.heads.kinds import KINDS
from specscope.engine.heads.modules import check_ids
from specscope.engine.heads.published import Published, check_supported, is_redundant
from specscope.engine.model.fields import LONGEST_VOCABULARY

VERSION = 1


class HeadWeights(NamedTuple):
    """A head's config, and its tensors, named as in `Kind.tensors`."""

    config: HeadConfig
    tensors: dict[str, Tensor]


def read_head(
    path: Path,
    target: Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> HeadWeights:
    """Read a head in SpecScope's own form or a published one, and check it first.

    If `target` is given, the head must have been trained for it: a UsageError if hidden size,
    vocabulary or tokenizer differ. `dtype` is that of the floating-point tensors.
    """
    head, weights = _open(path, target)
    place = torch.device(device)
    tensors = {
        name: weights.take(head.names[name], place, torch.int64 if name in INDEX_TENSORS else dtype)
        for name in KINDS[head.config.kind].tensors(head.config)
    }
    return HeadWeights(head.config, tensors)


def check_head(path: Path, target: Path | None = None) -> HeadConfig:
    """Check a head as `read_head` does, without reading its weights, and return its config."""
    return _open(path, target)[0].config


def write_head(
    folder: Path,
    config: HeadConfig,
    tensors: Mapping[str, Tensor],
    *,
    int8: bool = False,
    keep: Collection[str] = (),
) -> None:
    """Write a head's config, then its tensors; the file of the tensors appears whole.

    Tensors are stored in bf16; with `int8` matrices become int8 with a scale per row, in half the
    space, except those to `keep`.
    """
    content = {"specscope_head": VERSION} | dataclasses.asdict(config)
    with replacing(folder / "config.json") as file:
        file.write(json.dumps(content, indent=1) + "\n")
    part = folder / "model.safetensors.part"
    stored = pack(tensors, keep) if int8 else tensors
    dtypes = {name: torch.bfloat16 if t.is_floating_point() else t.dtype for name, t in stored.items()}
    save_file({name: t.detach().to("cpu", dtypes[name]).contiguous() for name, t in stored.items()}, part)
    os.replace(part, folder / "model.safetensors")


def check_target(path: Path, config: HeadConfig, target: Path) -> None:
    """Check that a head was trained for a target; a UsageError names what differs."""
    expected, digest = read_config(target), tokenizer_digest(target)
    pairs: list[tuple[str, object, object]] = [("hidden_size", config.hidden_size, expected.hidden_size)]
    if config.vocab_size:
        pairs.append(("vocab_size", config.vocab_size, expected.vocab_size))
    if config.tokenizer and digest:
        pairs.append(("tokenizer", config.tokenizer[:12], digest[:12]))
    for name, own, wanted in pairs:
        if own != wanted:
            raise UsageError(
                f"{path} is a head for another target: its {name} is {own}, that of {target} is {wanted}; "
                "use a head that was trained for this target"
            )


def tokenizer_digest(target: Path) -> str | None:
    """Return the SHA-256 of a target's tokens by id; None without tokenizer.json.

    Programs write one vocabulary in different files; all of these have one digest.
    """
    path = target / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        content = parse_json(read_bytes(path, LONGEST_VOCABULARY))
        vocabulary = content["model"]["vocab"]
        ids = (
            vocabulary if isinstance(vocabulary, dict) else {pair[0]: i for i, pair in enumerate(vocabulary)}
        )
        ids |= {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        tokens = sorted((int(i), str(token)) for token, i in ids.items())
    except (UsageError, ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise ModelError(f"{path} has no vocabulary: {one_line(error)}") from None
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def _open(path: Path, target: Path | None) -> tuple[Published, Checkpoint]:
    if not path.is_dir():
        raise ModelError(
            f"{path} is no directory; give the one that holds a head's config.json and *.safetensors"
        )
    file = path / "config.json"
    raw, weights = read_object(file), Checkpoint(path, _files(path))
    shapes, published = weights.shapes, "specscope_head" not in raw
    head = recognise(path, raw, shapes) if published else _read_own(file, raw, shapes)
    with _naming(file):
        kind = _kind(head.config)
        kind.check(head.config)
    if target is not None:
        check_target(path, head.config, target)
        layers = read_config(target).num_hidden_layers
        with _naming(file):
            head = head._replace(config=kind.for_target(head.config, layers))
    expected = kind.tensors(head.config)
    _check_tensors(path, head, expected, shapes, published=published)
    weights.check_memory(expected, "cpu", torch.float32)
    for name in expected:
        weights.check_type(head.names[name], ("I64",) if name in INDEX_TENSORS else FLOATS)
    check_ids(path, weights, head)
    return head, weights


def recognise(path: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> Published:
    """Return a published head's config and the names of its tensors."""
    check_supported(path, raw, shapes)
    for kind in KINDS.values():
        if kind.published and kind.published.matches(shapes):
            return kind.published.read(path, raw, shapes)
    names = ", ".join(map(plain_name, sorted(shapes)[:3])) or "none"
    raise ModelError(
        f"{path} is no known drafting head: its tensors are {names} ...; known are Medusa, Hydra, EAGLE, DFlash and speculators"
    )


def _kind(config: HeadConfig) -> Kind:
    name: Any = config.kind
    if not isinstance(name, str) or name not in KINDS:
        raise ModelError(f"kind is {reprlib.repr(name)}; it must be one of {', '.join(KINDS)}")
    return KINDS[name]


@contextmanager
def _naming(file: Path) -> Generator[None, None, None]:
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None


def _files(path: Path) -> list[Path]:
    """Return the files of a head's tensors: model.safetensors, else all *.safetensors."""
    whole = path / "model.safetensors"
    files = [whole] if whole.is_file() else sorted(path.glob("*.safetensors"))
    if len(files) > MOST_SHARDS:
        raise ModelError(f"{path} holds {len(files)} *.safetensors; there may be at most {MOST_SHARDS}")
    if files:
        return files
    if pickles := [file.name for pattern in PICKLES for file in sorted(path.glob(pattern))]:
        raise ModelError(
            f"{path / pickles[0]}: pickled weights can run code and are not read; convert them to safetensors: "
            "torch.load(FILE, weights_only=True), then safetensors.torch.save_file(tensors, 'model.safetensors')"
        )
    raise ModelError(f"{path} holds no *.safetensors")


def _read_own(file: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> Published:
    if (version := raw["specscope_head"]) != VERSION:
        raise ModelError(f"{file}: specscope_head is {reprlib.repr(version)}; this version reads {VERSION}")
    fields = {field.name for field in dataclasses.fields(HeadConfig)}
    try:
        given: dict[str, Any] = {name: value for name, value in raw.items() if name in fields}
        given |= {name: tuple(given[name]) for name in ("features", "windows") if name in given}
        config = HeadConfig(**given)
    except TypeError as error:
        raise ModelError(f"{file} is no head's config ({one_line(error)})") from None
    return Published(config, {name: name for name in shapes})


def _check_tensors(
    path: Path, head: Published, expected: TensorShapes, shapes: TensorShapes, *, published: bool
) -> None:
    kind = head.config.kind
    if missing := [name for name in expected if head.names.get(name) not in shapes]:
        raise ModelError(f"{path}: tensors missing in a head of kind {kind}: {some(missing)}")
    known = {head.names[name] for name in expected}
    unknown = [name for name in shapes if name not in known and not (published and is_redundant(name))]
    if unknown:
        raise ModelError(f"{path}: tensors unknown to a head of kind {kind}: {some(unknown)}")
    for name, shape in expected.items():
        if (actual := shapes[head.names[name]]) != shape:
            raise ModelError(
                f"{path}: {head.names[name]} has shape {list(actual)}; in a head of kind {kind} and these sizes "
                f"it has {list(shape)}"
            )
