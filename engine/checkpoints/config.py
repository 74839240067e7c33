"""Read the JSON files of a model directory, among them the config of the decoder."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from specscope.engine.errors import ModelError, UsageError, one_line, plain_name, shown
from specscope.engine.files import parse_json, read_bytes
from specscope.engine.model.families import FAMILIES, WAY_OUT, Family, family_of
from specscope.engine.model.fields import READ, check_fields

LONGEST_CONFIG = 1 << 20
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
"""Fields of a complete Llama config and their types, without the rotation."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Fields with the number of experts of a layer."""
_NONE = (None, 0, 1)


def config_file(model: Path) -> Path:
    """Return the file of a model's config: the model is a directory, or that file itself."""
    return model if os.path.isfile(model) else model / "config.json"


def read_config(model: Path) -> Any:
    """Return the config of a model, with a transformers config's attributes."""
    path = config_file(model)
    raw = read_json(path)
    families = raw.get("architectures") if isinstance(raw, dict) else None
    family = families[0] if isinstance(families, list) and families else None
    kind = _family(family, raw, path).model_type
    check_fields(raw, path)
    if raw.get("model_type", kind) != kind:
        raise ModelError(
            f"{path}: model_type is {reprlib.repr(raw['model_type'])}; it must be {kind!r} for {family}"
        )
    fields = {name: raw[name] for name in READ if name in raw}
    if is_complete(raw):
        return SimpleNamespace(**fields)
    from transformers import AutoConfig  # the import takes a second in every worker

    try:
        return AutoConfig.for_model(kind, **{name: fields[name] for name in fields if name != "model_type"})
    except Exception as e:  # noqa: BLE001 - transformers raises many kinds
        raise ModelError(f"{path}: {one_line(e)}") from None


def _family(name: Any, raw: Any, path: Path) -> Family:
    """Return the family of a config; ModelError for a mixture of experts of another family."""
    known = FAMILIES.get(name) if isinstance(name, str) else None
    counts = {key: raw[key] for key in _EXPERTS if isinstance(raw, dict) and raw.get(key) not in _NONE}
    if counts and not (known and known.mixture):
        key, count = next(iter(counts.items()))
        mixtures = ", ".join(family for family, found in FAMILIES.items() if found.mixture)
        raise ModelError(
            f"{path}: {reprlib.repr(name)} is a mixture of experts ({key} is {reprlib.repr(count)}); supported are "
            f"{mixtures}; {WAY_OUT}"
        )
    return family_of(name, path)


def is_complete(raw: Mapping[str, Any]) -> bool:
    """Return whether a Llama config needs none of transformers' defaults and older spellings.

    Such a config is used without transformers, whose import takes a second in every process.
    """
    if raw["architectures"] != ["LlamaForCausalLM"] or raw.get("model_type") != "llama":
        return False
    complete = "eos_token_id" in raw and all(type(raw.get(key)) is kind for key, kind in _LLAMA.items())
    rope: Any = raw.get("rope_parameters")
    plain = isinstance(rope, dict) and rope.keys() == {"rope_type", "rope_theta"}
    return complete and plain and rope["rope_type"] == "default" and type(rope["rope_theta"]) is float


_DRAFTING = re.compile(r"(?=.*(mtp|next_?n))(?=.*(num|layers|modules))", re.IGNORECASE)
"""Fields of a config with the number of its own drafting layers (MTP), as families name them:
mtp_num_hidden_layers, num_nextn_predict_layers, num_mtp_modules."""


def unused_layers(directory: Path) -> str:
    """Return that a model that opens declares layers for drafting; empty if it declares none.

    Their tensors would be unknown ones, with which no model opens.
    """
    raw = read_object(directory / "config.json")
    text = raw.get("text_config")  # of a model with pictures
    fields = raw | (cast("dict[str, Any]", text) if isinstance(text, dict) else {})
    for name, count in fields.items():
        if _DRAFTING.match(name) and isinstance(count, int | float) and count >= 1:
            return (
                f"{plain_name(directory.name)}: config.json declares {name} = {shown(count)}, but the weights hold no "
                "such layers; nothing drafts with them"
            )
    return ""


def read_object(path: Path, limit: int = LONGEST_CONFIG) -> dict[str, Any]:
    """Return the JSON object in a file of at most `limit` bytes; {} if the file is missing."""
    raw = read_json(path, limit) if os.path.lexists(path) else {}
    if not isinstance(raw, dict):
        raise ModelError(f"{path} is not a JSON object")
    return raw


def read_json(path: Path, limit: int = LONGEST_CONFIG) -> Any:
    if not os.path.lexists(path):
        raise ModelError(f"{path} is missing; a model directory holds config.json and *.safetensors")
    try:
        return parse_json(read_bytes(path, limit).decode("utf-8"))
    except UsageError as e:
        raise ModelError(str(e)) from None
    except ValueError as e:
        raise ModelError(f"{path} is not valid JSON: {one_line(e)}") from None
