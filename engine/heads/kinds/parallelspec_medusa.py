"""ParallelSpec (Xiao et al. 2024, section 4.3) in Medusa's place: a decoder layer with K masks.

The row of token j reads embedding_scale E(x_j) + f_(j-1), a mask's row a learned vector; a final
norm precedes the LM head. One forward over the last token and the masks drafts K + 1 tokens. The
paper leaves open whether the layer reads the target's features; here it does, as Medusa's heads do.
"""

from __future__ import annotations

from torch import Tensor, nn

from specscope.engine.heads import modules, packed
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.drafting import Head, HeadLayer
from specscope.engine.heads.kind import Kind
from specscope.engine.heads.kinds.parallelspec_eagle import check
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape


def _layer(config: HeadConfig) -> ModelShape:
    return config.layer(input_norm=True, final_norm=True)


def _work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - one forward
    return Work(1, 0, modules.vocabulary_share(config))


class MedusaLayer(nn.Module):
    """The layer with its masks."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        shape = _layer(config)
        self.config = config
        self.layers = nn.ModuleList([packed.PackedLayer(shape)])
        self.norm = packed.TrainableNorm(shape.width, shape.eps)
        packed.init_matrices(self)
        self.mask = packed.mask_vectors(config.masks, shape.width, "embedding")

    def inputs(self, numbers: Tensor, embedded: Tensor, features: Tensor) -> tuple[Tensor, None]:
        read = self.config.embedding_scale * embedded + features
        return modules.replace_masks(numbers, read, self.mask.get("embedding")), None

    def learn(self, texts: packed.Texts) -> list[packed.Learned]:
        return packed.learn_with_masks(self, texts, self.config.masks)

    def draft(self, texts: packed.Texts, frozen: packed.Frozen, count: int) -> Tensor:
        return packed.draft_with_masks(self, texts, frozen, count)

    def serve(self, target: Decoder, d2t: Tensor | None) -> Head:
        lm_head, columns = modules.lent_lm_head(target, d2t)
        ends, work = (target.embedding, lm_head), _work(self.config, 1, 0)
        decoder = modules.decoder_layer(self, _layer(self.config), ends, self.config.masks)
        return Head(columns, modules.draft_in_one_forward, HeadLayer(decoder, exact=work, guessed=work))


KIND = Kind(
    module=MedusaLayer,
    check=check,
    work=_work,
    layered=True,
    sized_by="masks",
    scaled=True,
)
