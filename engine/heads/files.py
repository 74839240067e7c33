"""Read and write drafting heads: SpecScope's own form (`engine.heads.form`), and published ones (`engine.heads.official`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import reprlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import save_file

from engine.errors import ModelError, UsageError, one_line
from engine.files import read_bytes, replacing
from engine.heads.form import INDICES, LAYER, HeadConfig
from engine.heads.official import Published, Shapes, is_needless, recognise
from engine.model.fields import LONGEST_VOCABULARY
from engine.pairs.checkpoint import FLOATS, MOST_SHARDS, PICKLES, Checkpoint, some
from engine.pairs.config import read_config, read_object

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from torch import Tensor

VERSION = 1


class HeadWeights(NamedTuple):
    """A drafting head, read."""

    config: HeadConfig
    tensors: dict[str, Tensor]
    """Named as in `HeadConfig.tensors`."""


def read_head(
    path: Path,
    target: Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> HeadWeights:
    """Read a head of SpecScope's own form or a published one; whole, or not at all.

    Args:
        path: Its directory.
        target: Directory of the target it is to serve; where given, the head must be of that target.
        device: Where the tensors go.
        dtype: What they are turned into; those of whole numbers stay so.

    Raises:
        ModelError: It is missing, broken, pickled, or of a kind that is unknown or cannot be run.
        UsageError: It is of another target: hidden size, vocabulary or tokenizer differ.
    """
    found, weights = _open(path, target)
    place = torch.device(device)
    tensors = {
        name: weights.take(found.names[name], place, torch.int64 if name in INDICES else dtype)
        for name in found.config.tensors()
    }
    return HeadWeights(found.config, tensors)


def check_head(path: Path, target: Path | None = None) -> HeadConfig:
    """Check a head as `read_head` does, without its numbers, and return what it is.

    Raises:
        ModelError: See `read_head`.
        UsageError: See `read_head`.
    """
    return _open(path, target)[0].config


def write_head(folder: Path, config: HeadConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a head: its config, and its tensors, numbers in bf16; the tensors come last and whole."""
    content = {"specscope_head": VERSION} | dataclasses.asdict(config)
    with replacing(folder / "config.json") as file:
        file.write(json.dumps(content, indent=1) + "\n")
    part = folder / "model.safetensors.part"
    kinds = {name: torch.int64 if name in INDICES else torch.bfloat16 for name in tensors}
    save_file({name: t.detach().to("cpu", kinds[name]).contiguous() for name, t in tensors.items()}, part)
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
    return hashlib.sha256(read_bytes(path, LONGEST_VOCABULARY)).hexdigest() if path.is_file() else None


def target_ids(d2t: Tensor) -> Tensor:
    """Return the target's id of each token that a head drafts, (N,), of what is to be added to its own."""
    return torch.arange(len(d2t), device=d2t.device) + d2t


def layer_shape(config: Any) -> dict[str, Any]:
    """Return the sizes of one decoder layer of a transformers config."""
    return {name: getattr(config, name) for name in LAYER}


def _open(path: Path, target: Path | None) -> tuple[Published, Checkpoint]:
    """Return what a head is, and its tensors, of the right names, shapes and types."""
    if not path.is_dir():
        raise ModelError(
            f"{path} is no directory; give the one that holds a head's config.json and *.safetensors"
        )
    config = path / "config.json"
    raw, weights = read_object(config), Checkpoint(path, _files(path))
    shapes, published = weights.shapes, "specscope_head" not in raw
    found = recognise(path, raw, shapes) if published else _own(config, raw, shapes)
    with _about(config):
        found.config.check()
    if target is not None:
        check_target(path, found.config, target)
        layers = read_config(target).num_hidden_layers
        with _about(config):
            found = dataclasses.replace(found, config=found.config.beside(layers))
    _check_tensors(path, found, shapes, published=published)
    weights.check_memory(found.config.tensors(), "cpu", torch.float32)
    for name in found.config.tensors():
        weights.check_type(found.names[name], ("I64",) if name in INDICES else FLOATS)
    if found.config.draft_vocab:
        _check_ids(path, weights, found)
    return found, weights


@contextmanager
def _about(file: Path) -> Generator[None, None, None]:
    """Name the file that an error is about."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None


def _files(path: Path) -> list[Path]:
    """Return the files of a head's tensors: model.safetensors, or else all *.safetensors there are."""
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


def _own(file: Path, raw: Mapping[str, Any], shapes: Shapes) -> Published:
    """Return what a head of SpecScope's own form says it is in its config."""
    if (version := raw["specscope_head"]) != VERSION:
        raise ModelError(f"{file}: specscope_head is {reprlib.repr(version)}; this version reads {VERSION}")
    fields = {field.name for field in dataclasses.fields(HeadConfig)}
    try:
        given: dict[str, Any] = {name: value for name, value in raw.items() if name in fields}
        given["features"] = tuple(given.get("features", (-1,)))
        config = HeadConfig(**given)
    except TypeError as error:
        raise ModelError(f"{file} is no head's config ({one_line(error)})") from None
    return Published(config, {name: name for name in shapes})


def _check_tensors(path: Path, found: Published, shapes: Shapes, *, published: bool) -> None:
    expected = found.config.tensors()
    if missing := [name for name in expected if found.names.get(name) not in shapes]:
        raise ModelError(f"{path}: tensors missing in a head of kind {found.config.kind}: {some(missing)}")
    known = {found.names[name] for name in expected}
    more = [name for name in shapes if name not in known and not (published and is_needless(name))]
    if more:
        raise ModelError(f"{path}: tensors unknown to a head of kind {found.config.kind}: {some(more)}")
    for name, shape in expected.items():
        if shapes[found.names[name]] != shape:
            raise ModelError(
                f"{path}: {found.names[name]} has shape {list(shapes[found.names[name]])}; in a head of kind "
                f"{found.config.kind} and these sizes it has {list(shape)}"
            )


def _check_ids(path: Path, weights: Checkpoint, found: Published) -> None:
    """Check that a head drafts tokens of its target only, each by one id of its own."""
    here, vocab = torch.device("cpu"), found.config.vocab_size
    ids = target_ids(weights.take(found.names["d2t"], here, torch.int64))
    for i in ((ids < 0) | (ids >= vocab)).nonzero()[:1, 0].tolist():
        raise ModelError(
            f"{path}: d2t turns draft token {i} into {int(ids[i])}; the target's are 0 to {vocab - 1}"
        )
    tokens, counts = ids.unique(return_counts=True)
    for i in (counts > 1).nonzero()[:1, 0].tolist():
        raise ModelError(
            f"{path}: d2t turns {int(counts[i])} draft tokens into {int(tokens[i])}; each needs one of its own"
        )
    if (t2d := found.names.get("t2d")) is not None:
        weights.check_type(t2d, ("BOOL",))
        said = weights.take(t2d, here, torch.bool)
        if said.shape != (vocab,) or not torch.equal(said.nonzero()[:, 0], tokens):
            raise ModelError(f"{path}: t2d marks other tokens than those d2t leads to; the file is broken")
