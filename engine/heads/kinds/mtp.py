"""MTP (DeepSeek-V3, section 2.2): the target's own layer for the next token but one, chained.

`fc` (published as eh_proj) maps [enorm E(x_j); hnorm f_(j-1)] to the input of a layer of the
target's kind. Its output, normed, is read by the target's LM head, and by the row of the next
drafted token in place of f_j: EAGLE's layer with norms. A checkpoint's one layer drafts any number
of tokens. Of several layers each drafts its own place: row j of layer k, from 0, reads E(x_(j+k))
and the output of row j of layer k - 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from specscope.engine.checkpoints.config import read_config
from specscope.engine.errors import ModelError, plain_name
from specscope.engine.heads import modules
from specscope.engine.heads.config import MOST, HeadConfig, TensorShapes, layer_fields
from specscope.engine.heads.drafting import Head
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.kinds.eagle import EagleLayer, check, work
from specscope.engine.heads.published import QK_NORM, QKV_BIAS, Published
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape

_NAMES = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "fc", "shared_head.norm": "norm"}
_SHARED = ("embed_tokens", "shared_head.head")
"""Parts of a published layer that are the target's."""


class MtpLayers(nn.Module):
    """A layer for each place of a draft."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        one = replace(config, heads=0)
        self.places = nn.ModuleList(EagleLayer(one, normed=True) for _ in range(config.heads))

    def serve(self, target: Decoder, d2t: Tensor | None) -> Head:
        first, *further = [
            place.serve_with(target, d2t, modules.draft_with_states, (-1,))  # type: ignore[operator]
            for place in self.places
        ]
        return replace(first, further=tuple(further))


def _module(config: HeadConfig) -> nn.Module:
    return MtpLayers(config) if config.heads else EagleLayer(config, normed=True)


def _check(config: HeadConfig) -> None:
    check(config)
    config.check(heads=(0, MOST))


def _matches(names: Collection[str]) -> bool:
    return any(name.endswith(".enorm.weight") for name in names)


def _read(path: Path, _: Mapping[str, Any], shapes: TensorShapes) -> Published:
    """Read the layers after a target's last one, from the target's checkpoint."""
    file, config = path / "config.json", read_config(path)
    shape = ModelShape.of(config, file)
    shape.check_llama(file)
    found = {name.removesuffix("enorm.weight") for name in shapes if name.endswith(".enorm.weight")}
    layers = [f"model.layers.{shape.layers + place}." for place in range(len(found))]
    if wrong := sorted(found - {*layers}):
        raise ModelError(
            f"{path} has {len(found)} layers for drafting (MTP), among them {plain_name(wrong[0])}; the first must be "
            f"{layers[0]} and the others follow it"
        )
    if len(layers) > MOST:
        raise ModelError(f"{path} has {len(layers)} layers for drafting (MTP); at most {MOST} can be run")
    names = dict[str, str]()
    for place, layer in enumerate(layers):
        within = f"places.{place}." if len(layers) > 1 else ""
        for name in (stored for stored in shapes if stored.startswith(layer)):
            part, kind = name.removeprefix(layer).rsplit(".", 1)
            if part not in _SHARED:
                ours = _NAMES.get(part, f"layers.0.{part}")
                names[f"{within}{ours}.{kind}"] = name
    head = HeadConfig(
        "mtp",
        shape.width,
        shape.vocab,
        shape=layer_fields(config),
        heads=len(layers) if len(layers) > 1 else 0,
        qkv_bias=any(name.endswith(QKV_BIAS) for name in names),
        qk_norm=any(name.endswith(QK_NORM) for name in names),
        windows=(shape.windows[-1] or 0,),
    )
    if unknown := [name for ours, name in names.items() if ours not in KIND.tensors(head)]:
        raise ModelError(
            f"{path}: {plain_name(unknown[0])} is unknown to a layer for drafting (MTP), which cannot be run yet"
        )
    return Published(head, names)


KIND = Kind(
    module=_module,
    check=_check,
    work=work,
    layered=True,
    published=PublishedForm(_matches, _read),
    in_target=True,
    scaled=True,
)
