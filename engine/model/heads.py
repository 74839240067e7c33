"""Drafting heads: small parts beside a target that draft from its hidden states, with its embedding and its own head.

Sources: Medusa (Cai et al. 2024), Hydra (Ankner et al. 2024), EAGLE (Li et al. 2024), ParallelSpec (Xiao et al. 2024), section
4.3. D is the target's width, V its vocabulary, h the hidden state of the last token but one: what the target's last
forward left of the token before its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.errors import UsageError
from engine.model.decoder import Decoder
from engine.model.headfile import KINDS, HeadFile
from engine.model.load import Checkpoint
from engine.model.slots import LanguageModel, Rows
from engine.model.weights import Linear

Take = Callable[[str], Tensor]
Sizes = dict[str, tuple[int, ...]]


class Work(NamedTuple):
    """What a forward of a head computes, for those who ask how long it takes."""

    layers: int
    """Transformer layers of the target's shape."""
    squares: int
    """Matrices of D x D beside them."""
    heads: int = 1
    """Matrices of V x D."""
    outputs: int = 0
    """Rows of logits, where they are not one for each row."""


class Medusa:
    """Heads on one hidden state; head i says what comes i + 1 tokens after the last one.

    Each is a chain of blocks x + SiLU(W x + b), then the target's head or one of its own.
    """

    keeps = ()
    layer = None

    def __init__(self, file: HeadFile, take: Take, target: Decoder, own: bool) -> None:
        self._blocks = [
            [_linear(take, f"{i}.{j}.linear") for j in range(file.layers)] for i in range(file.heads)
        ]
        self._heads = [Linear(take(f"{i}.{file.layers}.weight")) for i in range(file.heads)] if own else []
        self._shared = target.head

    @staticmethod
    def tensors(file: HeadFile) -> tuple[Sizes, Sizes]:
        """Return the names and shapes of its tensors, and of those that it may lack."""
        d, every = file.hidden_size, range(file.heads)
        blocks = [f"{i}.{j}.linear" for i in every for j in range(file.layers)]
        sizes = {f"{name}.weight": (d, d) for name in blocks} | {f"{name}.bias": (d,) for name in blocks}
        return sizes, {f"{i}.{file.layers}.weight": (file.vocab_size, d) for i in every}

    @torch.inference_mode()
    def __call__(self, h: Tensor, count: int) -> Tensor:
        """Return the logits of the first heads, (count, V), for h of (D,)."""
        states = [_through(blocks, h[None]) for blocks in self._blocks[:count]]
        if not self._heads:
            return self._shared(torch.cat(states)).float()
        return torch.cat([head(x) for head, x in zip(self._heads, states, strict=False)]).float()

    def work(self, count: int) -> Work:
        """Return what a call computes."""
        return Work(0, sum(map(len, self._blocks[:count])), count if self._heads else 1, count)


