"""Read and write drafting heads: SpecScope's own, and published ones (`engine.heads.official`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from engine.heads.form import HeadConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

VERSION = 1
_LAYER = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_parameters",
    "max_position_embeddings",
)


def write_head(folder: Path, config: HeadConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a head: its config, and its tensors in bf16; the tensors come last and whole."""
    content = {"specscope_head": VERSION} | dataclasses.asdict(config)
    (folder / "config.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    part = folder / "model.safetensors.part"
    save_file({name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in tensors.items()}, part)
    os.replace(part, folder / "model.safetensors")


def tokenizer_digest(target: Path) -> str | None:
    """Return the SHA-256 of a target's tokenizer.json; None where it has none."""
    path = target / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def layer_shape(config: Any) -> dict[str, Any]:
    """Return the sizes of one decoder layer of a transformers config."""
    return {name: getattr(config, name) for name in _LAYER}
