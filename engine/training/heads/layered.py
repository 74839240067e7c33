"""Heads that are one decoder layer: EAGLE's, and ParallelSpec's parallel drafters in EAGLE's and Medusa's place.

The row of x_j reads E(x_j) and f_(j-1); its output stands for f_j, from which the LM head reads x_(j+1). Mask k behind a
token reads learned vectors, and its output stands for the feature k tokens further on. See `side` for `learn` and `draft`.

Embeddings are often much smaller than features, and what is small is learned slowly. So a head is trained on embeddings
times `scale`; `fold` takes the scale into the weights that are saved.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.model.shape import ModelShape
from engine.training.heads.layer import Layer, Norm
from engine.training.heads.layout import Packed, Texts, pack
from engine.training.heads.side import Frozen, Learned


class Eagle(nn.Module):
    """One layer on fc([E(x_j); f_(j-1)]) (EAGLE); drafts one token after the other."""

    def __init__(self, shape: ModelShape, scale: float = 1.0) -> None:
        super().__init__()
        self._scale = scale
        self.fc = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.layers = nn.ModuleList([Layer(shape, normed=False)])
        _scatter(self)

    def learn(self, texts: Texts) -> list[Learned]:
        """Return the states of all tokens: one place in the draft, since the others read the head's own states."""
        packed = pack(texts, 0, within=True)
        states = self(texts.embedded[packed.tokens], texts.features[packed.tokens - 1], packed)
        return [Learned(states, packed.tokens + 1)]

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        """Return `count` drafts at each anchor, (A, count)."""
        drafts, states = list[Tensor](), list[Tensor]()
        for behind in range(count):
            packed = pack(texts, behind, within=False)
            embedded, features = texts.embedded[packed.tokens], texts.features[packed.tokens - 1]
            for k, (token, state) in enumerate(zip(drafts, states, strict=True), 1):
                embedded[packed.at(k)], features[packed.at(k)] = frozen.embedding[token], state
            states.append(self(embedded, features, packed)[_last(texts, packed, behind)])
            drafts.append(frozen.best(states[-1]))
        return torch.stack(drafts, 1)

    def forward(self, embedded: Tensor, features: Tensor, packed: Packed) -> Tensor:
        """Map what the rows read, (R, D) each, to states, (R, D)."""
        return self.layers[0](self.fc(torch.cat((embedded * self._scale, features), -1)), packed)

    def fold(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return _scaled(dict(self.state_dict()), self._scale)

    def unfold(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return saved tensors as they were in training."""
        return _scaled(tensors, 1 / self._scale)


class ParallelEagle(nn.Module):
    """EAGLE's layer with K masks (ParallelSpec): drafts K + 1 tokens in one forward.

    The paper does not say what feature a mask reads; here it is learned, like the mask's embedding.
    """

    def __init__(self, shape: ModelShape, masks: int, scale: float = 1.0, level: float = 1.0) -> None:
        super().__init__()
        self._scale = scale
        self.fc = nn.Linear(2 * shape.width, shape.width, bias=False)
        self.layers = nn.ModuleList([Layer(shape, normed=False)])
        _scatter(self)
        self.masks, self.mask = masks, _vectors(masks, shape.width, level, "embedding", "feature")

    def learn(self, texts: Texts) -> list[Learned]:
        """Return the states of all tokens, and of the masks behind the anchors."""
        return _places(self, texts)

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        """Return `count` drafts at each anchor, (A, count)."""
        return _draft(self, texts, frozen, count)

    def forward(self, texts: Texts, packed: Packed) -> Tensor:
        """Return the states of all rows, (R, D)."""
        embedded = _or_masks(packed, texts.embedded[packed.tokens] * self._scale, self.mask.get("embedding"))
        features = _or_masks(packed, texts.features[packed.tokens - 1], self.mask.get("feature"))
        return self.layers[0](self.fc(torch.cat((embedded, features), -1)), packed)

    def fold(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return _scaled(dict(self.state_dict()), self._scale)

    def unfold(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return saved tensors as they were in training."""
        return _scaled(tensors, 1 / self._scale)


class ParallelMedusa(nn.Module):
    """ParallelSpec's drafter in Medusa's place: one whole layer on scale E(x_j) + f_(j-1), K masks, and a final norm.

    The paper leaves open whether it reads the target's features; here it does, as the heads it replaces do.
    """

    def __init__(self, shape: ModelShape, masks: int, scale: float = 1.0, level: float = 1.0) -> None:
        super().__init__()
        self._scale = scale
        self.layers = nn.ModuleList([Layer(shape, normed=True)])
        self.norm = Norm(shape.width, shape.eps)
        _scatter(self)
        self.masks, self.mask = masks, _vectors(masks, shape.width, level, "embedding")

    def learn(self, texts: Texts) -> list[Learned]:
        """Return the states of all tokens, and of the masks behind the anchors."""
        return _places(self, texts)

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        """Return `count` drafts at each anchor, (A, count)."""
        return _draft(self, texts, frozen, count)

    def forward(self, texts: Texts, packed: Packed) -> Tensor:
        """Return the states of all rows, (R, D)."""
        read = texts.embedded[packed.tokens] * self._scale + texts.features[packed.tokens - 1]
        return self.norm(self.layers[0](_or_masks(packed, read, self.mask.get("embedding")), packed))

    def fold(self) -> dict[str, Tensor]:
        """Return the tensors to save; the scale stays, in the head's config."""
        return dict(self.state_dict())

    def unfold(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return saved tensors as they were in training."""
        return tensors


def _scaled(tensors: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the tensors for embeddings that are not scaled: `fc` takes the scale, and masks lose it."""
    found = dict(tensors)
    if "fc.weight" in found:
        embedded, features = found["fc.weight"].chunk(2, 1)
        found["fc.weight"] = torch.cat((embedded * scale, features), 1)
        if "mask.embedding" in found:
            found["mask.embedding"] = found["mask.embedding"] / scale
    return found


def _places(head: ParallelEagle | ParallelMedusa, texts: Texts) -> list[Learned]:
    packed = pack(texts, head.masks, within=True)
    states, found = head(texts, packed), list[Learned]()
    for k in range(head.masks + 1):
        rows = packed.at(k)
        found.append(Learned(states[rows], packed.tokens[rows] + 1 + k))
    return found


def _draft(head: ParallelEagle | ParallelMedusa, texts: Texts, frozen: Frozen, count: int) -> Tensor:
    packed = pack(texts, count - 1, within=False)
    states = head(texts, packed)
    return torch.stack([frozen.best(states[_last(texts, packed, k)]) for k in range(count)], 1)


def _last(texts: Texts, packed: Packed, number: int) -> Tensor:
    """Return the rows of that number behind the anchors; of number 0, the anchors' own."""
    rows, anchors = packed.at(number), torch.from_numpy(texts.anchors).to(texts.ids.device)
    return rows[torch.isin(packed.tokens[rows], anchors)]


def _or_masks(packed: Packed, read: Tensor, vectors: Tensor | None) -> Tensor:
    """Return what each row reads: its token's, (R, D), or its mask's vector."""
    if vectors is None:
        return read
    return torch.where((packed.numbers == 0)[:, None], read, vectors[(packed.numbers - 1).clamp(min=0)])


def _vectors(masks: int, width: int, level: float, *names: str) -> nn.ParameterDict:
    """Begin with vectors as large as features: a small one would look at all tokens alike, and leave that slowly.

    Without masks there are none.
    """
    kept = names if masks else ()
    return nn.ParameterDict({name: nn.Parameter(level * torch.randn(masks, width)) for name in kept})


def _scatter(module: nn.Module) -> None:
    """Begin with small random matrices."""
    for parameter in module.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
