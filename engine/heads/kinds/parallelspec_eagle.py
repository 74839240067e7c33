"""ParallelSpec (Xiao et al. 2024, section 4.3) in EAGLE's place: EAGLE's layer with K masks.

One forward over the last token and the masks drafts K + 1 tokens. A mask's row reads learned
vectors instead of both the embedding and the state. The paper does not specify the feature that a
mask reads; here it is learned, like the mask's embedding.
"""

from __future__ import annotations

from torch import Tensor

from specscope.engine.heads.config import MOST, HeadConfig
from specscope.engine.heads.drafting import Head
from specscope.engine.heads.kind import Kind
from specscope.engine.heads.kinds import eagle
from specscope.engine.heads.modules import draft_in_one_forward
from specscope.engine.heads.packed import Frozen, Texts, draft_with_masks
from specscope.engine.model.decoder import Decoder


def check(config: HeadConfig) -> None:
    eagle.check(config)
    config.check(masks=(0, MOST))


class ParallelEagle(eagle.EagleLayer):
    """EAGLE's layer, which drafts over masks."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config, config.masks)

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        return draft_with_masks(self, texts, frozen, count)

    def serve(self, target: Decoder, d2t: Tensor | None) -> Head:
        return self.serve_with(target, d2t, draft_in_one_forward)


KIND = Kind(
    module=ParallelEagle,
    check=check,
    work=eagle.work,
    layered=True,
    sized_by="masks",
    rescale=eagle.rescaled,
)
