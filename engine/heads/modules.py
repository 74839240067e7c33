"""What several kinds draft with: vocabularies, residual blocks, decoder layers, masks.

FR-Spec (Zhao et al. 2025, arXiv 2502.14856):
a head may draft N of the target's V tokens: its logits then have N columns, and column i is the
target's token i + d2t[i]. The head's LM head is N rows of the target's, so a row of a draft costs
N x D products instead of V x D. All other tokens have q = 0, so the rules that verify drafts stay
exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specscope.engine.checkpoints.checkpoint import Checkpoint
from specscope.engine.errors import ModelError
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.drafting import AllLevels, Columns, Growing, HeadForwards, LevelLogits
from specscope.engine.heads.packed import PackedLayer
from specscope.engine.heads.published import Published
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.shard import SplitHead
from specscope.engine.model.weights import Linear


def vocabulary_share(config: HeadConfig) -> float:
    """Return N / V, the size of one product with the LM head."""
    return config.draft_vocab / config.vocab_size if config.draft_vocab else 1.0


def target_ids(d2t: Tensor) -> Tensor:
    """Map draft ids to target ids: target_id[i] = i + d2t[i], shape (N,)."""
    return torch.arange(len(d2t), device=d2t.device) + d2t


def offsets(ids: Tensor) -> Tensor:
    """Return the d2t of some target ids, (N,): the inverse of `target_ids`."""
    return ids - torch.arange(len(ids), device=ids.device)


def lent_lm_head(target: Decoder, d2t: Tensor | None) -> tuple[Linear | SplitHead, Columns]:
    lm_head = target.head
    assert isinstance(lm_head, Linear | SplitHead), "a target has its own LM head"
    if d2t is None:
        return lm_head, Columns()
    tokens = target_ids(d2t).sort().values
    return Linear(lm_head.rows(tokens), bits=8), Columns(tokens)


def own_lm_heads(weights: Iterable[Tensor], d2t: Tensor | None) -> tuple[list[Linear], Columns]:
    if d2t is None:
        return [Linear(weight.detach(), bits=8) for weight in weights], Columns()
    tokens, order = target_ids(d2t).sort()
    return [Linear(weight.detach()[order], bits=8) for weight in weights], Columns(tokens)


def check_ids(path: Path, weights: Checkpoint, head: Published) -> None:
    """Check that d2t maps every draft token to another token of the target, as `t2d` marks them."""
    if not head.config.draft_vocab:
        return
    cpu, vocab = torch.device("cpu"), head.config.vocab_size
    ids = target_ids(weights.take(head.names["d2t"], cpu, torch.int64))
    for i in ((ids < 0) | (ids >= vocab)).nonzero()[:1, 0].tolist():
        raise ModelError(f"{path}: d2t maps draft token {i} to {int(ids[i])}; valid are 0 to {vocab - 1}")
    tokens, counts = ids.unique(return_counts=True)
    for i in (counts > 1).nonzero()[:1, 0].tolist():
        raise ModelError(
            f"{path}: d2t maps {int(counts[i])} draft tokens to {int(tokens[i])}; at most one may"
        )
    if (t2d := head.names.get("t2d")) is not None:
        weights.check_type(t2d, ("BOOL",))
        marks = weights.take(t2d, cpu, torch.bool)
        if marks.shape != (vocab,) or not torch.equal(marks.nonzero()[:, 0], tokens):
            raise ModelError(f"{path}: t2d and d2t mark different tokens; the file is broken")


class Rounded(nn.Module):
    """A matrix that serves drafts only; see `Linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        bias: Any = linear.bias
        self.product = Linear(linear.weight.detach(), None if bias is None else bias.detach(), bits=8)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


def round_matrices(head: nn.Module) -> None:
    """Make a head's matrices int8; its layer's are made so by the decoder that they move to."""
    for name, child in head.named_children():
        if isinstance(child, nn.Linear):
            setattr(head, name, Rounded(child))
        elif not isinstance(child, PackedLayer):
            round_matrices(child)


def residual(blocks: Iterable[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
    """Apply x + SiLU(W x + b) for each block, (..., D)."""
    for block in blocks:
        x = x + functional.silu(block(x))
    return x


def decoder_layer(
    head: Any, shape: ModelShape, ends: tuple[Tensor, Callable[[Tensor], Tensor]], masks: int = 0
) -> Decoder:
    """Move a head's layers to a decoder.

    `head` is as `states_of` says; `ends` are the embedding, (V, D), and the LM head; mask k of the
    K `masks` has id -1 - k.
    """

    def take(name: str) -> Tensor:
        return head.get_parameter(name.removeprefix("model.")).detach()

    embedding, lm_head = ends
    more: dict[str, Any] = {"embedding": embedding, "head": lm_head, "make_inputs": head.inputs}
    decoder = Decoder(shape, take, "drafter", **more, mask_tokens=masks, bits=8)
    del head.layers  # the decoder has its own form of these matrices
    return decoder


def replace_masks(numbers: Tensor, x: Tensor, vectors: Tensor | None) -> Tensor:
    """Return x, (T, D), with the rows of masks replaced by their vectors, (K, D).

    `numbers`, (T,) int64, has the number of each row's mask, from 1, and 0 for other rows.
    """
    if vectors is None:
        return x
    numbers = numbers.to(x.device)
    return torch.where((numbers == 0)[:, None], x, vectors[(numbers - 1).clamp(min=0)])


def draft_with_states(forwards: HeadForwards) -> LevelLogits:
    def logits(trees: Sequence[Growing]) -> Sequence[Tensor]:
        return forwards.deepen(trees) if trees[0].depth else forwards.exact(trees, [0] * len(trees))

    return logits


def draft_at_once(
    compute: Callable[[Sequence[Growing]], Sequence[Tensor]], masked_tail: int = 0
) -> LevelLogits:
    """Draft all levels in one forward; one row of logits holds for every node of a level.

    `compute` returns the logits of each tree, (masked_tail + levels, N).
    """
    rows = dict[int, Tensor]()

    def logits(trees: Sequence[Growing]) -> Sequence[Tensor]:
        if not trees[0].depth:
            computed = zip(trees, compute(trees), strict=True)
            rows.update((tree.prefix.sequence, levels) for tree, levels in computed)
        return [rows[tree.prefix.sequence][masked_tail + tree.depth][None] for tree in trees]

    return logits


def draft_from_state(source: AllLevels) -> Callable[[HeadForwards], LevelLogits]:
    def draft(forwards: HeadForwards) -> LevelLogits:
        def compute(trees: Sequence[Growing]) -> Sequence[Tensor]:
            count, states = max(tree.levels for tree in trees), forwards.target_states(trees)
            work = source.work(count)
            work = work._replace(outputs=work.outputs * len(trees))
            return forwards.timed(trees, len(trees), work, lambda: source.logits(states, count)).unbind()

        return draft_at_once(compute)

    return draft


def draft_in_one_forward(forwards: HeadForwards) -> LevelLogits:
    masked_tail = forwards.masked_tail
    return draft_at_once(
        lambda trees: forwards.exact(trees, [tree.levels - 1 + masked_tail for tree in trees]), masked_tail
    )
