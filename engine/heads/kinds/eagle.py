"""EAGLE (Li et al. 2024): one decoder layer that predicts the target's next hidden state.

`fc` maps [E(x_j); f_(j-1)] to the layer's input; the layer has no norm before its attention. Its
output is f_j, which the target's LM head reads, and which the row of the next drafted token reads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.heads.config import LAYER_FIELDS, HeadConfig, TensorShapes
from engine.heads.drafting import HeadForwards, HeadLayer, LevelLogits, Take
from engine.heads.kind import Kind, PublishedForm
from engine.heads.kinds.eagle3 import matches as matches_eagle3
from engine.heads.modules import decoder_layer, draft_with_states, layer_tensors, linear, vectors_of
from engine.heads.published import QKV_BIAS, Published, layer_config, target_name
from engine.heads.trainable import (
    Frozen,
    Learned,
    Packed,
    Texts,
    TrainableHead,
    TrainableLayer,
    init_matrices,
    pack,
    rows_of_anchors,
    scale_fc,
)
from engine.heads.vocabulary import lent_lm_head, vocabulary_share, vocabulary_tensors
from engine.heads.work import Work
from engine.model.decoder import Decoder
from engine.model.shape import ModelShape


def check(config: HeadConfig) -> None:
    """Check the config of a head with a layer that reads the target's last state."""
    config.check()
    config.check_reads_last_state()
    config.layer()


def tensors(config: HeadConfig) -> TensorShapes:
    """Return names and shapes of the layer and of `fc`."""
    d, bias = config.hidden_size, {"fc.bias": (config.hidden_size,)} if config.biased else {}
    return layer_tensors(config.layer()) | {"fc.weight": (d, 2 * d)} | bias | vocabulary_tensors(config)


def _matches(names: Collection[str]) -> bool:
    return not matches_eagle3(names) and ("fc.weight" in names or "fusion_fc.weight" in names)


def _read(path: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> Published:
    """Read the tensor names of EAGLE or of speculators."""
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


class Eagle:
    """The layer that drafts, one level per forward."""

    keeps = (-1,)

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        lm_head, self.columns = lent_lm_head(config, take, target)
        fc, ends = linear(take, "fc", bias=config.biased), (target.embedding, lm_head)
        decoder = decoder_layer(
            config.layer(), take, lambda rows, e: (fc(torch.cat([e, vectors_of(rows)], 1)), None), ends
        )
        work = Work(1, 2, vocabulary_share(config))
        self.layer = HeadLayer(decoder, exact=work, guessed=work)

    def draft(self, forwards: HeadForwards) -> LevelLogits:
        """Forward the layer once per level."""
        return draft_with_states(forwards)


class TrainableEagle(nn.Module):
    """The layer in training; it reads embeddings times `scale`."""

    def __init__(self, shape: ModelShape, scale: float = 1.0) -> None:
        super().__init__()
        self._scale = scale
        self.fc = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.layers = nn.ModuleList([TrainableLayer(shape, input_norm=False)])
        init_matrices(self)

    def learn(self, texts: Texts) -> list[Learned]:
        """Return the states of all tokens; later places would read predicted states."""
        packed = pack(texts, 0, within=True)
        states = self(texts.embedded[packed.tokens], texts.features[packed.tokens - 1], packed)
        return [Learned(states, packed.tokens + 1)]

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        """Return `count` drafts at each anchor, (A, count)."""
        drafts, states = list[Tensor](), list[Tensor]()
        for drafted in range(count):
            packed = pack(texts, drafted, within=False)
            embedded, features = texts.embedded[packed.tokens], texts.features[packed.tokens - 1]
            for k, (token, state) in enumerate(zip(drafts, states, strict=True), 1):
                embedded[packed.at(k)], features[packed.at(k)] = frozen.embedding[token], state
            states.append(self(embedded, features, packed)[rows_of_anchors(texts, packed, drafted)])
            drafts.append(frozen.draft_best(states[-1]))
        return torch.stack(drafts, 1)

    def forward(self, embedded: Tensor, features: Tensor, packed: Packed) -> Tensor:
        """Map the rows' embeddings and features, (R, D) each, to states, (R, D)."""
        return self.layers[0](self.fc(torch.cat((embedded * self._scale, features), -1)), packed)

    def head(self) -> TrainableHead:
        """Return the module with its training functions; saved weights include the scale."""
        return TrainableHead(self, self.learn, self.draft, scale_fc, self._scale)


KIND = Kind(
    check=check,
    tensors=tensors,
    load=Eagle,
    layered=True,
    published=PublishedForm(_matches, _read),
    trainable=lambda shape, _, scale, __: TrainableEagle(shape, scale).head(),
)
