"""Cards and shapes of models that a profile names: `assets/gpus.toml`, `assets/shapes.toml`.

A shape is also the path of a config.json, or the keys of a profile's `[models.NAME]` themselves.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from specscope.engine.errors import UsageError, plain_name, shown
from specscope.engine.model.families import Mixture
from specscope.engine.model.shape import ModelShape
from specscope.engine.simulate.roofline import PublishedModel

_FOLDER = Path(__file__).parents[2] / "assets"


@cache
def data(name: str) -> dict[str, Any]:
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def with_card(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile's `[hardware]` with the numbers of the card and the engine that it names."""
    own, gpus, found = dict(table), data("gpus"), dict[str, Any]()
    if "card" in own:
        found = dict(_one_of(gpus["cards"], own.pop("card"), "hardware.card"))
        found |= gpus["links"][found.pop("link")] | gpus["engines"]["graphs"]
    if "engine" in own:
        found |= _one_of(gpus["engines"], own.pop("engine"), "hardware.engine")
    return found | own


def with_shape(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a profile's `[models.NAME]` with the sizes of the shape that it names."""
    own = dict(table)
    if "shape" not in own:
        return own
    name = own.pop("shape")
    if isinstance(name, str) and name.endswith(".json"):
        return {**_of_config(Path(name), where), **own}
    return {**_one_of(data("shapes"), name, f"{where}shape", " or the path of a config.json"), **own}


def _one_of(table: Mapping[str, Any], name: object, where: str, other: str = "") -> dict[str, Any]:
    if not isinstance(name, str) or name not in table:
        raise UsageError(f"{where} is {shown(name)}; choose one of {', '.join(table)}{other}")
    return table[name]


def _of_config(path: Path, where: str) -> dict[str, Any]:
    from specscope.engine.checkpoints.sizes import shape_of  # torch takes seconds

    if not path.is_file():
        raise UsageError(f"{where}shape is {shown(str(path))}; there is no such file")
    shape = shape_of(path)
    sizes: dict[str, Any] = {"layers": shape.layers, "dim": shape.width, "ffn": shape.inner}
    sizes |= {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
    sizes |= {"vocab": shape.vocab, "tied": shape.tied, "gated": shape.gated}
    if (mixture := shape.mixture) is not None:
        if not all(mixture.layers) or mixture.shared:
            raise UsageError(
                f"{path}: some layers have no experts, or an expert that computes all rows; a profile's mixture has the "
                "same experts in all layers: give layers, dim and ffn instead of the shape"
            )
        sizes |= {"experts": mixture.experts, "experts_per_token": mixture.used, "expert_ffn": mixture.inner}
    return {"title": plain_name(path.parent.name or path.stem), "source": str(path), **sizes}


def model_shape(model: PublishedModel) -> ModelShape:
    """Return a profile's model as a decoder's shape, from which the bytes of its parts follow."""
    layers, mixture = model.layers, None
    if model.experts:
        sizes = model.experts, model.experts_per_token, model.expert_ffn
        mixture = Mixture(*sizes, normalised=True, layers=(True,) * layers)
    sharing = max(1, round(model.attention_width / (model.head_dim * model.kv_heads)))
    return ModelShape(
        layers=layers,
        width=model.dim,
        heads=sharing * model.kv_heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        inner=model.ffn,
        vocab=model.vocab,
        context=1,
        eps=0.0,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        tied=model.tied,
        windows=(None,) * layers,
        frequencies=(),
        rope_scale=1.0,
        gated=model.gated,
        mixture=mixture,
    )
