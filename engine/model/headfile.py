"""The file of a drafting head: a directory with `config.json` and `model.safetensors`. What it is, and whether it fits a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import LlamaConfig

from engine.errors import ModelError, UsageError
from engine.model.load import read_config, read_json
from engine.model.shape import Shape

if TYPE_CHECKING:
    from engine.model.pair import Pair

KINDS = ("medusa", "hydra", "eagle", "parallelspec_medusa", "parallelspec_eagle")
FORMAT = 1
_PARALLEL = ("parallelspec_medusa", "parallelspec_eagle")
_MLPS = ("medusa", "hydra")
_NORMED = ("parallelspec_medusa",)
"""Kinds whose layer has the norms of a decoder's layer; EAGLE's has neither the first nor the last."""


@dataclass(frozen=True)
class HeadFile:
    """What a head's config says."""

    path: Path
    kind: str
    """One of KINDS."""
    hidden_size: int
    """D of its target."""
    vocab_size: int
    """V of its target."""
    heads: int = 0
    """Of MLP heads: how many."""
    layers: int = 0
    """Of MLP heads: blocks of each."""
    masks: int = 0
    """Mask tokens it was trained with."""
    features: tuple[int, ...] = (-1,)
    """The target's hidden states it reads, see `engine.model.slots.Output.hidden`."""
    tokenizer: str = ""
    """SHA-256 of the target's tokenizer.json; empty where it is not known."""
    shape: Shape | None = None
    """Of its one transformer layer."""

    @classmethod
    def read(cls, path: Path) -> HeadFile:
        """Read and check a head's config.

        Raises:
            ModelError: It is missing, broken or of an unknown kind or format.
        """
        where = path / "config.json"
        raw = read_json(where)
        if not isinstance(raw, dict) or raw.get("specscope_head") != FORMAT:
            found = raw.get("specscope_head") if isinstance(raw, dict) else None
            raise ModelError(f"{where}: specscope_head is {found!r}; a drafting head says {FORMAT} there")
        kind = raw.get("kind")
        if kind not in KINDS:
            raise ModelError(f"{where}: kind is {kind!r}; it must be one of {', '.join(KINDS)}")
        features = raw.get("features", [-1])
        if features != [-1]:
            raise ModelError(f"{where}: features is {features}; supported is [-1], the target's last state")
        size, vocab = _count(raw, "hidden_size", where), _count(raw, "vocab_size", where)
        head = cls(path, kind, size, vocab, tokenizer=str(raw.get("tokenizer", "")))
        if kind in _MLPS:
            return replace(head, heads=_count(raw, "heads", where), layers=_count(raw, "layers", where))
        masks = _count(raw, "masks", where, 0) if kind in _PARALLEL else 0
        return replace(head, masks=masks, shape=_layer(raw.get("shape"), head, where))

    @property
    def levels(self) -> int:
        """Tokens it was trained to draft one after the other; 0 where any number will do."""
        return self.heads if self.kind in _MLPS else self.masks + 1 if self.kind in _PARALLEL else 0

    def check(self, target: Path) -> None:
        """Check that it was made for a target.

        Raises:
            UsageError: Hidden size, vocabulary or tokenizer differ; the message names both.
        """
        config = read_config(target)
        for name, mine, its in (
            ("hidden size", self.hidden_size, config.hidden_size),
            ("vocabulary", self.vocab_size, config.vocab_size),
        ):
            if mine != its:
                raise UsageError(
                    f"{self.path}: the head's {name} is {mine}, the target's {its} ({target}); use a head made for it"
                )
        tokenizer = digest(target)
        if self.tokenizer and tokenizer and self.tokenizer != tokenizer:
            raise UsageError(
                f"{self.path}: the head's tokenizer is {self.tokenizer[:12]}, the target's {tokenizer[:12]} (SHA-256 of "
                f"tokenizer.json, {target}); use a head made for it"
            )


def digest(target: Path) -> str:
    """Return the SHA-256 of a model's tokenizer.json; empty where it has none."""
    file = target / "tokenizer.json"
    return sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


@dataclass(frozen=True)
class Heads:
    """The heads there are for a pair: one that was named, or those that come with the pair."""

    pair: Pair
    named: Path | None = None

    def find(self, kind: str) -> HeadFile:
        """Return the head of a kind, checked against the pair's target.

        Raises:
            UsageError: There is none, the named one is of another kind, or it does not fit.
            ModelError: Its config is broken.
        """
        if self.named is not None:
            head = HeadFile.read(self.named)
            if head.kind != kind:
                raise UsageError(
                    f"{self.named} is a head of kind {head.kind}; this method needs one of kind {kind}"
                )
        else:
            folder = self.pair.heads_path / kind if self.pair.heads_path else None
            if folder is None or not folder.is_dir():
                raise UsageError(
                    f"{self.pair.name} has no drafting head of kind {kind}; name one with --head, or train it: "
                    f"specscope train {kind}"
                )
            head = HeadFile.read(folder)
        head.check(self.pair.target_path)
        return head


def _count(raw: Mapping[str, Any], name: str, where: Path, least: int = 1) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(f"{where}: {name} is {value!r}; it must be a whole number of at least {least}")
    return value


def _layer(raw: Any, head: HeadFile, where: Path) -> Shape:
    """Return the shape of a head's one layer."""
    if not isinstance(raw, dict):
        raise ModelError(f"{where}: shape is {raw!r}; it must hold the fields of a Llama config")
    fields: dict[str, Any] = {str(key): value for key, value in raw.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    fixed: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "vocab_size": head.vocab_size,
    }
    fields |= fixed
    try:
        config = LlamaConfig(**fields)
    except Exception as e:  # noqa: BLE001 - whatever transformers finds wrong with it
        raise ModelError(f"{where}: shape is wrong: {' '.join(str(e).split())[:300]}") from None
    if config.hidden_size != head.hidden_size:
        raise ModelError(
            f"{where}: hidden_size is {config.hidden_size} in shape, {head.hidden_size} above it; they must be the same"
        )
    normed = head.kind in _NORMED
    return replace(Shape.of(config, where), input_norm=normed, final_norm=normed)