class Hydra:
    """Heads that also read the tokens drafted so far: head i reads h and the embeddings of the last token and of i drafted ones."""

    keeps = ()
    layer = None

    def __init__(self, file: HeadFile, take: Take, target: Decoder, own: bool) -> None:
        every = range(file.heads)
        self._first = [_linear(take, f"hydra_mlp.{i}.1.linear") for i in every]
        self._residual = [_linear(take, f"hydra_mlp.{i}.1.res_connection") for i in every]
        more = range(3, 2 * file.layers + 1, 2)
        self._blocks = [[_linear(take, f"hydra_mlp.{i}.{j}.linear") for j in more] for i in every]
        self._heads = [_linear(take, f"hydra_lm_head.{i}.1") if own else target.head for i in every]
        self._embedding = target.embedding

    @staticmethod
    def tensors(file: HeadFile) -> tuple[Sizes, Sizes]:
        """Return the names and shapes of its tensors, and of those that it may lack."""
        d, v, sizes, own = file.hidden_size, file.vocab_size, dict[str, tuple[int, ...]](), {}
        for i in range(file.heads):
            at = f"hydra_mlp.{i}"
            columns = {f"{at}.1.linear": (i + 2) * d, f"{at}.1.res_connection": (i + 2) * d}
            columns |= {f"{at}.{j}.linear": d for j in range(3, 2 * file.layers + 1, 2)}
            sizes |= {f"{name}.weight": (d, n) for name, n in columns.items()}
            sizes |= {f"{name}.bias": (d,) for name in columns}
            own |= {f"hydra_lm_head.{i}.1.weight": (v, d), f"hydra_lm_head.{i}.1.bias": (v,)}
        return sizes, own

    @torch.inference_mode()
    def __call__(self, h: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits after some nodes of one level, (R, V).

        Args:
            h: (D,).
            paths: Of each node the tokens from the last one of the prefix on; i + 1 of them for head i.
        """
        i = len(paths[0]) - 1
        ids = torch.tensor([token for path in paths for token in path], device=self._embedding.device)
        tokens = self._embedding.index_select(0, ids).view(len(paths), -1)
        z = torch.cat([h.expand(len(paths), -1), tokens], 1)
        x = self._residual[i](z) + functional.silu(self._first[i](z))
        return self._heads[i](_through(self._blocks[i], x)).float()

    def work(self, i: int) -> Work:
        """Return what a call of head i computes."""
        return Work(0, 2 * (i + 2) + len(self._blocks[i]))


class Eagle:
    """A layer that goes on at the level of hidden states: from the state before a token, and the token, to the state of it.

    The row of token j reads fc([E(x_j); h_(j-1)]); what the layer makes of it is the state it predicts for token j.
    """

    keeps = (-1,)
    work = Work(1, 2)

    def __init__(self, file: HeadFile, take: Take, target: Decoder, own: bool) -> None:
        fc = _linear(take, "fc", bias=own)
        self.layer = _layer(file, take, target, lambda rows, e: fc(torch.cat([e, _beside(rows)], 1)))

    @staticmethod
    def tensors(file: HeadFile) -> tuple[Sizes, Sizes]:
        """Return the names and shapes of its tensors, and of those that it may lack."""
        d = file.hidden_size
        return _layer_tensors(file) | {"fc.weight": (d, 2 * d)}, {"fc.bias": (d,)}


class ParallelEagle:
    """EAGLE's layer with mask tokens: one forward over the last token and K masks says the next K + 1 tokens.

    A mask's row reads learned vectors in place of both the embedding and the state.
    """

    keeps = ()
    work = Work(1, 2)

    def __init__(self, file: HeadFile, take: Take, target: Decoder, own: bool) -> None:
        fc = _linear(take, "fc", bias=own)
        embedding, feature = _masks(file, take, "mask.embedding"), _masks(file, take, "mask.feature")

        def before(rows: Rows, e: Tensor) -> Tensor:
            e, h = _masked(rows, e, embedding), _masked(rows, _beside(rows), feature)
            return fc(torch.cat([e, h], 1))

        self.layer = _layer(file, take, target, before)

    @staticmethod
    def tensors(file: HeadFile) -> tuple[Sizes, Sizes]:
        """Return the names and shapes of its tensors, and of those that it may lack."""
        sizes, bias = Eagle.tensors(file)
        return sizes | _mask_tensors(file, "mask.embedding", "mask.feature"), bias


class ParallelMedusa:
    """A layer with mask tokens in place of Medusa's heads: the row of token j reads E(x_j) + h_(j-1), a mask's row a learned vector."""

    keeps = ()
    work = Work(1, 0)

    def __init__(self, file: HeadFile, take: Take, target: Decoder, own: bool) -> None:  # noqa: ARG002 - one signature
        embedding = _masks(file, take, "mask.embedding")
        self.layer = _layer(file, take, target, lambda rows, e: _masked(rows, e + _beside(rows), embedding))

    @staticmethod
    def tensors(file: HeadFile) -> tuple[Sizes, Sizes]:
        """Return the names and shapes of its tensors, and of those that it may lack."""
        return _layer_tensors(file) | _mask_tensors(file, "mask.embedding"), {}


Head: TypeAlias = Medusa | Hydra | Eagle | ParallelEagle | ParallelMedusa
"""`keeps`: hidden states of its own layer that it reads again; `layer`: its layer, where it has one."""
_CLASSES: Mapping[str, type[Head]] = dict(
    zip(KINDS, (Medusa, Hydra, Eagle, ParallelMedusa, ParallelEagle), strict=True)
)


def load_head(path: str, target: LanguageModel) -> Head:
    """Load the head of a directory beside its target.

    Raises:
        ModelError: Its config or its weights are missing or broken.
        UsageError: The target has no hidden states.
    """
    if not isinstance(target, Decoder):
        raise UsageError(
            "a drafting head reads the target's hidden states, which drawn or recorded tokens do not have; leave tokens at pair"
        )
    file = HeadFile.read(Path(path))
    kind, checkpoint = _CLASSES[file.kind], Checkpoint(file.path)
    sizes, optional = kind.tensors(file)
    own = any(name in checkpoint.names for name in optional)
    checkpoint.check(sizes | optional if own else sizes)
    return kind(file, lambda key: checkpoint.take(key, target.device, target.dtype), target, own)


def _linear(take: Take, name: str, *, bias: bool = True) -> Linear:
    return Linear(take(f"{name}.weight"), take(f"{name}.bias") if bias else None)


def _through(blocks: Sequence[Linear], x: Tensor) -> Tensor:
    for block in blocks:
        x = x + functional.silu(block(x))
    return x


def _layer(file: HeadFile, take: Take, target: Decoder, before: Callable[[Rows, Tensor], Tensor]) -> Decoder:
    """Return a head's layer with the target's embedding and head."""
    assert file.shape is not None, "a head with a layer has its shape"

    def named(key: str) -> Tensor:
        return take(key.removeprefix("model."))

    return Decoder(file.shape, named, "drafter", beside=target, before=before, masks=file.masks)


def _layer_tensors(file: HeadFile) -> Sizes:
    assert file.shape is not None, "a head with a layer has its shape"
    sizes = {name.removeprefix("model."): size for name, size in file.shape.tensors().items()}
    return {
        name: size for name, size in sizes.items() if name not in ("embed_tokens.weight", "lm_head.weight")
    }


def _mask_tensors(file: HeadFile, *names: str) -> Sizes:
    return dict.fromkeys(names if file.masks else (), (file.masks, file.hidden_size))


def _masks(file: HeadFile, take: Take, name: str) -> Tensor | None:
    return take(name) if file.masks else None


def _masked(rows: Rows, x: Tensor, learned: Tensor | None) -> Tensor:
    """Put the learned vectors of mask tokens, (K, D), in place of their rows of x, (T, D)."""
    masks = np.flatnonzero(rows.tokens < 0)
    if learned is None or not len(masks):
        return x
    which = torch.from_numpy(-1 - rows.tokens[masks]).to(x.device)
    return x.index_copy(0, torch.from_numpy(masks).to(x.device), learned.index_select(0, which))


def _beside(rows: Rows) -> Tensor:
    assert rows.vectors is not None, "a head's rows carry the target's states"
    return rows.vectors
