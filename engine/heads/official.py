"""Published drafting heads, told apart by the names and shapes of their tensors, and their names in SpecScope's form.

| published as | its tensors | becomes |
|---|---|---|
| Medusa-1 | `{i}.{j}.linear.*`, `{i}.{n}.weight` | medusa |
| Medusa-2 | the same behind `medusa_head.`, beside a whole model | medusa |
| Hydra | `hydra_mlp.{i}.{m}.*`, m even or odd; `hydra_lm_head.{i}.*` | hydra |
| EAGLE-1, EAGLE-2 | `fc.*`, `layers.0.*`, `embed_tokens.weight` | eagle |
| speculators, eagle | `fusion_fc.*`, `transformer.*`, `lm_head.weight` | eagle |
| EAGLE-3 | `fc.weight`, `midlayer.*`, `norm.weight`, `lm_head.weight`, `d2t`, `t2d` | eagle3 |
| speculators, eagle3 | the same with `layers.0.*`, and `embed_tokens.weight` | eagle3 |

Variants whose forwards are others (`_REFUSED`, `_FLAGS`) are recognised and refused.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError, plain_name
from engine.heads.form import LAYER, HeadConfig, layer_of
from engine.model.fields import READ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Shapes = dict[str, tuple[int, ...]]
_BLOCK = re.compile(r"([0-9]{1,12})\.([0-9]{1,12})\.linear\.weight")
_HYDRA = re.compile(r"hydra_mlp\.([0-9]{1,12})\.([0-9]{1,12})\.(.+)")
_HYDRA_HEAD = re.compile(r"hydra_lm_head\.([0-9]{1,12})\.(?:([0-9]{1,12})\.)?(weight|bias)")
_EAGLE_3 = ("midlayer.", "d2t", "t2d", "hidden_norm.")
_REFUSED = {
    "prefix_embeding_layer": "a Hydra++ head ({}), which cannot be run yet; use Hydra's mlp heads",
    "mask_hidden": "a P-EAGLE head ({}), which cannot be run yet; use an EAGLE-3 head",
    "fc_norm": "an EAGLE-3 head with norms before fc ({}), which cannot be run yet; use one without",
    "input_norm.": "an EAGLE-3 head with a norm before fc ({}), which cannot be run yet; use one without",
}
"""What a head is, by a part of a tensor's name."""
_FLAGS = ("norm_before_fc", "fc_norm", "norm_output")
"""What an EAGLE-3 head's config may ask for that cannot be run."""
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_BIAS = "layers.0.self_attn.q_proj.bias"
_SHARED = re.compile(
    r"(model\.)?embed_tokens\.weight|lm_head\.weight|input_embed_fn\.weight|.*rotary_emb\.inv_freq"
)
"""What the target lends to its head, and what old checkpoints hold besides."""
_LABELS = ("model_type", "architectures", "num_hidden_layers", "tokenizer_class")
"""Fields of a published head's config that describe the whole model."""


@dataclass(frozen=True)
class Published:
    """A published head."""

    config: HeadConfig
    names: dict[str, str]
    """Name in the file of each tensor, by its name in SpecScope's form."""


def recognise(path: Path, raw: Mapping[str, Any], shapes: Shapes) -> Published:
    """Return what a published head is.

    Args:
        path: Names it in errors.
        raw: Its config.json; empty where there is none.
        shapes: Of its tensors, by name.

    Raises:
        ModelError: It is of a kind that is unknown or cannot be run, or its config lacks a size.
    """
    if bare := [name for name, shape in shapes.items() if not shape and not is_needless(name)]:
        raise ModelError(f"{path}: {plain_name(bare[0])} is a single number; no tensor of a head is one")
    for name, (part, what) in product(shapes, _REFUSED.items()):
        if name.startswith(part):
            raise ModelError(f"{path} is {what.format(plain_name(name))}")
    readers: tuple[
        tuple[Callable[[str], object], Callable[[Path, Mapping[str, Any], Shapes], Published]], ...
    ] = (
        (lambda name: name.startswith("medusa_head."), _medusa),
        (_BLOCK.fullmatch, _medusa),
        (_HYDRA.fullmatch, _hydra),
        (lambda name: any(part in name for part in _EAGLE_3), _eagle3),
        (lambda name: name in ("fc.weight", "fusion_fc.weight"), _eagle),
    )
    for fits, read in readers:
        if any(fits(name) for name in shapes):
            return read(path, raw, shapes)
    some = ", ".join(map(plain_name, sorted(shapes)[:3])) or "none"
    raise ModelError(
        f"{path} is no drafting head that is known: its tensors are {some} ...; known are Medusa, Hydra, EAGLE and speculators"
    )


