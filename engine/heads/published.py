"""Published drafting heads: what the readers of all kinds share.

| published as | its tensors | becomes |
|---|---|---|
| Medusa-1 | `{i}.{j}.linear.*`, `{i}.{n}.weight` | medusa |
| Medusa-2 | the same behind `medusa_head.`, beside a whole model | medusa |
| Hydra | `hydra_mlp.{i}.{m}.*`, m even or odd; `hydra_lm_head.{i}.*` | hydra |
| EAGLE-1, EAGLE-2 | `fc.*`, `layers.0.*`, `embed_tokens.weight` | eagle |
| speculators, eagle | `fusion_fc.*`, `transformer.*`, `lm_head.weight` | eagle |
| EAGLE-3 | `fc.weight`, `midlayer.*`, `norm.weight`, `lm_head.weight`, `d2t`, `t2d` | eagle3 |
| speculators, eagle3 | the same with `layers.0.*`, and `embed_tokens.weight` | eagle3 |
| DFlash, speculators, dflash | `fc.weight`, `hidden_norm.weight`, `layers.{i}.*` | dflash |
| MTP in a target's file | `model.layers.{L}.*`, among them `enorm`, `hnorm`, `eh_proj` | mtp |

Variants with other forwards are recognised and refused.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from itertools import product
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from specscope.engine.errors import ModelError, plain_name
from specscope.engine.heads.config import LAYER_FIELDS, MOST, HeadConfig, TensorShapes, layer_shape
from specscope.engine.model.fields import LAYER_TYPES, READ, check_value
from specscope.engine.schema import Range, Whole, fits

QKV_BIAS = "layers.0.self_attn.q_proj.bias"
DFLASH = "hidden_norm.weight"
"""A tensor that only a DFlash drafter has."""
QK_NORM = "layers.0.self_attn.q_norm.weight"
_REFUSED = {
    "prefix_embeding_layer": "a Hydra++ head ({}), which cannot be run yet; use Hydra's mlp heads",
    "mask_hidden": "a P-EAGLE head ({}), which cannot be run yet; use an EAGLE-3 head",
    "fc_norm": "an EAGLE-3 head with norms before fc ({}), which cannot be run yet; use one without",
    "input_norm.": "an EAGLE-3 head with a norm before fc ({}), which cannot be run yet; use one without",
}
"""Heads that cannot be run, by a prefix of a tensor's name."""
_SHARED = re.compile(
    r"(model\.)?embed_tokens\.weight|lm_head\.weight|input_embed_fn\.weight|.*rotary_emb\.inv_freq"
    r"|verifier_(norm|lm_head)\.weight"
)
"""Tensors that a head shares with its target, and buffers of old checkpoints."""
_WHOLE_MODEL = ("model_type", "architectures", "num_hidden_layers", "tokenizer_class")
"""Fields of a published head's config that describe the whole model."""


class Published(NamedTuple):
    """A head's config, and where its tensors are in the file."""

    config: HeadConfig
    names: dict[str, str]
    """SpecScope's name of each tensor -> its name in the file."""


_OTHER_DRAFTERS = re.compile(r"d-?flash-?2?|d-?spark|mtp|next-?n|domino|p-?eagle", re.IGNORECASE)
"""Drafters by the names that their configs give them."""
_RUN = re.compile(r"dflash", re.IGNORECASE)
"""Of these, the one that can be run."""


