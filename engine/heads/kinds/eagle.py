"""EAGLE (Li et al. 2024): one decoder layer that predicts the target's next hidden state.

`fc` maps [E(x_j); f_(j-1)] to the layer's input; the layer has no norm before its attention. Its
output is f_j, which the target's LM head reads, and which the row of the next drafted token reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specscope.engine.heads import modules, packed
from specscope.engine.heads.config import LAYER_FIELDS, HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Head, HeadForwards, HeadLayer, LevelLogits
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.kinds.eagle3 import matches as matches_eagle3
from specscope.engine.heads.published import QKV_BIAS, Published, layer_config, target_name
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder


def check(config: HeadConfig) -> None:
    config.check()
    config.check_reads_last_state()
    config.layer()


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


def work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - all forwards are alike
    return Work(1, 2, modules.vocabulary_share(config))


class EagleLayer(nn.Module):
    """The layer, with K masks in ParallelSpec; if `normed`, with norms of inputs and output."""

    def __init__(self, config: HeadConfig, masks: int = 0, *, normed: bool = False) -> None:
        super().__init__()
        shape, d = config.layer(input_norm=normed, final_norm=normed), config.hidden_size
        self.config, self.masks, self._shape = config, masks, shape
        self.fc = nn.Linear(2 * d, d, bias=config.biased)
        self.layers = nn.ModuleList([packed.PackedLayer(shape)])
        norms = [packed.TrainableNorm(d, shape.eps) if normed else nn.Identity() for _ in range(3)]
        self.enorm, self.hnorm, self.norm = norms
        packed.init_matrices(self)
        self.mask = packed.mask_vectors(masks, d, "embedding", "feature")

    def inputs(self, numbers: Tensor, embedded: Tensor, features: Tensor) -> tuple[Tensor, None]:
        embedded = embedded * self.config.embedding_scale
        embedded = modules.replace_masks(numbers, embedded, self.mask.get("embedding"))
        features = modules.replace_masks(numbers, features, self.mask.get("feature"))
        return self.fc(torch.cat((self.enorm(embedded), self.hnorm(features)), -1)), None

    def learn(self, texts: packed.Texts) -> list[packed.Learned]:
        return packed.learn_with_masks(self, texts, self.masks)

    def draft(self, texts: packed.Texts, frozen: packed.Frozen, count: int) -> Tensor:
        drafts, states = list[Tensor](), list[Tensor]()
        for drafted in range(count):
            rows = packed.pack(texts, drafted, within=False)
            embedded, features = texts.embedded[rows.tokens], texts.features[rows.tokens - 1]
            for k, (token, state) in enumerate(zip(drafts, states, strict=True), 1):
                embedded[rows.at(k)], features[rows.at(k)] = frozen.embed(token), state
            output = packed.states_of(self, embedded, features, rows)
            states.append(output[packed.rows_of_anchors(texts, rows, drafted)])
            drafts.append(frozen.draft_best(states[-1]))
        return torch.stack(drafts, 1)

    def serve(self, target: Decoder, d2t: Tensor | None) -> Head:
        return self.serve_with(target, d2t, modules.draft_with_states, (-1,))

    def serve_with(
        self,
        target: Decoder,
        d2t: Tensor | None,
        draft: Callable[[HeadForwards], LevelLogits],
        keeps: tuple[int, ...] = (),
    ) -> Head:
        lm_head, columns = modules.lent_lm_head(target, d2t)
        ends = (target.embedding, lm_head)
        decoder = modules.decoder_layer(self, self._shape, ends, self.masks)
        exact, guessed = (work(self.config, level, level - 1) for level in (1, 2))
        return Head(columns, draft, HeadLayer(decoder, exact, guessed), keeps)


def rescaled(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    scaled = dict(tensors)
    if "fc.weight" in scaled:
        embedded, features = scaled["fc.weight"].chunk(2, 1)
        scaled["fc.weight"] = torch.cat((embedded * scale, features), 1)
        if "mask.embedding" in scaled:
            scaled["mask.embedding"] = scaled["mask.embedding"] / scale
    return scaled


KIND = Kind(
    module=EagleLayer,
    check=check,
    work=work,
    layered=True,
    published=PublishedForm(_matches, _read),
    rescale=rescaled,
)
