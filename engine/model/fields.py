"""Types and ranges of the fields of a model's config, checked before any of them is used.

The ranges admit models several times larger than any published one. They exclude sizes that only
fill the memory or loop for hours. A later check compares the sizes with the tensors.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Annotated, Any

from specscope.engine.errors import ModelError, plain_name
from specscope.engine.schema import Range, Text, fits, words

MOST_LAYERS = 1024
MOST_EXPERTS = 4096
MOST_EXPERT_LAYERS = 1 << 16
"""Most experts of all layers together."""
MOST_TOKENS = 1 << 22
MOST_POSITIONS = 1 << 27
LONGEST_VOCABULARY = 1 << 26
"""Most bytes of a tokenizer file."""
MOST_ENDS = 64
WHOLE = {
    "vocab_size": (1, MOST_TOKENS),
    "hidden_size": (1, 1 << 17),
    "intermediate_size": (1, 1 << 20),
    "ffn_dim": (1, 1 << 20),
    "n_inner": (1, 1 << 20),
    "word_embed_proj_dim": (1, 1 << 17),
    "n_embd": (1, 1 << 17),
    "n_layer": (1, MOST_LAYERS),
    "n_head": (1, 1024),
    "n_positions": (1, MOST_POSITIONS),
    "num_hidden_layers": (1, MOST_LAYERS),
    "num_attention_heads": (1, 1024),
    "num_key_value_heads": (1, 1024),
    "head_dim": (2, 4096),
    "max_position_embeddings": (1, MOST_POSITIONS),
    "sliding_window": (0, MOST_POSITIONS),
    "num_local_experts": (0, MOST_EXPERTS),
    "num_experts": (0, MOST_EXPERTS),
    "num_experts_per_tok": (1, MOST_EXPERTS),
    "moe_intermediate_size": (1, 1 << 20),
    "shared_expert_intermediate_size": (0, 1 << 20),
    "decoder_sparse_step": (1, MOST_LAYERS),
    "sliding_window_pattern": (1, MOST_LAYERS),
    "no_rope_layer_interval": (1, MOST_LAYERS),
    "max_window_layers": (0, MOST_LAYERS),
    "bos_token_id": (-1, MOST_TOKENS - 1),
    "pad_token_id": (-1, MOST_TOKENS - 1),
    "original_max_position_embeddings": (1, MOST_POSITIONS),
}
"""Whole-number field -> its least and largest value."""
REAL = {
    "rms_norm_eps": (0.0, math.nextafter(1, 0)),
    "layer_norm_epsilon": (0.0, math.nextafter(1, 0)),
    "query_pre_attn_scalar": (1e-3, 1e6),
    "attn_logit_softcapping": (1e-3, 1e6),
    "final_logit_softcapping": (1e-3, 1e6),
    "rope_theta": (math.nextafter(1, 2), 1e15),
    "rope_local_base_freq": (math.nextafter(1, 2), 1e15),
    "partial_rotary_factor": (1e-3, 1.0),
    "embedding_multiplier": (1e-6, 1e6),
    "residual_multiplier": (1e-6, 1e6),
    "attention_multiplier": (1e-6, 1e6),
    "logits_scaling": (1e-6, 1e6),
    "clip_qkv": (1e-3, 1e6),
}
"""Other numeric field -> its least and largest value."""
SCALING = {
    "factor": (1.0, 1e6),
    "low_freq_factor": (1e-3, 1e6),
    "high_freq_factor": (1e-3, 1e6),
    "attention_factor": (1e-3, 1e3),
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
    "mscale": (0.0, 1e3),
    "mscale_all_dim": (0.0, 1e3),
    "rope_factor": (1e-3, 1e6),
}
"""Numeric field of a rotation -> its least and largest value."""
FLAGS = (
    *("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window"),
    *("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine", "_remove_final_layer_norm"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "add_cross_attention"),
    *("use_bidirectional_attention", "norm_topk_prob", "qkv_bias"),
)
ROPE = ("rope_parameters", "rope_scaling")
"""Names of the object with the rotary parameters; the second is the older one."""
FACTORS = ("short_factor", "long_factor")
"""Lists of factors of a rotation's frequencies."""
LAYER_TYPES = ("full_attention", "sliding_attention")
_NEEDED = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("ffn_dim", "word_embed_proj_dim", "n_embd", "n_layer", "n_head", "n_positions", "layer_norm_epsilon"),
    *("query_pre_attn_scalar", "hidden_activation", "max_position_embeddings", "rms_norm_eps"),
    *("rope_theta", "rope_local_base_freq", "sliding_window_pattern", "no_rope_layer_interval"),
    *("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"),
)
"""Fields that may be missing but not null."""
ROPE_NEEDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
"""`rope_type` -> required parameters."""
_EXPECTED = {
    "architectures": list,
    "model_type": Text,
    "tokenizer_class": Text,
    "hidden_act": Text,
    "activation_function": Text,
    "hidden_activation": Text,
    "quantization_config": dict,
    "layer_types": list,
    "no_rope_layers": list,
    "mlp_only_layers": list,
}
"""Other field -> its type; `specscope.engine.model.shape` checks the values."""
_NUMBERS = {
    **{name: Annotated[int, Range(*ends)] for name, ends in WHOLE.items()},
    **{name: Annotated[float, Range(*ends)] for name, ends in (REAL | SCALING).items()},
    **dict.fromkeys((*FLAGS, "truncate"), bool),
}
"""Number or flag of a config or a rotation -> its type and range."""
READ = (*WHOLE, *REAL, *FLAGS, *ROPE, "eos_token_id", *_EXPECTED)
"""All fields that are read; transformers receives no other ones."""


