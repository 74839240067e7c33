"""ParallelSpec (Xiao et al. 2024, section 4.3) in Medusa's place: a decoder layer with K masks.

The row of token j reads embedding_scale E(x_j) + f_(j-1), a mask's row a learned vector; a final
norm precedes the LM head. One forward over the last token and the masks drafts K + 1 tokens. The
paper leaves open whether the layer reads the target's features; here it does, as Medusa's heads do.
"""

from __future__ import annotations

from torch import Tensor, nn

from engine.heads.config import HeadConfig, TensorShapes
from engine.heads.drafting import HeadLayer, Take
from engine.heads.kind import Kind
from engine.heads.kinds.parallelspec_eagle import check
from engine.heads.modules import (
    LayeredHead,
    decoder_layer,
    draft_with_masks,
    layer_tensors,
    learned_masks,
    lent_lm_head,
    mask_rows,
    mask_tensors,
    replace_masks,
    vectors_of,
    vocabulary_share,
    vocabulary_tensors,
)
from engine.heads.trainable import (
    Packed,
    TrainableHead,
    TrainableLayer,
    TrainableNorm,
    init_matrices,
    layered_head,
    mask_vectors,
)
from engine.heads.work import Work
from engine.model.decoder import Decoder
from engine.model.shape import ModelShape
from engine.model.slots import Rows


def _layer(config: HeadConfig) -> ModelShape:
    return config.layer(input_norm=True, final_norm=True)


def _tensors(config: HeadConfig) -> TensorShapes:
    masks = mask_tensors(config, "embedding")
    return layer_tensors(_layer(config)) | masks | vocabulary_tensors(config)


def _load(config: HeadConfig, take: Take, target: Decoder) -> LayeredHead:
    (embedding,), scale = learned_masks(config, take, "embedding"), config.embedding_scale

    def inputs(rows: Rows, e: Tensor) -> tuple[Tensor, None]:
        return mask_rows(rows, scale * e + vectors_of(rows), embedding), None

    lm_head, columns = lent_lm_head(config, take, target)
    ends = (target.embedding, lm_head)
    decoder = decoder_layer(_layer(config), take, inputs, ends, config.masks)
    work = _work(config, 1, 0)
    return LayeredHead(columns, HeadLayer(decoder, exact=work, guessed=work), draft_with_masks)


def _work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - one forward
    return Work(1, 0, vocabulary_share(config))


class MedusaLayer(nn.Module):
    """The layer in training."""

    def __init__(self, shape: ModelShape, masks: int, scale: float, level: float) -> None:
        super().__init__()
        self._scale = scale
        self.layers = nn.ModuleList([TrainableLayer(shape, input_norm=True)])
        self.norm = TrainableNorm(shape.width, shape.eps)
        init_matrices(self)
        self.mask = mask_vectors(masks, shape.width, level, "embedding")

    def forward(self, embedded: Tensor, features: Tensor, packed: Packed) -> Tensor:
        inputs = replace_masks(packed.numbers, embedded * self._scale + features, self.mask.get("embedding"))
        return self.norm(self.layers[0](inputs, packed))


def _trainable(shape: ModelShape, masks: int, scale: float, level: float) -> TrainableHead:
    return layered_head(MedusaLayer(shape, masks, scale, level), masks)  # the config has the scale


KIND = Kind(
    check=check,
    tensors=_tensors,
    load=_load,
    work=_work,
    layered=True,
    sized_by="masks",
    scaled=True,
    trainable=_trainable,
)