def _medusa(path: Path, raw: Mapping[str, Any], shapes: Shapes) -> Published:
    prefix = "medusa_head." if any(name.startswith("medusa_head.") for name in shapes) else ""
    names = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
    blocks = [tuple(map(int, found.groups())) for found in map(_BLOCK.fullmatch, names) if found]
    if not blocks:
        raise ModelError(f"{path} lacks 0.0.linear.weight, which a Medusa head has")
    heads, layers = (1 + max(column) for column in zip(*blocks, strict=True))
    own = f"0.{layers}.weight" in names
    vocab = shapes[names[f"0.{layers}.weight"]][0] if own else _vocab(path, raw)
    width = shapes[names["0.0.linear.weight"]][0] if "0.0.linear.weight" in names else 0
    config = HeadConfig(
        "medusa", width, vocab, heads=heads, layers=layers, target=_target(raw), own_lm_head=own
    )
    return Published(config, names)


def _hydra(path: Path, raw: Mapping[str, Any], shapes: Shapes) -> Published:
    """A head is a Sequential of blocks; where it drops out, a Dropout stands before each, and numbers are odd."""
    places = [found.groups() for found in map(_HYDRA.fullmatch, shapes) if found]
    heads, numbers = 1 + max(int(i) for i, _, _ in places), sorted({int(m) for _, m, _ in places})
    place = {m: 2 * j + 1 for j, m in enumerate(numbers)}
    names = {f"hydra_mlp.{i}.{place[int(m)]}.{rest}": f"hydra_mlp.{i}.{m}.{rest}" for i, m, rest in places}
    own = [found for found in map(_HYDRA_HEAD.fullmatch, shapes) if found]
    names |= {f"hydra_lm_head.{found[1]}.1.{found[3]}": found[0] for found in own}
    names |= {name: name for name in shapes if name not in names.values()}
    first = names.get("hydra_mlp.0.1.linear.weight")
    if first is None:
        raise ModelError(f"{path} lacks hydra_mlp.0.{numbers[0]}.linear.weight, which a Hydra head has")
    config = HeadConfig(
        "hydra",
        shapes[first][0],
        max((shapes[found[0]][0] for found in own), default=_vocab(path, raw)),
        heads=heads,
        layers=len(numbers),
        target=_target(raw),
        own_lm_head=bool(own),
        biased=any(found[3] == "bias" for found in own),
    )
    return Published(config, names)


def _eagle(path: Path, raw: Mapping[str, Any], shapes: Shapes) -> Published:
    """EAGLE's own names, or those of speculators."""
    names = {
        re.sub(r"^fusion_fc\.", "fc.", re.sub(r"^transformer\.", "layers.0.", name)): name for name in shapes
    }
    layer = _layer(path, raw, names)
    config = HeadConfig(
        "eagle",
        layer["hidden_size"],
        layer["vocab_size"],
        shape={name: layer[name] for name in LAYER},
        target=_target(raw),
        biased="fc.bias" in names,
        qkv_bias=_BIAS in names,
    )
    return Published(config, names)


