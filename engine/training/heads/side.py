"""Medusa's and Hydra's heads as torch modules over a frozen target; a parameter's name is its tensor's name in the file.

They turn the target's features into states that the target's own LM head reads. f_t is the target's final normed hidden
state at token t, E its embedding; x_n is the last known token, the first that is drafted is x_(n+1).

`learn` returns, for each place in a draft, the states of all drafts and which tokens they stand for, with the text's own
tokens as what was drafted before. `draft` drafts greedily behind every anchor, as in use.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.training.heads.layout import Texts


class Frozen(NamedTuple):
    """What heads share with the target; never trained."""

    embedding: Tensor
    """E, (V, D)."""
    lm_head: Tensor
    """(V, D); the embedding where they are tied."""

    def best(self, states: Tensor) -> Tensor:
        """Return the most probable token of each state, (...)."""
        return (states @ self.lm_head.T).argmax(-1)


class Learned(NamedTuple):
    """One place in the drafts, (A',) of them."""

    states: Tensor
    """What the LM head reads, (A', D)."""
    labels: Tensor
    """Place in `Texts` of the token each stands for, (A',) int64; its feature stands one before."""


class ResBlock(nn.Module):
    """x + SiLU(W x + b); begins as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) to (..., D)."""
        return x + functional.silu(self.linear(x))


class Medusa(nn.ModuleList):
    """Heads side by side (Medusa): head i turns f_(n-1) into the state of x_(n+1+i)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(nn.Sequential(ResBlock(width)) for _ in range(heads))

    def learn(self, texts: Texts) -> list[Learned]:
        """Return the states of every head."""
        found = list[Learned]()
        for i, head in enumerate(self):
            n = _places(texts, i)
            found.append(Learned(head(texts.features[n - 1]), n + 1 + i))
        return found

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        """Return `count` drafts at each anchor, (A, count)."""
        read = texts.features[_places(texts) - 1]
        return torch.stack([frozen.best(self[i](read)) for i in range(count)], 1)

    def fold(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return dict(self.state_dict())

    def unfold(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return saved tensors as they were in training."""
        return tensors


class HydraBlock(nn.Module):
    """Wr z + br + SiLU(W z + b)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs * width, width)
        self.res_connection = nn.Linear(inputs * width, width)
        for part in (self.linear, self.res_connection):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Map (..., inputs * D) to (..., D)."""
        return self.res_connection(z) + functional.silu(self.linear(z))


class Hydra(nn.Module):
    """Heads one after the other (Hydra): head i reads f_(n-1), E(x_n) and the embeddings of the i drafts before."""

    def __init__(self, width: int, heads: int, scale: float = 1.0) -> None:
        super().__init__()
        self._scale = scale
        blocks = [HydraBlock(i + 2, width) for i in range(heads)]
        self.hydra_mlp = nn.ModuleList(nn.ModuleDict({"1": block}) for block in blocks)

    def learn(self, texts: Texts) -> list[Learned]:
        """Return the states of every head."""
        found = list[Learned]()
        for i in range(len(self.hydra_mlp)):
            n = _places(texts, i)
            z = [texts.features[n - 1], *(texts.embedded[n + j] for j in range(i + 1))]
            found.append(Learned(self._head(i, *z), n + 1 + i))
        return found

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        """Return `count` drafts at each anchor, (A, count)."""
        n, drafts = _places(texts), list[Tensor]()
        z = [texts.features[n - 1], texts.embedded[n]]
        for i in range(count):
            drafts.append(frozen.best(self._head(i, *z)))
            z.append(frozen.embedding[drafts[-1]])
        return torch.stack(drafts, 1)

    def fold(self) -> dict[str, Tensor]:
        """Return the tensors to save: the scale that the embeddings were trained with goes into the weights."""
        return _scaled(dict(self.state_dict()), self._scale)

    def unfold(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return saved tensors as they were in training."""
        return _scaled(tensors, 1 / self._scale)

    def _head(self, i: int, feature: Tensor, *embedded: Tensor) -> Tensor:
        z = torch.cat((feature, torch.cat(embedded, -1) * self._scale), -1)
        return self.hydra_mlp[i].get_submodule("1")(z)


def _scaled(tensors: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the tensors with the columns that read embeddings times the scale."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        if name.startswith("hydra_mlp.") and name.endswith(".weight"):
            feature, embedded = tensor.split((len(tensor), tensor.shape[1] - len(tensor)), 1)
            found[name] = torch.cat((feature, embedded * scale), 1)
    return found


def _places(texts: Texts, more: int | None = None) -> Tensor:
    """Return the anchors, or those after whose next token there are `more`."""
    found = texts.anchors if more is None else texts.reaching(more + 1)
    return torch.from_numpy(found).to(texts.ids.device)
