"""MTP (DeepSeek-V3, section 2.2): the target's own layer for the next token but one, chained.

`fc` (published as eh_proj) maps [enorm E(x_j); hnorm f_(j-1)] to the input of a layer of the
target's kind. Its output, normed, is read by the target's LM head, and by the row of the next
drafted token in place of f_j: EAGLE's layer with norms. A checkpoint's one layer drafts any number
of tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from specscope.engine.checkpoints.config import read_config
from specscope.engine.errors import ModelError, plain_name
from specscope.engine.heads.config import HeadConfig, TensorShapes, layer_fields
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.kinds.eagle import EagleLayer, check, work
from specscope.engine.heads.published import QK_NORM, QKV_BIAS, Published
from specscope.engine.model.shape import ModelShape

_NAMES = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "fc", "shared_head.norm": "norm"}
_SHARED = ("embed_tokens", "shared_head.head")
"""Parts of a published layer that are the target's."""


def _matches(names: Collection[str]) -> bool:
    return any(name.endswith(".enorm.weight") for name in names)


def _read(path: Path, _: Mapping[str, Any], shapes: TensorShapes) -> Published:
    """Read the layer after a target's last one, from the target's checkpoint."""
    file, config = path / "config.json", read_config(path)
    shape = ModelShape.of(config, file)
    shape.check_llama(file)
    layers = sorted(name.removesuffix("enorm.weight") for name in shapes if name.endswith(".enorm.weight"))
    if layers != [f"model.layers.{shape.layers}."]:
        raise ModelError(
            f"{path} has {len(layers)} layers for drafting (MTP), the first is {plain_name(layers[0])}; one can be run, "
            f"model.layers.{shape.layers}."
        )
    names = dict[str, str]()
    for name in (stored for stored in shapes if stored.startswith(layers[0])):
        part, kind = name.removeprefix(layers[0]).rsplit(".", 1)
        if part not in _SHARED:
            names[f"{_NAMES[part]}.{kind}" if part in _NAMES else f"layers.0.{part}.{kind}"] = name
    head = HeadConfig(
        "mtp",
        shape.width,
        shape.vocab,
        shape=layer_fields(config),
        qkv_bias=QKV_BIAS in names,
        qk_norm=QK_NORM in names,
        windows=(shape.windows[-1] or 0,),
    )
    if unknown := [name for ours, name in names.items() if ours not in KIND.tensors(head)]:
        raise ModelError(
            f"{path}: {plain_name(unknown[0])} is unknown to a layer for drafting (MTP), which cannot be run yet"
        )
    return Published(head, names)


KIND = Kind(
    module=partial(EagleLayer, normed=True),
    check=check,
    work=work,
    layered=True,
    published=PublishedForm(_matches, _read),
    in_target=True,
    scaled=True,
)