def check_fields(fields: Mapping[str, Any], where: object) -> None:
    """Raise ModelError on a field of a wrong type or out of range; unknown fields are ignored."""
    for name in (name for name in READ if name in fields):
        value = fields[name]
        if value is None and name not in _NEEDED:
            continue
        if name in ROPE:
            _check_rope(value, f"{where}: {name}")
        elif name == "eos_token_id":
            end_ids(value, where)
        else:
            check_value(value, _EXPECTED.get(name) or _NUMBERS[name], f"{where}: {name}")
    _check_dense(fields.get("mlp_only_layers") or [], where)
    _check_experts(fields, where)
    kinds = fields.get("layer_types") or []
    for i, kind in enumerate(kinds):
        if kind not in LAYER_TYPES:
            raise ModelError(
                f"{where}: layer_types.{i} is {reprlib.repr(kind)}; supported are {', '.join(LAYER_TYPES)}"
            )


def _check_dense(layers: list[Any], where: object) -> None:
    for layer in layers[: MOST_LAYERS + 1]:
        if type(layer) is not int or not 0 <= layer < MOST_LAYERS or len(layers) > MOST_LAYERS:
            raise ModelError(
                f"{where}: mlp_only_layers holds {reprlib.repr(layer)}; it must hold at most {MOST_LAYERS} numbers of "
                f"layers, from 0 to {MOST_LAYERS - 1}"
            )


def _check_experts(fields: Mapping[str, Any], where: object) -> None:
    """Bound the matrices of a mixture: each of them has a name."""
    layers = fields.get("num_hidden_layers") or 1
    for name in ("num_local_experts", "num_experts"):
        if (fields.get(name) or 0) * layers > MOST_EXPERT_LAYERS:
            raise ModelError(
                f"{where}: {name} is {fields[name]} in {layers} layers; all layers together must have at most "
                f"{MOST_EXPERT_LAYERS} experts"
            )


def end_ids(value: Any, where: object, vocab: int = MOST_TOKENS) -> tuple[int, ...]:
    """Return the ids of an `eos_token_id`: null, one id or a list; else raise ModelError."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if len(ids) > MOST_ENDS or not all(type(i) is int and 0 <= i < vocab for i in ids):
        raise ModelError(
            f"{where}: eos_token_id is {reprlib.repr(value)}; it must be a token id, at least 0 and at most "
            f"{vocab - 1}, or a list of at most {MOST_ENDS}"
        )
    return tuple(ids)


def check_rotation(rope: Mapping[str, Any], where: object) -> None:
    """Raise ModelError unless a rotation of a supported type has all its parameters."""
    _check_rope(rope, f"{where}: rope_parameters")
    for name in ("rope_theta", *ROPE_NEEDS.get(rope.get("rope_type", "default"), ())):
        if rope.get(name) is None:
            raise ModelError(f"{where}: rope_parameters lacks {name}")
    if rope.get("rope_type") == "longrope" and rope["original_max_position_embeddings"] < 2:
        raise ModelError(
            f"{where}: rope_parameters.original_max_position_embeddings is 1; longrope divides by its "
            "logarithm, so it must be at least 2"
        )
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if rope.get("rope_type") == "llama3" and not (low and high and low < high):
        raise ModelError(
            f"{where}: rope_parameters.low_freq_factor is {low}; it must be less than high_freq_factor, {high}"
        )


def _check_rope(rope: Any, where: str, *, inner: bool = False) -> None:
    """Check a rotation, or one of each kind of layer; `inner` is one of these."""
    check_value(rope, dict, where)
    for name, value in rope.items():
        if isinstance(value, dict) and name in LAYER_TYPES and not inner:
            _check_rope(value, f"{where}.{name}", inner=True)
            continue
        if isinstance(value, dict):
            raise ModelError(
                f"{where}.{plain_name(name)} is an object; one rotation for all layers is supported"
            )
        if name in FACTORS:
            _check_factors(value, f"{where}.{name}")
        if name in ("rope_type", "type"):
            check_value(value, Text, f"{where}.{name}")
        if name in _NUMBERS and (value is not None or name in _NEEDED):
            check_value(value, _NUMBERS[name], f"{where}.{name}")


def _check_factors(values: Any, where: str) -> None:
    if not isinstance(values, list) or len(values) > WHOLE["head_dim"][1]:
        raise ModelError(
            f"{where} is {reprlib.repr(values)}; it must be a list of numbers, one for each pair"
        )
    for value in values:
        check_value(value, _NUMBERS["rope_factor"], where)


def check_value(value: Any, hint: Any, where: object, expected: str = "") -> None:
    """Raise ModelError unless a value fits a hint; `expected` says in other words what does."""
    if not fits(value, hint):
        raise ModelError(f"{where} is {reprlib.repr(value)}; it must be {expected or words(hint)}")
