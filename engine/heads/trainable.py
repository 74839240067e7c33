"""What the trainable modules of all kinds share.

A trainable module turns the target's features into states that the target's own LM head reads; a
parameter's name is its tensor's name in the file. Embeddings are often much smaller than features,
and small inputs are learned slowly, so a module is trained on embeddings times a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.heads.packed import Packed, Texts, pack

_AT_ONCE = 1024
"""States whose logits are computed at once: V floats each."""


class Frozen(NamedTuple):
    """What heads share with the target; never trained."""

    embedding: Tensor
    """E, (V, D)."""
    lm_head: Tensor
    """(V, D); the embedding if they are tied."""
    tokens: Tensor | None = None
    """The tokens that the head drafts, (N,) int64, rising; None: all."""
    rows: Tensor | None = None
    """Their rows of the LM head, (N, D)."""

    def shortened(self, tokens: Tensor) -> Frozen:
        """Return the same for a head that drafts some tokens, (N,) int64, rising."""
        return self._replace(tokens=tokens, rows=self.lm_head[tokens])

    @property
    def draft_lm_head(self) -> Tensor:
        """The rows of the LM head that the head drafts from, (N, D)."""
        return self.lm_head if self.rows is None else self.rows

    def columns(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's column among the drafted ones, and whether it has one, (T,) each."""
        if self.tokens is None:
            return tokens, torch.ones_like(tokens, dtype=torch.bool)
        columns = torch.searchsorted(self.tokens, tokens).clamp(max=len(self.tokens) - 1)
        return columns, self.tokens[columns] == tokens

    def target_best(self, states: Tensor) -> Tensor:
        """Return the target's most probable token of each state, (T,), for states of (T, D)."""
        return torch.cat([(part @ self.lm_head.T).argmax(-1) for part in states.split(_AT_ONCE)])

    def draft_best(self, states: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the head's most probable token of each state, (T,).

        Args:
            states: (T, D).
            own: The head's own LM head, (N, D); None: the target's.
        """
        lm_head = self.draft_lm_head if own is None else own
        columns = torch.cat([(part @ lm_head.T).argmax(-1) for part in states.split(_AT_ONCE)])
        return columns if self.tokens is None else self.tokens[columns]


class Learned(NamedTuple):
    """The states of one place in the drafts."""

    states: Tensor
    """Inputs of the LM head, (A', D)."""
    labels: Tensor
    """Index in `Texts` of the token that each state predicts, (A',) int64; its feature is one
    before."""
    own: Tensor | None = None
    """The LM head of these states, (N, D); None: the target's."""

    def of_answers(self, texts: Texts) -> Learned:
        """Return the states that predict tokens of answers."""
        if texts.answers is None:
            return self
        counted = texts.answers[self.labels]
        return Learned(self.states[counted], self.labels[counted], self.own)


def unscaled(tensors: Mapping[str, Tensor], _: float) -> dict[str, Tensor]:
    """Return the tensors: the module's weights are those of the file."""
    return dict(tensors)


@dataclass(frozen=True)
class TrainableHead:
    """A module with its training functions."""

    module: nn.Module
    learn: Callable[[Texts], list[Learned]]
    """Returns the states of all drafts, by place in the draft, with the text's own tokens as
    earlier drafts."""
    draft: Callable[[Texts, Frozen, int], Tensor]
    """(texts, frozen, count) -> greedy drafts at every anchor, as in use, (A, count)."""
    rescale: Callable[[Mapping[str, Tensor], float], dict[str, Tensor]] = unscaled
    """(tensors, factor) -> tensors whose weights include the factor of the embeddings."""
    scale: float = 1.0
    """Factor of the embeddings in training; the file's weights include it."""
    add_lm_heads: Callable[[Tensor], None] | None = None
    """Gives each head an LM head of its own, a copy of the target's (N, D); None: the kind's heads
    always use the target's."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return self.rescale(self.module.state_dict(), self.scale)

    def from_file(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the module's tensors for those of a file."""
        return self.rescale(tensors, 1 / self.scale)


def scale_fc(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return EAGLE's tensors for embeddings without the scale: `fc` takes it, and masks lose it."""
    scaled = dict(tensors)
    if "fc.weight" in scaled:
        embedded, features = scaled["fc.weight"].chunk(2, 1)
        scaled["fc.weight"] = torch.cat((embedded * scale, features), 1)
        if "mask.embedding" in scaled:
            scaled["mask.embedding"] = scaled["mask.embedding"] / scale
    return scaled


def rows_of_anchors(texts: Texts, packed: Packed, number: int) -> Tensor:
    """Return the rows of a number in the anchors' groups; the anchors themselves have number 0."""
    rows, anchors = packed.at(number), torch.from_numpy(texts.anchors).to(texts.ids.device)
    return rows[torch.isin(packed.tokens[rows], anchors)]


def learn_with_masks(states_of: Callable[[Texts, Packed], Tensor], masks: int, texts: Texts) -> list[Learned]:
    """Return the states of all tokens, and of the masks behind the anchors."""
    packed = pack(texts, masks, within=True)
    states, learned = states_of(texts, packed), list[Learned]()
    for k in range(masks + 1):
        rows = packed.at(k)
        learned.append(Learned(states[rows], packed.tokens[rows] + 1 + k))
    return learned


def draft_from_masks(
    states_of: Callable[[Texts, Packed], Tensor], texts: Texts, frozen: Frozen, count: int
) -> Tensor:
    """Return `count` drafts at each anchor, (A, count), from one forward."""
    packed = pack(texts, count - 1, within=False)
    states = states_of(texts, packed)
    return torch.stack(
        [frozen.draft_best(states[rows_of_anchors(texts, packed, k)]) for k in range(count)], 1
    )


def mask_vectors(masks: int, width: int, level: float, *names: str) -> nn.ParameterDict:
    """Return random vectors as large as features; none without masks.

    A small vector would attend to all tokens alike, and training leaves that state slowly.
    """
    kept = names if masks else ()
    return nn.ParameterDict({name: nn.Parameter(level * torch.randn(masks, width)) for name in kept})


def init_matrices(module: nn.Module) -> None:
    """Fill all matrices with small random numbers."""
    for parameter in module.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
