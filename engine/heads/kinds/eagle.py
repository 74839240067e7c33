"""EAGLE (Li et al. 2024): one decoder layer that predicts the target's next hidden state.

`fc` maps [E(x_j); f_(j-1)] to the layer's input; the layer has no norm before its attention. Its
output is f_j, which the target's LM head reads, and which the row of the next drafted token reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specscope.engine.heads import modules, trainable
from specscope.engine.heads.config import LAYER_FIELDS, HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Head, HeadForwards, HeadLayer, LevelLogits, Take
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.kinds.eagle3 import matches as matches_eagle3
from specscope.engine.heads.published import QKV_BIAS, Published, layer_config, target_name
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows


def check(config: HeadConfig) -> None:
    config.check()
    config.check_reads_last_state()
    config.layer()


def tensors(config: HeadConfig) -> TensorShapes:
    d, bias = config.hidden_size, {"fc.bias": (config.hidden_size,)} if config.biased else {}
    layer = modules.layer_tensors(config.layer())
    return layer | {"fc.weight": (d, 2 * d)} | bias | modules.vocabulary_tensors(config)


def _matches(names: Collection[str]) -> bool:
    return not matches_eagle3(names) and ("fc.weight" in names or "fusion_fc.weight" in names)


def _read(path: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> Published:
    names = {
        re.sub(r"^fusion_fc\.", "fc.", re.sub(r"^transformer\.", "layers.0.", name)): name for name in shapes
    }
    layer = layer_config(path, raw, names)
    config = HeadConfig(
        "eagle",
        layer["hidden_size"],
        layer["vocab_size"],
        shape={name: layer[name] for name in LAYER_FIELDS},
        target=target_name(raw),
        biased="fc.bias" in names,
        qkv_bias=QKV_BIAS in names,
    )
    return Published(config, names)


def load(
    config: HeadConfig,
    take: Take,
    target: Decoder,
    draft: Callable[[HeadForwards], LevelLogits] = modules.draft_with_states,
    keeps: tuple[int, ...] = (-1,),
    masks: Sequence[Tensor | None] = (None, None),
) -> Head:
    lm_head, columns = modules.lent_lm_head(config, take, target)
    fc, (embedding, feature) = modules.linear(take, "fc", bias=config.biased), masks

    def inputs(rows: Rows, e: Tensor) -> tuple[Tensor, None]:
        h = modules.mask_rows(rows, modules.vectors_of(rows), feature)
        return fc(torch.cat([modules.mask_rows(rows, e, embedding), h], 1)), None

    ends, count = (target.embedding, lm_head), 0 if embedding is None else len(embedding)
    decoder = modules.decoder_layer(config.layer(), take, inputs, ends, count)
    layer = HeadLayer(decoder, exact=work(config, 1, 0), guessed=work(config, 2, 1))
    return Head(columns, draft, layer, keeps)


def work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - all forwards are alike
    return Work(1, 2, modules.vocabulary_share(config))


class EagleLayer(nn.Module):
    """The layer in training; it reads embeddings times `scale`, and K masks (ParallelSpec)."""

    def __init__(self, shape: ModelShape, masks: int, scale: float, level: float) -> None:
        super().__init__()
        self._scale = scale
        self.fc = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.layers = nn.ModuleList([trainable.TrainableLayer(shape, input_norm=False)])
        trainable.init_matrices(self)
        self.mask = trainable.mask_vectors(masks, shape.width, level, "embedding", "feature")

    def forward(self, embedded: Tensor, features: Tensor, packed: trainable.Packed) -> Tensor:
        embedded = modules.replace_masks(packed.numbers, embedded * self._scale, self.mask.get("embedding"))
        features = modules.replace_masks(packed.numbers, features, self.mask.get("feature"))
        return self.layers[0](self.fc(torch.cat((embedded, features), -1)), packed)


def _draft_by_token(
    layer: EagleLayer, texts: trainable.Texts, frozen: trainable.Frozen, count: int
) -> Tensor:
    drafts, states = list[Tensor](), list[Tensor]()
    for drafted in range(count):
        packed = trainable.pack(texts, drafted, within=False)
        embedded, features = texts.embedded[packed.tokens], texts.features[packed.tokens - 1]
        for k, (token, state) in enumerate(zip(drafts, states, strict=True), 1):
            embedded[packed.at(k)], features[packed.at(k)] = frozen.embedding[token], state
        states.append(layer(embedded, features, packed)[trainable.rows_of_anchors(texts, packed, drafted)])
        drafts.append(frozen.draft_best(states[-1]))
    return torch.stack(drafts, 1)


def scale_fc(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    scaled = dict(tensors)
    if "fc.weight" in scaled:
        embedded, features = scaled["fc.weight"].chunk(2, 1)
        scaled["fc.weight"] = torch.cat((embedded * scale, features), 1)
        if "mask.embedding" in scaled:
            scaled["mask.embedding"] = scaled["mask.embedding"] / scale
    return scaled


def _trainable(shape: ModelShape, _: int, scale: float, level: float) -> trainable.TrainableHead:
    layer = EagleLayer(shape, 0, scale, level)
    return trainable.layered_head(layer, 0, partial(_draft_by_token, layer), rescale=scale_fc, scale=scale)


KIND = Kind(
    check=check,
    tensors=tensors,
    load=load,
    work=work,
    layered=True,
    published=PublishedForm(_matches, _read),
    trainable=_trainable,
)
