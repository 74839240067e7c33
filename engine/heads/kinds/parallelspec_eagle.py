"""ParallelSpec (Xiao et al. 2024, section 4.3) in EAGLE's place: EAGLE's layer with K masks.

One forward over the last token and the masks drafts K + 1 tokens. A mask's row reads learned
vectors instead of both the embedding and the state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.heads.config import MOST, HeadConfig, TensorShapes
from engine.heads.drafting import HeadForwards, HeadLayer, LevelLogits, Take
from engine.heads.kind import Kind
from engine.heads.kinds import eagle
from engine.heads.modules import (
    decoder_layer,
    draft_with_masks,
    learned_masks,
    linear,
    mask_numbers,
    replace_masks,
    vectors_of,
)
from engine.heads.trainable import (
    Frozen,
    Learned,
    Packed,
    Texts,
    TrainableHead,
    TrainableLayer,
    draft_from_masks,
    init_matrices,
    learn_with_masks,
    mask_vectors,
    scale_fc,
)
from engine.heads.vocabulary import lent_lm_head, vocabulary_share
from engine.heads.work import Work
from engine.model.decoder import Decoder
from engine.model.shape import ModelShape
from engine.model.slots import Rows


def check(config: HeadConfig) -> None:
    """Check the config of a head with masks."""
    eagle.check(config)
    config.check(masks=(0, MOST))


def _tensors(config: HeadConfig) -> TensorShapes:
    masks = {f"mask.{name}": (config.masks, config.hidden_size) for name in ("embedding", "feature")}
    return eagle.tensors(config) | (masks if config.masks else {})


class ParallelEagle:
    """The layer that drafts, all levels in one forward."""

    keeps = ()

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        lm_head, self.columns = lent_lm_head(config, take, target)
        fc, ends = linear(take, "fc", bias=config.biased), (target.embedding, lm_head)
        embedding, feature = (learned_masks(config, take, name) for name in ("embedding", "feature"))

        def inputs(rows: Rows, e: Tensor) -> tuple[Tensor, None]:
            numbers = mask_numbers(rows)
            e = replace_masks(numbers, e, embedding)
            h = replace_masks(numbers, vectors_of(rows), feature)
            return fc(torch.cat([e, h], 1)), None

        decoder = decoder_layer(config.layer(), take, inputs, ends, config.masks)
        work = Work(1, 2, vocabulary_share(config))
        self.layer = HeadLayer(decoder, exact=work, guessed=work)

    def draft(self, forwards: HeadForwards) -> LevelLogits:
        """Forward the layer once."""
        return draft_with_masks(forwards)


class TrainableParallelEagle(nn.Module):
    """The layer in training; it reads embeddings times `scale`.

    The paper does not specify the feature that a mask reads; here it is learned, like the mask's
    embedding.
    """

    def __init__(self, shape: ModelShape, masks: int, scale: float = 1.0, level: float = 1.0) -> None:
        super().__init__()
        self._scale = scale
        self.fc = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.layers = nn.ModuleList([TrainableLayer(shape, input_norm=False)])
        init_matrices(self)
        self.masks, self.mask = masks, mask_vectors(masks, shape.width, level, "embedding", "feature")

    def learn(self, texts: Texts) -> list[Learned]:
        """Return the states of all tokens, and of the masks behind the anchors."""
        return learn_with_masks(self, self.masks, texts)

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        """Return `count` drafts at each anchor, (A, count)."""
        return draft_from_masks(self, texts, frozen, count)

    def forward(self, texts: Texts, packed: Packed) -> Tensor:
        """Return the states of all rows, (R, D)."""
        embedded = texts.embedded[packed.tokens] * self._scale
        embedded = replace_masks(packed.numbers, embedded, self.mask.get("embedding"))
        features = texts.features[packed.tokens - 1]
        features = replace_masks(packed.numbers, features, self.mask.get("feature"))
        return self.layers[0](self.fc(torch.cat((embedded, features), -1)), packed)

    def head(self) -> TrainableHead:
        """Return the module with its training functions; saved weights include the scale."""
        return TrainableHead(self, self.learn, self.draft, scale_fc, self._scale)


KIND = Kind(
    check=check,
    tensors=_tensors,
    load=ParallelEagle,
    layered=True,
    sized_by="masks",
    trainable=lambda *settings: TrainableParallelEagle(*settings).head(),
)