def _eagle3(path: Path, raw: Mapping[str, Any], shapes: Shapes) -> Published:
    """EAGLE-3's own names, or those of speculators; embeddings are the target's where the file has none."""
    names = {re.sub(r"^midlayer\.", "layers.0.", name): name for name in shapes}
    layer = _layer(path, raw, names)
    for flag in _FLAGS:
        if raw.get(flag) or _nested(raw).get(flag):
            raise ModelError(
                f"{path / 'config.json'}: {flag} is true, which cannot be run yet; use an EAGLE-3 head without it"
            )
    width, vocab = layer["hidden_size"], layer["vocab_size"]
    if (wide := raw.get("target_hidden_size") or width) != width:
        raise ModelError(
            f"{path / 'config.json'}: target_hidden_size is {reprlib.repr(wide)}; it must be the head's own hidden_size, {width}"
        )
    known = (shapes.get("lm_head.weight") or (0,))[0]
    config = HeadConfig(
        "eagle3",
        width,
        vocab,
        features=_states(path, raw),
        shape={name: layer[name] for name in LAYER},
        target=_target(raw),
        qkv_bias=_BIAS in names,
        draft_vocab=known if "d2t" in names or known != vocab else 0,
        own_embedding="embed_tokens.weight" in names,
        norm_before_residual=raw.get("norm_before_residual", False),
    )
    return Published(config, names)


def _nested(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what SpecForge and SGLang say of an EAGLE-3 head in a part of its config."""
    found = raw.get("eagle_config")
    return found if isinstance(found, dict) else {}


def _states(path: Path, raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Return which states of the target an EAGLE-3 head reads, numbered as in `HeadConfig.features`; none where it does not say.

    Speculators and vLLM name the layers that read these states, SpecForge and SGLang those that leave them.
    """
    for part, later in ((raw, 0), (_nested(raw), 1)):
        if (ids := part.get(_LAYER_IDS)) is not None:
            if (
                not isinstance(ids, list)
                or not ids
                or not all(type(i) is int and i + later >= 0 for i in ids)
            ):
                raise ModelError(
                    f"{path / 'config.json'}: {_LAYER_IDS} is {reprlib.repr(ids)}; it must be a list of layers"
                )
            return tuple(i + later for i in ids)
    return ()


def _layer(path: Path, raw: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the sizes of an EAGLE head's layer, the fields of `LAYER` and vocab_size."""
    sizes = raw.get("transformer_layer_config", raw)
    if not isinstance(sizes, dict):
        raise ModelError(
            f"{path / 'config.json'}: transformer_layer_config is {reprlib.repr(sizes)}; it must be an object"
        )
    needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    if missing := [name for name in needed if sizes.get(name) is None]:
        raise ModelError(f"{path / 'config.json'} lacks {', '.join(missing)}, which an EAGLE head says there")
    if any(layers := [name for name in names if re.match(r"layers\.[1-9]", name)]):
        raise ModelError(f"{path} has {plain_name(layers[0])}: an EAGLE head has one decoder layer")
    kinds = sizes.get("layer_types") or []
    if not isinstance(kinds, list):
        raise ModelError(f"{path / 'config.json'}: layer_types is {reprlib.repr(kinds)}; it must be a list")
    if "sliding_attention" in kinds:
        raise ModelError(
            f"{path / 'config.json'}: layer_types holds sliding_attention, which a head cannot have yet"
        )
    fields = {name: sizes[name] for name in READ if name in sizes and name not in _LABELS}
    try:
        layer_of(fields)
    except ModelError as error:
        raise ModelError(f"{path / 'config.json'}: {error}") from None
    from transformers import LlamaConfig

    layer = LlamaConfig(**fields)
    return {name: getattr(layer, name) for name in (*LAYER, "vocab_size")}


def _vocab(path: Path, raw: Mapping[str, Any]) -> int:
    """Return the vocabulary that the config of a head without an LM head names; 0 where it does not."""
    if type(vocab := raw.get("vocab_size", 0)) is not int:
        raise ModelError(
            f"{path / 'config.json'}: vocab_size is {reprlib.repr(vocab)}; it must be a whole number of at least 0"
        )
    return vocab


def is_needless(name: str) -> bool:
    """Return whether a tensor of a published head is its target's own, or follows from others: it is not read."""
    return bool(_SHARED.fullmatch(name)) or name.startswith("model.") or name == "t2d"


def _target(raw: Mapping[str, Any]) -> str:
    """Return the name of the target a published head was made for; empty where it does not say."""
    speculators = raw.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    if isinstance(verifier, dict):
        return _name(verifier.get("name_or_path"))
    return _name(raw.get("base_model_name_or_path"))


def _name(value: Any) -> str:
    return plain_name(value) if isinstance(value, str) else ""
