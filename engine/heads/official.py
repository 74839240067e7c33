"""Published drafting heads, told apart by the names and shapes of their tensors, and their names in SpecScope's form.

| published as | its tensors | becomes |
|---|---|---|
| Medusa-1 | `{i}.{j}.linear.*`, `{i}.{n}.weight` | medusa |
| Medusa-2 | the same behind `medusa_head.`, beside a whole model | medusa |
| Hydra | `hydra_mlp.{i}.{m}.*`, m even or odd; `hydra_lm_head.{i}.*` | hydra |
| EAGLE-1, EAGLE-2 | `fc.*`, `layers.0.*`, `embed_tokens.weight` | eagle |
| speculators, eagle | `fusion_fc.*`, `transformer.*`, `lm_head.weight` | eagle |

Hydra++ (`prefix_embeding_layer`), EAGLE-3 (`midlayer`, `d2t`) and speculators with norms of their own are recognised and
refused: their forwards are others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.errors import ModelError
from engine.heads.form import LAYER, HeadConfig, layer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Shapes = dict[str, tuple[int, ...]]
_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.weight")
_HYDRA = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(.+)")
_HYDRA_HEAD = re.compile(r"hydra_lm_head\.(\d+)\.(?:(\d+)\.)?(weight|bias)")
_EAGLE_3 = ("midlayer.", "d2t", "t2d", "hidden_norm.")
_SHARED = re.compile(
    r"(model\.)?embed_tokens\.weight|lm_head\.weight|input_embed_fn\.weight|.*rotary_emb\.inv_freq"
)
"""What the target lends to its head, and what old checkpoints hold besides."""
_LABELS = ("model_type", "architectures", "auto_map", "torch_dtype", "dtype", "transformers_version")


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
    if any(part in name for name in shapes for part in _EAGLE_3):
        raise ModelError(
            f"{path} is an EAGLE-3 head, which cannot be run yet; use an EAGLE-1 or EAGLE-2 head"
        )
    if any(name.startswith("prefix_embeding_layer.") for name in shapes):
        raise ModelError(
            f"{path} is a Hydra++ head (prefix_embeding_layer), which cannot be run yet; use Hydra's mlp heads"
        )
    readers: tuple[
        tuple[Callable[[str], object], Callable[[Path, Mapping[str, Any], Shapes], Published]], ...
    ] = (
        (lambda name: name.startswith("medusa_head."), _medusa),
        (_BLOCK.fullmatch, _medusa),
        (_HYDRA.fullmatch, _hydra),
        (lambda name: name in ("fc.weight", "fusion_fc.weight"), _eagle),
    )
    for fits, read in readers:
        if any(fits(name) for name in shapes):
            return read(path, raw, shapes)
    some = ", ".join(sorted(shapes)[:3]) or "none"
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
    vocab = shapes[names[f"0.{layers}.weight"]][0] if own else int(raw.get("vocab_size", 0))
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
        max((shapes[found[0]][0] for found in own), default=int(raw.get("vocab_size", 0))),
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
    sizes = dict(raw.get("transformer_layer_config", raw))
    needed = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    if missing := [name for name in needed if not isinstance(sizes.get(name), int)]:
        raise ModelError(f"{path / 'config.json'} lacks {', '.join(missing)}, which an EAGLE head says there")
    if any(layers := [name for name in names if re.match(r"layers\.[1-9]", name)]):
        raise ModelError(f"{path} has {layers[0]}: an EAGLE head has one decoder layer")
    fields = {name: value for name, value in sizes.items() if name not in _LABELS}
    try:
        layer_of(fields)
    except ModelError as error:
        raise ModelError(f"{path / 'config.json'}: {error}") from None
    from transformers import LlamaConfig

    layer = LlamaConfig(**fields)
    config = HeadConfig(
        "eagle",
        layer.hidden_size,
        layer.vocab_size,
        shape={name: getattr(layer, name) for name in LAYER},
        target=_target(raw),
        biased="fc.bias" in names,
    )
    return Published(config, names)


def is_needless(name: str) -> bool:
    """Return whether a tensor of a published head is its target's own, or computed anew: it is not read."""
    return bool(_SHARED.fullmatch(name)) or name.startswith("model.")


def _target(raw: Mapping[str, Any]) -> str:
    """Return the name of the target a published head was made for; empty where it does not say."""
    speculators = raw.get("speculators_config")
    if isinstance(speculators, dict):
        return str(speculators.get("verifier", {}).get("name_or_path", ""))
    return str(raw.get("base_model_name_or_path", ""))
