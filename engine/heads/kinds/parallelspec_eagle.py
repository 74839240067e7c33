"""ParallelSpec (Xiao et al. 2024, section 4.3) in EAGLE's place: EAGLE's layer with K masks.

One forward over the last token and the masks drafts K + 1 tokens. A mask's row reads learned
vectors instead of both the embedding and the state. The paper does not specify the feature that a
mask reads; here it is learned, like the mask's embedding.
"""

from __future__ import annotations

from specscope.engine.heads.config import MOST, HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Head, Take
from specscope.engine.heads.kind import Kind
from specscope.engine.heads.kinds import eagle
from specscope.engine.heads.modules import draft_with_masks, learned_masks, mask_tensors
from specscope.engine.heads.trainable import TrainableHead, layered_head
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape

_VECTORS = ("embedding", "feature")


def check(config: HeadConfig) -> None:
    eagle.check(config)
    config.check(masks=(0, MOST))


def _tensors(config: HeadConfig) -> TensorShapes:
    return eagle.tensors(config) | mask_tensors(config, *_VECTORS)


def _load(config: HeadConfig, take: Take, target: Decoder) -> Head:
    masks = learned_masks(config, take, *_VECTORS)
    return eagle.load(config, take, target, draft_with_masks, (), masks)


def _trainable(shape: ModelShape, masks: int, scale: float, level: float) -> TrainableHead:
    layer = eagle.EagleLayer(shape, masks, scale, level)
    return layered_head(layer, masks, rescale=eagle.scale_fc, scale=scale)


KIND = Kind(
    check=check,
    tensors=_tensors,
    load=_load,
    work=eagle.work,
    layered=True,
    sized_by="masks",
    trainable=_trainable,
)
