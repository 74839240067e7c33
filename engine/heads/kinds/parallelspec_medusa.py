"""ParallelSpec (Xiao et al. 2024, section 4.3) in Medusa's place: a decoder layer with K masks.

The row of token j reads embedding_scale E(x_j) + f_(j-1), a mask's row a learned vector; a final
norm precedes the LM head. One forward over the last token and the masks drafts K + 1 tokens. The
paper leaves open whether the layer reads the target's features; here it does, as Medusa's heads do.
"""

from __future__ import annotations

from torch import Tensor, nn

from specscope.engine.heads import modules, trainable
from specscope.engine.heads.config import HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Head, HeadLayer, Take
from specscope.engine.heads.kind import Kind
from specscope.engine.heads.kinds.parallelspec_eagle import check
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows


def _layer(config: HeadConfig) -> ModelShape:
    return config.layer(input_norm=True, final_norm=True)


def _tensors(config: HeadConfig) -> TensorShapes:
    masks = modules.mask_tensors(config, "embedding")
    return modules.layer_tensors(_layer(config)) | masks | modules.vocabulary_tensors(config)


def _load(config: HeadConfig, take: Take, target: Decoder) -> Head:
    (embedding,), scale = modules.learned_masks(config, take, "embedding"), config.embedding_scale

    def inputs(rows: Rows, e: Tensor) -> tuple[Tensor, None]:
        return modules.mask_rows(rows, scale * e + modules.vectors_of(rows), embedding), None

    lm_head, columns = modules.lent_lm_head(config, take, target)
    ends = (target.embedding, lm_head)
    decoder = modules.decoder_layer(_layer(config), take, inputs, ends, config.masks)
    work = _work(config, 1, 0)
    return Head(columns, modules.draft_with_masks, HeadLayer(decoder, exact=work, guessed=work))


def _work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - one forward
    return Work(1, 0, modules.vocabulary_share(config))


class MedusaLayer(nn.Module):
    """The layer in training."""

    def __init__(self, shape: ModelShape, masks: int, scale: float, level: float) -> None:
        super().__init__()
        self._scale = scale
        self.layers = nn.ModuleList([trainable.TrainableLayer(shape, input_norm=True)])
        self.norm = trainable.TrainableNorm(shape.width, shape.eps)
        trainable.init_matrices(self)
        self.mask = trainable.mask_vectors(masks, shape.width, level, "embedding")

    def forward(self, embedded: Tensor, features: Tensor, packed: trainable.Packed) -> Tensor:
        inputs = modules.replace_masks(
            packed.numbers, embedded * self._scale + features, self.mask.get("embedding")
        )
        return self.norm(self.layers[0](inputs, packed))


def _trainable(shape: ModelShape, masks: int, scale: float, level: float) -> trainable.TrainableHead:
    return trainable.layered_head(MedusaLayer(shape, masks, scale, level), masks)  # the config has the scale


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