def check_supported(path: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> None:
    """Check that a published head is of no other kind, and no tensor of an unsupported variant."""
    speculators = raw.get("speculators_config")
    algorithm = speculators.get("algorithm") if isinstance(speculators, dict) else None
    families: Any = raw.get("architectures")
    named = (raw.get("speculators_model_type"), algorithm, *(families if isinstance(families, list) else ()))
    for name in (name for name in (*named, raw.get("model_type")) if isinstance(name, str)):
        found = _OTHER_DRAFTERS.search(name)
        if found and not (_RUN.fullmatch(found[0]) and DFLASH in shapes):
            raise ModelError(
                f"{path} is a drafter of the kind {found[0]} ({plain_name(name)}), which cannot be run yet; known are "
                "Medusa, Hydra, EAGLE, DFlash and speculators"
            )
    if bare := [name for name, shape in shapes.items() if not shape and not is_redundant(name)]:
        raise ModelError(f"{path}: {plain_name(bare[0])} is a single number; no tensor of a head is one")
    for name, (prefix, variant) in product(shapes, _REFUSED.items()):
        if name.startswith(prefix):
            raise ModelError(f"{path} is {variant.format(plain_name(name))}")


def is_redundant(name: str) -> bool:
    """Return whether a published tensor is not read: the target has it, or others imply it."""
    return bool(_SHARED.fullmatch(name)) or name.startswith("model.") or name == "t2d"


def layer_config(
    path: Path,
    raw: Mapping[str, Any],
    names: Iterable[str],
    head: str = "an EAGLE head",
    *,
    deep: bool = False,
) -> dict[str, Any]:
    """Return the `LAYER_FIELDS` and the vocab_size of a head's decoder layer, and its windows.

    `deep` heads may have several layers, with a window each.
    """
    file, sizes = path / "config.json", raw.get("transformer_layer_config", raw)
    check_value(sizes, dict, f"{file}: transformer_layer_config")
    needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    if missing := [name for name in needed if sizes.get(name) is None]:
        raise ModelError(f"{file} lacks {', '.join(missing)}, which {head} needs")
    if deeper := not deep and [name for name in names if re.match(r"layers\.[1-9]", name)]:
        raise ModelError(f"{path} has {plain_name(deeper[0])}: an EAGLE head has one decoder layer")
    layer_types = sizes.get("layer_types") or []
    check_value(layer_types, list, f"{file}: layer_types")
    if "sliding_attention" in layer_types and not deep:
        raise ModelError(f"{file}: layer_types holds sliding_attention, which a head cannot have yet")
    left_out = (*_WHOLE_MODEL, *(("layer_types", "sliding_window") if deep else ()))
    fields = {name: sizes[name] for name in READ if name in sizes and name not in left_out}
    try:
        layer_shape(fields)
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None
    from transformers import LlamaConfig

    layer = LlamaConfig(**fields)
    found = {name: getattr(layer, name) for name in (*LAYER_FIELDS, "vocab_size")}
    return found | {"windows": _windows(file, sizes, layer_types) if deep else (0,)}


def _windows(file: Path, sizes: Mapping[str, Any], layer_types: list[Any]) -> tuple[int, ...]:
    """Return the window of each layer, 0 for none."""
    layers: Any = sizes.get("num_hidden_layers")
    kinds = layer_types or ["full_attention"] * (layers if type(layers) is int and 0 < layers <= MOST else 0)
    if len(kinds) != layers or any(kind not in LAYER_TYPES for kind in kinds):
        raise ModelError(
            f"{file}: num_hidden_layers is {reprlib.repr(layers)}, layer_types {reprlib.repr(layer_types)}; each of at "
            f"least 1 and at most {MOST} layers must be one of {', '.join(LAYER_TYPES)}"
        )
    window: Any = sizes.get("sliding_window") or 0
    if "sliding_attention" in kinds:
        check_value(
            window, Annotated[int, Range(1, inf)], f"{file}: sliding_window", "a whole number of at least 1"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def states_read(file: Path, name: str, ids: Any, offset: int) -> tuple[int, ...]:
    """Return the `HeadConfig.features` that the field `name` of a published config lists."""
    if not ids or not fits(ids, list[Annotated[int, Range(-offset, inf)]]):
        raise ModelError(f"{file}: {name} is {reprlib.repr(ids)}; it must be a list of layers")
    return tuple(i + offset for i in ids)


def vocab_size(path: Path, raw: Mapping[str, Any]) -> int:
    vocab: Any = raw.get("vocab_size", 0)
    check_value(vocab, Whole, f"{path / 'config.json'}: vocab_size", "a whole number of at least 0")
    return vocab


def target_name(raw: Mapping[str, Any]) -> str:
    speculators = raw.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    source, key = (
        (verifier, "name_or_path") if isinstance(verifier, dict) else (raw, "base_model_name_or_path")
    )
    name = source.get(key)
    return plain_name(name) if isinstance(name, str) else ""
