"""What a model's config may say: types and ranges, checked before anything is computed or allocated from them.

The ranges leave room for models several times larger than any published one; they keep out sizes that would only fill
the memory or loop for hours. Whether a size is the file's own is checked later, against its tensors.
"""

from __future__ import annotations

import math
import reprlib
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError, plain_name

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_LAYERS = 1024
MOST_TOKENS = 1 << 22
"""Entries of a vocabulary."""
MOST_POSITIONS = 1 << 27
LONGEST_VOCABULARY = 1 << 26
"""Bytes of a tokenizer's file."""
MOST_ENDS = 64
"""Token ids that end a text."""
WHOLE = {
    "vocab_size": (1, MOST_TOKENS),
    "hidden_size": (1, 1 << 17),
    "intermediate_size": (1, 1 << 20),
    "num_hidden_layers": (1, MOST_LAYERS),
    "num_attention_heads": (1, 1024),
    "num_key_value_heads": (1, 1024),
    "head_dim": (2, 4096),
    "max_position_embeddings": (1, MOST_POSITIONS),
    "sliding_window": (1, MOST_POSITIONS),
    "max_window_layers": (0, MOST_LAYERS),
    "bos_token_id": (-1, MOST_TOKENS - 1),
    "pad_token_id": (-1, MOST_TOKENS - 1),
    "original_max_position_embeddings": (1, MOST_POSITIONS),
}
"""Least and largest value of each whole number."""
REAL = {
    "rms_norm_eps": (0.0, math.nextafter(1, 0)),
    "rope_theta": (math.nextafter(1, 2), 1e15),
    "partial_rotary_factor": (1e-3, 1.0),
}
"""Least and largest value of each other number."""
SCALING = {
    "factor": (1.0, 1e6),
    "low_freq_factor": (1e-3, 1e6),
    "high_freq_factor": (1e-3, 1e6),
    "attention_factor": (1e-3, 1e3),
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
    "mscale": (0.0, 1e3),
    "mscale_all_dim": (0.0, 1e3),
}
"""The same of the numbers that only a rotation has."""
FLAGS = ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window")
ROPE = ("rope_parameters", "rope_scaling")
"""Objects that say how positions are rotated; the second name is the older one."""
LAYER_TYPES = ("full_attention", "sliding_attention")
_NEEDED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
)
"""What may be left out but not be null."""
ROPE_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
}
"""Numbers that a scaling of the rotation cannot do without."""
_EXPECTED = {
    "architectures": list,
    "model_type": str,
    "tokenizer_class": str,
    "hidden_act": str,
    "quantization_config": dict,
    "layer_types": list,
}
"""Types of the other fields; `engine.model.shape` checks their values."""
READ = (*WHOLE, *REAL, *FLAGS, *ROPE, "eos_token_id", *_EXPECTED)
"""All that is read of a config: nothing else in it reaches transformers."""


def check_fields(fields: Mapping[str, Any], where: object) -> None:
    """Check the fields of a config; unknown ones are left alone.

    Args:
        fields: What the file says.
        where: Named in the error, such as the file's path.

    Raises:
        ModelError: A field is of another type or out of its range; the message names it, its value and the range.
    """
    for name in (name for name in READ if name in fields):
        value = fields[name]
        if value is None and name not in _NEEDED:
            continue
        if name in ROPE:
            _check_rope(value, f"{where}: {name}")
        elif name == "eos_token_id":
            end_ids(value, where)
        elif (kind := _EXPECTED.get(name)) is not None:
            if not isinstance(value, kind):
                kind = {list: "a list", str: "a text", dict: "an object"}[kind]
                raise ModelError(f"{where}: {name} is {reprlib.repr(value)}; it must be {kind}")
        else:
            _check_plain(name, value, f"{where}: {name}")
    kinds = fields.get("layer_types") or []
    for i, kind in enumerate(kinds):
        if kind not in LAYER_TYPES:
            raise ModelError(
                f"{where}: layer_types.{i} is {reprlib.repr(kind)}; supported are {', '.join(LAYER_TYPES)}"
            )


def end_ids(value: Any, where: object, vocab: int = MOST_TOKENS) -> tuple[int, ...]:
    """Return the token ids of an `eos_token_id`: none, one, or a list.

    Raises:
        ModelError: It is something else, or not in a vocabulary of so many tokens.
    """
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if len(ids) > MOST_ENDS or not all(type(i) is int and 0 <= i < vocab for i in ids):
        raise ModelError(
            f"{where}: eos_token_id is {reprlib.repr(value)}; it must be a token id, at least 0 and at most "
            f"{vocab - 1}, or a list of at most {MOST_ENDS}"
        )
    return tuple(ids)


def check_rotation(rope: Mapping[str, Any], where: object) -> None:
    """Check that a rotation of a supported type has all the numbers it needs.

    Raises:
        ModelError: One is missing, or two contradict each other.
    """
    _check_rope(rope, f"{where}: rope_parameters")
    for name in ("rope_theta", *ROPE_NEEDS.get(rope.get("rope_type", "default"), ())):
        if rope.get(name) is None:
            raise ModelError(f"{where}: rope_parameters lacks {name}")
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if rope.get("rope_type") == "llama3" and not (low and high and low < high):
        raise ModelError(
            f"{where}: rope_parameters.low_freq_factor is {low}; it must be less than high_freq_factor, {high}"
        )


def _check_rope(rope: Any, where: str) -> None:
    if not isinstance(rope, dict):
        raise ModelError(f"{where} is {reprlib.repr(rope)}; it must be an object")
    for name, value in rope.items():
        if isinstance(value, dict):
            raise ModelError(
                f"{where}.{plain_name(name)} is an object; one rotation for all layers is supported"
            )
        if name in ("rope_type", "type") and not isinstance(value, str):
            raise ModelError(f"{where}.{name} is {reprlib.repr(value)}; it must be a text")
        if value is not None or name in _NEEDED:
            _check_plain(name, value, f"{where}.{name}")


def _check_plain(name: str, value: Any, where: str) -> None:
    """Check one number or flag; `name` says which of them it is."""
    if name in (*FLAGS, "truncate") and not isinstance(value, bool):
        raise ModelError(f"{where} is {reprlib.repr(value)}; it must be true or false")
    if name in WHOLE:
        low, high = WHOLE[name]
        if type(value) is not int or not low <= value <= high:
            raise ModelError(
                f"{where} is {reprlib.repr(value)}; it must be a whole number, at least {low} and at most {high}"
            )
    elif name in REAL or name in SCALING:
        low, high = (REAL | SCALING)[name]
        if type(value) not in (int, float) or not low <= value <= high:
            raise ModelError(
                f"{where} is {reprlib.repr(value)}; it must be a number, at least {low:g} and at most {high:g}"
            )
