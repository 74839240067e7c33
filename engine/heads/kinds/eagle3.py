"""EAGLE-3 (Li et al. 2025, section 3.1): EAGLE's layer on states of several target layers.

g_t is the concatenation of k states at token t, (k D), by default of a low, a middle and a high
layer. `fc` maps it to one vector. The attention of the row of token j reads [E(x_j); fc g_(j-1)],
each normed; the layer's output, before the last norm, replaces fc g_j in the row after a drafted
token j. Norm and LM head are the head's own.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specscope.engine.errors import ModelError
from specscope.engine.heads import modules
from specscope.engine.heads.config import LAYER_FIELDS, HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Head, HeadLayer
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.packed import PackedLayer, TrainableNorm
from specscope.engine.heads.published import QKV_BIAS, Published, layer_config, states_read, target_name
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.weights import Norm

STATES = 3
"""States of the target that a head reads if its config does not list them."""
_NAMES = ("midlayer.", "d2t", "t2d", "hidden_norm.")
_UNSUPPORTED = ("norm_before_fc", "fc_norm", "norm_output")
"""Fields of a published config that cannot be true."""
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def _check(config: HeadConfig) -> None:
    config.check()
    config.check_features()
    config.layer()


def _layer(config: HeadConfig) -> ModelShape:
    return config.layer(final_norm=True)


def _state_count(config: HeadConfig) -> int:
    return len(config.features) or STATES


def _for_target(config: HeadConfig, layers: int) -> HeadConfig:
    default = (2, layers // 2, layers - 3)
    if not config.features and list(default) != sorted(default):
        raise ModelError(
            f"it reads the states after layers 2, L / 2 and L - 3 of a target of L layers; there are {layers}, at least 5 are "
            "needed: name others in its config, as eagle_aux_hidden_state_layer_ids"
        )
    features = config.features or default
    if max(features) > layers:
        raise ModelError(f"it reads the state after layer {max(features)}; the target has {layers} layers")
    return replace(config, features=features)


def matches(names: Collection[str]) -> bool:
    return any(part in name for name in names for part in _NAMES)


def _read(path: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> Published:
    names = {re.sub(r"^midlayer\.", "layers.0.", name): name for name in shapes}
    layer, file = layer_config(path, raw, names), path / "config.json"
    for flag in _UNSUPPORTED:
        if raw.get(flag) or _nested(raw).get(flag):
            raise ModelError(
                f"{file}: {flag} is true, which cannot be run yet; use an EAGLE-3 head without it"
            )
    width, vocab = layer["hidden_size"], layer["vocab_size"]
    if (target_width := raw.get("target_hidden_size") or width) != width:
        raise ModelError(
            f"{file}: target_hidden_size is {reprlib.repr(target_width)}; it must be the head's own hidden_size, {width}"
        )
    draft_vocab = (shapes.get("lm_head.weight") or (0,))[0]
    config = HeadConfig(
        "eagle3",
        width,
        vocab,
        features=_states(file, raw),
        shape={name: layer[name] for name in LAYER_FIELDS},
        target=target_name(raw),
        qkv_bias=QKV_BIAS in names,
        draft_vocab=draft_vocab if "d2t" in names or draft_vocab != vocab else 0,
        own_embedding="embed_tokens.weight" in names,
        norm_before_residual=raw.get("norm_before_residual", False),
    )
    return Published(config, names)


def _nested(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = raw.get("eagle_config")
    return nested if isinstance(nested, dict) else {}


def _states(file: Path, raw: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the `HeadConfig.features` of a published head; empty if its config does not list them.

    Speculators and vLLM number the layers whose inputs are read, SpecForge and SGLang those whose
    outputs are.
    """
    for fields, offset in ((raw, 0), (_nested(raw), 1)):
        if (ids := fields.get(_LAYER_IDS)) is not None:
            return states_read(file, _LAYER_IDS, ids, offset)
    return ()


def _work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - a forward per level
    shape = _layer(config)
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim / shape.width  # extra columns, in D x D
    return Work(1, qkv + (0 if number else _state_count(config)), modules.vocabulary_share(config))


class Eagle3(nn.Module):
    """The layer with its own LM head; it is used as published, and not trained here."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        shape, d = _layer(config), config.hidden_size
        self.config = config
        self.fc = nn.Linear(_state_count(config) * d, d, bias=False)
        layer = PackedLayer(shape, 2 * d)
        layer.input_layernorm, layer.hidden_norm = TrainableNorm(d, shape.eps), TrainableNorm(d, shape.eps)
        self.layers = nn.ModuleList([layer])
        self.norm = TrainableNorm(d, shape.eps)
        self.lm_head = nn.ParameterDict({"weight": torch.empty(config.drafted, d)})
        if config.own_embedding:
            self.embed_tokens = nn.ParameterDict({"weight": torch.empty(config.vocab_size, d)})
        self._norms: list[Any] = [layer.input_layernorm, layer.hidden_norm]

    def inputs(self, _: Tensor, embedded: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        embedding_norm, vector_norm = self._norms
        normed = vector_norm(vectors)
        residual = normed if self.config.norm_before_residual else vectors.clone()
        return residual, torch.cat([embedding_norm(embedded), normed], 1)

    def serve(self, target: Decoder, d2t: Tensor | None) -> Head:
        config, shape = self.config, _layer(self.config)
        self._norms = [Norm(norm.weight.detach(), shape.eps) for norm in self._norms]
        (lm_head,), columns = modules.own_lm_heads([self.lm_head["weight"]], d2t)
        embedding = self.embed_tokens["weight"].detach() if config.own_embedding else target.embedding
        decoder = modules.decoder_layer(self, shape, (embedding, lm_head))
        layer = HeadLayer(decoder, exact=_work(config, 1, 0), guessed=_work(config, 2, 1), fuse=self.fc)
        del self.lm_head
        return Head(columns, modules.draft_with_states, layer, keeps=(1,))


KIND = Kind(
    module=Eagle3,
    check=_check,
    work=_work,
    layered=True,
    serves="eagle",
    published=PublishedForm(matches, _read),
    for_target=_for_target,
)
