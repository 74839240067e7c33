"""ParallelSpec (Xiao et al. 2024, section 4.3) in Medusa's place: a decoder layer with K masks.

The row of token j reads embedding_scale E(x_j) + f_(j-1), a mask's row a learned vector; a final
norm precedes the LM head. One forward over the last token and the masks drafts K + 1 tokens.
"""

from __future__ import annotations

from torch import Tensor, nn

from engine.heads.config import HeadConfig, TensorShapes
from engine.heads.drafting import HeadForwards, HeadLayer, LevelLogits, Take
from engine.heads.kind import Kind
from engine.heads.kinds.parallelspec_eagle import check
from engine.heads.modules import (
    decoder_layer,
    draft_with_masks,
    layer_tensors,
    learned_masks,
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
    TrainableNorm,
    draft_from_masks,
    init_matrices,
    learn_with_masks,
    mask_vectors,
)
from engine.heads.vocabulary import lent_lm_head, vocabulary_share, vocabulary_tensors
from engine.heads.work import Work
from engine.model.decoder import Decoder
from engine.model.shape import ModelShape
from engine.model.slots import Rows


def _layer(config: HeadConfig) -> ModelShape:
    return config.layer(input_norm=True, final_norm=True)


def _tensors(config: HeadConfig) -> TensorShapes:
    masks = {"mask.embedding": (config.masks, config.hidden_size)} if config.masks else {}
    return layer_tensors(_layer(config)) | masks | vocabulary_tensors(config)


class ParallelMedusa:
    """The layer that drafts, all levels in one forward."""

    keeps = ()

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        embedding, scale = learned_masks(config, take, "embedding"), config.embedding_scale

        def inputs(rows: Rows, e: Tensor) -> tuple[Tensor, None]:
            return replace_masks(mask_numbers(rows), scale * e + vectors_of(rows), embedding), None

        lm_head, self.columns = lent_lm_head(config, take, target)
        ends = (target.embedding, lm_head)
        decoder = decoder_layer(_layer(config), take, inputs, ends, config.masks)
        work = Work(1, 0, vocabulary_share(config))
        self.layer = HeadLayer(decoder, exact=work, guessed=work)

    def draft(self, forwards: HeadForwards) -> LevelLogits:
        """Forward the layer once."""
        return draft_with_masks(forwards)


class TrainableParallelMedusa(nn.Module):
    """The layer in training.

    The paper leaves open whether it reads the target's features; here it does, as Medusa's heads
    do.
    """

    def __init__(self, shape: ModelShape, masks: int, scale: float = 1.0, level: float = 1.0) -> None:
        super().__init__()
        self._scale = scale
        self.layers = nn.ModuleList([TrainableLayer(shape, input_norm=True)])
        self.norm = TrainableNorm(shape.width, shape.eps)
        init_matrices(self)
        self.masks, self.mask = masks, mask_vectors(masks, shape.width, level, "embedding")

    def learn(self, texts: Texts) -> list[Learned]:
        """Return the states of all tokens, and of the masks behind the anchors."""
        return learn_with_masks(self, self.masks, texts)

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        """Return `count` drafts at each anchor, (A, count)."""
        return draft_from_masks(self, texts, frozen, count)

    def forward(self, texts: Texts, packed: Packed) -> Tensor:
        """Return the states of all rows, (R, D)."""
        inputs = texts.embedded[packed.tokens] * self._scale + texts.features[packed.tokens - 1]
        inputs = replace_masks(packed.numbers, inputs, self.mask.get("embedding"))
        return self.norm(self.layers[0](inputs, packed))

    def head(self) -> TrainableHead:
        """Return the module with its training functions; the config has the scale."""
        return TrainableHead(self, self.learn, self.draft)


KIND = Kind(
    check=check,
    tensors=_tensors,
    load=ParallelMedusa,
    layered=True,
    sized_by="masks",
    scaled=True,
    trainable=lambda *settings: TrainableParallelMedusa(*settings).head(),
)
