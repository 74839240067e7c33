"""DFlash (Chen et al. 2026): a block drafter that reads the target's states as keys and values.

g_t is the concatenation of k states at token t. c_t = norm(fc g_t) gives the keys and values of
position t in every layer. A block is the last token and a mask for each drafted place; its rows
read all c and, in both directions, each other. The output of mask i, normed, is read by the LM
head: it drafts the i-th token. One forward drafts all of them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specscope.engine.errors import ModelError
from specscope.engine.heads import modules, packed
from specscope.engine.heads.config import LAYER_FIELDS, MOST, HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Head, HeadForwards, HeadLayer, LevelLogits
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.published import (
    DFLASH,
    QK_NORM,
    QKV_BIAS,
    Published,
    layer_config,
    states_read,
    target_name,
)
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.fields import check_value
from specscope.engine.model.shape import ModelShape
from specscope.engine.schema import Whole

_UNSUPPORTED = {"is_causal": True, "sample_from_anchor": True, "projector_type": "domino"}
"""Values of a published config whose forwards are others."""
_PLAIN = {"final_logit_softcapping": None, "output_multiplier": 1.0}
"""Fields of a published config that must have these values."""


def _check(config: HeadConfig) -> None:
    config.check(block=(1, MOST))
    config.check(mask_token=(-1, config.vocab_size - 1))
    config.check_features(least=-1)
    if not config.features:
        raise ModelError(f"features is []; it must name at least one state of the target, and at most {MOST}")
    _shape(config)


def _shape(config: HeadConfig) -> ModelShape:
    shape = config.layer(input_norm=True, final_norm=True)
    return replace(shape, block="unlimited" if config.causal else "all")


def _for_target(config: HeadConfig, layers: int) -> HeadConfig:
    if max(config.features) > layers:
        raise ModelError(
            f"it reads the state after layer {max(config.features)}; the target has {layers} layers"
        )
    return replace(config, features=tuple(-1 if i == layers else i for i in config.features))


def _trained(shape: ModelShape) -> dict[str, Any]:
    return {"features": (shape.layers // 2, -1), "qk_norm": True}


def _matches(names: Collection[str]) -> bool:
    return DFLASH in names


def _read(path: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> Published:
    """Read z-lab's form, a `DFlashDraftModel`, or that of speculators.

    z-lab numbers the layers whose outputs are read, speculators those whose inputs are.
    """
    file, own = path / "config.json", raw.get("dflash_config") or {}
    given = {**raw, **own} if isinstance(own, dict) else raw
    layer = layer_config(path, raw, shapes, "a DFlash drafter", deep=True)
    wrong = [name for name, value in _UNSUPPORTED.items() if given.get(name) == value]
    wrong += [name for name, value in _PLAIN.items() if given.get(name, value) not in (value, None)]
    if (given.get("target_hidden_size") or layer["hidden_size"]) != layer["hidden_size"]:
        wrong.append("target_hidden_size")
    for name in wrong:
        raise ModelError(f"{file}: {name} is {reprlib.repr(given[name])}, which cannot be run yet")
    for name in ("block_size", "mask_token_id"):
        check_value(given.get(name), Whole, f"{file}: {name}", "a number")
    speculators = "aux_hidden_state_layer_ids" in raw
    read = "aux_hidden_state_layer_ids" if speculators else "target_layer_ids"
    config = HeadConfig(
        "dflash",
        layer["hidden_size"],
        layer["vocab_size"],
        features=states_read(file, read, given.get(read), 0 if speculators else 1),
        shape={name: layer[name] for name in LAYER_FIELDS},
        target=target_name(raw),
        qkv_bias=QKV_BIAS in shapes,
        qk_norm=QK_NORM in shapes,
        draft_vocab=shapes["d2t"][0] if len(shapes.get("d2t", ())) == 1 else 0,
        own_lm_head="d2t" in shapes and "lm_head.weight" in shapes,
        block=given["block_size"] - 1,
        windows=layer["windows"],
        causal=not given.get("sliding_window_non_causal") if speculators else given.get("is_causal") is None,
        embedding_scale=given.get("input_embedding_scale", 1.0),
        mask_token=given["mask_token_id"],
    )
    return Published(config, {name: name for name in shapes})


def _work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - one forward
    return Work(len(config.windows), len(config.features), modules.vocabulary_share(config))


class DFlash(nn.Module):
    """The layers, and the mask's vector unless a token of the target is the mask."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        shape, d = _shape(config), config.hidden_size
        self.config = config
        self.fc = nn.Linear(len(config.features) * d, d, bias=False)
        self.hidden_norm = packed.TrainableNorm(d, shape.eps)
        self.layers = nn.ModuleList(packed.PackedLayer(shape) for _ in config.windows)
        self.norm = packed.TrainableNorm(d, shape.eps)
        packed.init_matrices(self)
        learned = config.mask_token < 0  # small: what attention adds must not be lost in it
        self.noise = nn.ParameterDict({"embedding": 0.02 * torch.randn(1, d)} if learned else {})
        if config.own_lm_head:
            self.lm_head = nn.ParameterDict({"weight": torch.empty(config.drafted, d)})

    def fuse(self, states: Tensor) -> Tensor:
        return self.hidden_norm(self.fc(states))

    def inputs(self, numbers: Tensor, embedded: Tensor, _: Tensor) -> tuple[Tensor, None]:
        scaled = embedded * self.config.embedding_scale
        return modules.replace_masks(numbers, scaled, self.noise.get("embedding")), None

    def blocks(self, texts: packed.Texts, count: int) -> list[Tensor]:
        """Return the states of each of `count` masks after every anchor, (A, D) each.

        The rows of a group are a state of the target, the last token, and the masks.
        """
        rows = packed.pack(texts, count + 1, within=False)
        given = (rows.numbers == 0)[:, None]
        known = texts.features if texts.states is None else texts.states
        read = self.fuse(known[rows.tokens - 1])
        x, _ = self.inputs((rows.numbers - 1).clamp(0, 1), texts.embedded[rows.tokens], read)
        rows = packed.with_blocks(rows)
        for layer in self.layers:
            x = layer(x, torch.where(given, read, layer.input_layernorm(x)), rows)  # type: ignore[operator]
        states = self.norm(x)
        return [states[packed.rows_of_anchors(texts, rows, k + 2)] for k in range(count)]

    def learn(self, texts: packed.Texts) -> list[packed.Learned]:
        """Return the states of the masks whose token is in the text."""
        learned = list[packed.Learned]()
        for k, states in enumerate(self.blocks(texts, self.config.block), 1):
            inside = torch.from_numpy(np.isin(texts.anchors, texts.anchors_with(k)))
            learned.append(packed.Learned(states[inside], texts.anchor_tensor(k) + k))
        return learned

    def draft(self, texts: packed.Texts, frozen: packed.Frozen, count: int) -> Tensor:
        return torch.stack([frozen.draft_best(states) for states in self.blocks(texts, count)], 1)

    def serve(self, target: Decoder, d2t: Tensor | None) -> Head:
        if self.config.own_lm_head:
            (lm_head,), columns = modules.own_lm_heads([self.lm_head["weight"]], d2t)
            del self.lm_head
        else:
            lm_head, columns = modules.lent_lm_head(target, d2t)
        decoder = modules.decoder_layer(self, _shape(self.config), (target.embedding, lm_head), masks=1)
        one = _work(self.config, 1, 0)
        draft = partial(_draft_block, mask=self.config.mask_token)
        return Head(columns, draft, HeadLayer(decoder, exact=one, guessed=one, fuse=self.fuse))


def _draft_block(forwards: HeadForwards, mask: int) -> LevelLogits:
    return modules.draft_at_once(lambda trees: forwards.block(trees, mask))


KIND = Kind(
    module=DFlash,
    check=_check,
    work=_work,
    layered=True,
    sized_by="block",
    published=PublishedForm(_matches, _read),
    for_target=_for_target,
    trained=_trained,
    scaled=True,
)
