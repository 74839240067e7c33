"""The rotations of a model's layers, read from a config.

Most models have one rotation. Gemma 3 has a second one in its local layers, and SmolLM3 has layers
without any. A pair of numbers of frequency 0 is not rotated, and not scaled.
"""

from __future__ import annotations

import math
import reprlib
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.model.fields import LAYER_TYPES, check_rotation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")
"""Supported scalings; a model's frequencies do not depend on the length of the text."""
TWO_ROTATIONS = ("gemma3_text",)
"""Model types with a rotation for each kind of layer."""
PARTIAL = ("phi3",)
"""Model types that may rotate a part of each head only."""


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def context_of(config: Any) -> int:
    """Return the positions that a model supports.

    Longrope has frequencies for texts up to its original context, and others for longer ones: all
    keys of a text would change once it is longer. We support the original context.
    """
    rope: Any = getattr(config, "rope_parameters", None) or {}
    longest: int = config.max_position_embeddings
    return (
        min(longest, rope["original_max_position_embeddings"])
        if rope.get("rope_type") == "longrope"
        else longest
    )


def no_rotation(config: Any) -> dict[str, Any]:
    return {"frequencies": (0.0,) * (head_dim(config) // 2), "rope_scale": 1.0}


def rotations(config: Any, path: Path) -> dict[str, Any]:
    """Return the fields of the shape that describe the rotations.

    Raises:
        ModelError: A rotation is not supported.
    """
    parameters = config.rope_parameters
    kinds = [kind for kind in LAYER_TYPES if isinstance(parameters.get(kind), dict)]
    if kinds and config.model_type not in TWO_ROTATIONS:
        raise ModelError(
            f"{path}: rope_parameters.{kinds[0]} is an object; one rotation for all layers is supported"
        )
    main, local = (parameters.get(kind, parameters) for kind in LAYER_TYPES)
    frequencies, scale = _rotation(config, main, path, LAYER_TYPES[0] if kinds else None)
    found: dict[str, Any] = {"frequencies": frequencies, "rope_scale": scale}
    if kinds:
        others = tuple(kind == LAYER_TYPES[1] for kind in config.layer_types)
        second, second_scale = _rotation(config, local, path, LAYER_TYPES[1])
    elif all(rotated := _rotated(config, path)):
        return found
    else:
        others = tuple(not each for each in rotated)
        second, second_scale = (0.0,) * len(frequencies), 1.0
    if (scale, second_scale) != (1.0, 1.0):
        raise ModelError(
            f"{path}: two rotations, of which one is scaled by {max(scale, second_scale):g}, are not supported"
        )
    return found | {"other_frequencies": second, "others": others}


def _rotated(config: Any, path: Path) -> list[Any]:
    flags: Any = getattr(config, "no_rope_layers", None) or [1] * config.num_hidden_layers
    if len(flags) != config.num_hidden_layers or not all(flag in (0, 1) for flag in flags):
        raise ModelError(
            f"{path}: no_rope_layers is {reprlib.repr(flags)}; it must hold 0 or 1 for each of the "
            f"{config.num_hidden_layers} layers"
        )
    return flags


def _rotation(
    config: Any, parameters: Mapping[str, Any], path: Path, layer_type: str | None
) -> tuple[tuple[float, ...], float]:
    """Return the frequencies of a head's pairs, (head_dim / 2,), and what they are scaled by."""
    import torch  # takes seconds; the names of FAMILIES are read without it

    kind, size = parameters.get("rope_type", "default"), head_dim(config)
    if kind not in ROPE_TYPES:
        raise ModelError(
            f"{path}: rope_type {reprlib.repr(kind)} is not supported; supported are {', '.join(ROPE_TYPES)}"
        )
    check_rotation(parameters, path)
    part = parameters.get("partial_rotary_factor") or 1.0
    dim = int(size * part)
    if part != 1.0 and (config.model_type not in PARTIAL or dim % 2 or dim < 2):
        raise ModelError(f"{path}: only a part of each head is rotated, which is not supported")
    if kind != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), layer_type=layer_type)
    else:
        frequencies = 1.0 / parameters["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)
        scale = 1.0
    if 2 * len(frequencies) != dim:
        raise ModelError(f"{path}: only a part of each head is rotated, which is not supported")
    if not (frequencies.isfinite().all() and math.isfinite(scale)):
        raise ModelError(f"{path}: rope_parameters give a rotation that is not finite")
    return (*frequencies.tolist(), *(0.0,) * ((size - dim) // 2)), float(scale)
