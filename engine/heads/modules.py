"""Drafting heads: small parts beside a target that draft from its hidden states, with its embedding and its own head.

Sources: Medusa (Cai et al. 2024), Hydra (Ankner et al. 2024), EAGLE (Li et al. 2024), EAGLE-3 (Li et al. 2025), ParallelSpec
(Xiao et al. 2024), section 4.3. D is the target's width, V its vocabulary, h the hidden state of the last token but one: what the target's last
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
from engine.heads.files import read_head, target_ids
from engine.heads.form import HeadConfig
from engine.model.decoder import Decoder
from engine.model.language import LanguageModel
from engine.model.memoized import MemoizedModel
from engine.model.slots import Rows
from engine.model.weights import Linear, Norm, identity

Take = Callable[[str], Tensor]


class Work(NamedTuple):
    """What a forward of a head computes, for those who ask how long it takes."""

    layers: int
    """Transformer layers of the target's shape."""
    squares: float
    """Matrices of D x D beside them."""
    heads: float = 1
    """Matrices of V x D; one of a part of the vocabulary counts as its share."""
    outputs: int = 0
    """Rows of logits, where they are not one for each row."""


class Medusa:
    """Heads on one hidden state; head i says what comes i + 1 tokens after the last one.

    Each is a chain of blocks x + SiLU(W x + b), then the target's head or one of its own.
    """

    keeps = ()
    layer = None

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        self._blocks = [
            [_linear(take, f"{i}.{j}.linear") for j in range(config.layers)] for i in range(config.heads)
        ]
        own = range(config.heads) if config.own_lm_head else ()
        self._heads = [_linear(take, f"{i}.{config.layers}", bias=False) for i in own]
        self._shared = target.head

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

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        every = range(config.heads)
        self._first = [_linear(take, f"hydra_mlp.{i}.1.linear") for i in every]
        self._residual = [_linear(take, f"hydra_mlp.{i}.1.res_connection") for i in every]
        behind = range(3, 2 * config.layers + 1, 2)
        self._blocks = [[_linear(take, f"hydra_mlp.{i}.{j}.linear") for j in behind] for i in every]
        self._heads = [target.head for _ in every]
        if config.own_lm_head:
            self._heads = [_linear(take, f"hydra_lm_head.{i}.1", bias=config.biased) for i in every]
        self._embedding = target.embedding

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
    work = exact = Work(1, 2)
    fuse = staticmethod(identity)

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        fc = _linear(take, "fc", bias=config.biased)
        self.layer = _layer(
            config, take, target, lambda rows, e: (fc(torch.cat([e, _beside(rows)], 1)), None)
        )


class Eagle3:
    """EAGLE's layer on states from low, middle and high layers of the target, with an LM head of its own (EAGLE-3, section 3.1).

    `fuse` makes one vector of them. The row of token j reads its embedding beside the vector of token j - 1, each normed; what the
    layer makes of it, before its last norm, is the vector of token j where that was drafted.
    """

    keeps = (1,)

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        shape, vocab = config.layer(), config.draft_vocab or config.vocab_size
        self.fuse = _linear(take, "fc", bias=False)
        embedded, vectors = (
            Norm(take(f"layers.0.{name}.weight"), shape.eps) for name in ("input_layernorm", "hidden_norm")
        )

        def before(rows: Rows, e: Tensor) -> tuple[Tensor, Tensor]:
            f = _beside(rows)
            normed = vectors(f)
            return normed if config.norm_before_residual else f.clone(), torch.cat([embedded(e), normed], 1)

        head = _linear(take, "lm_head", bias=False)
        if config.draft_vocab:
            head = Scattered(head, target_ids(take("d2t")), config.vocab_size)
        embedding = take("embed_tokens.weight") if config.own_embedding else target.embedding
        self.layer = _layer(config, take, target, before, (embedding, head))
        wider = (shape.heads + 2 * shape.kv_heads) * shape.head_dim / shape.width
        self.work = Work(1, wider, vocab / config.vocab_size)
        self.exact = self.work._replace(squares=wider + config.states)


class Scattered:
    """An LM head that knows some of the target's tokens; all others have no probability.

    Args:
        head: Returns their logits.
        ids: The target's id of each, (N,).
        vocab: V.
    """

    def __init__(self, head: Linear, ids: Tensor, vocab: int) -> None:
        self._head, self._ids, self._vocab = head, ids, vocab

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of all tokens, (T, V), for x of (T, D)."""
        nothing = x.new_full((len(x), self._vocab), -torch.inf)
        return nothing.index_copy_(1, self._ids, self._head(x))


class ParallelEagle:
    """EAGLE's layer with mask tokens: one forward over the last token and K masks says the next K + 1 tokens.

    A mask's row reads learned vectors in place of both the embedding and the state.
    """

    keeps = ()
    work = exact = Work(1, 2)
    fuse = staticmethod(identity)

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        fc = _linear(take, "fc", bias=config.biased)
        embedding, feature = _masks(config, take, "mask.embedding"), _masks(config, take, "mask.feature")

        def before(rows: Rows, e: Tensor) -> tuple[Tensor, None]:
            e, h = _masked(rows, e, embedding), _masked(rows, _beside(rows), feature)
            return fc(torch.cat([e, h], 1)), None

        self.layer = _layer(config, take, target, before)


class ParallelMedusa:
    """A layer with mask tokens in place of Medusa's heads.

    The row of token j reads E(x_j), scaled, + h_(j-1), a mask's row a learned vector.
    """

    keeps = ()
    work = exact = Work(1, 0)
    fuse = staticmethod(identity)

    def __init__(self, config: HeadConfig, take: Take, target: Decoder) -> None:
        embedding, scale = _masks(config, take, "mask.embedding"), config.embedding_scale

        def before(rows: Rows, e: Tensor) -> tuple[Tensor, None]:
            return _masked(rows, scale * e + _beside(rows), embedding), None

        self.layer = _layer(config, take, target, before)


Layered: TypeAlias = Eagle | Eagle3 | ParallelEagle | ParallelMedusa
"""`fuse`: makes vectors (T, D) for its rows of the target's states, (T, k D). `exact`: what a forward computes that begins with
them; `work`: one of rows whose vectors are there."""
Head: TypeAlias = Medusa | Hydra | Layered
"""`keeps`: hidden states of its own layer that it reads again; `layer`: its layer, where it has one."""
_CLASSES: Mapping[str, type[Head]] = {
    "medusa": Medusa,
    "hydra": Hydra,
    "eagle": Eagle,
    "eagle3": Eagle3,
    "parallelspec_medusa": ParallelMedusa,
    "parallelspec_eagle": ParallelEagle,
}


def load_head(path: str, target: LanguageModel) -> Head:
    """Load the head of a directory, SpecScope's own or a published one, beside its target.

    Raises:
        ModelError: Its config or its weights are missing or broken.
        UsageError: The target has no hidden states.
    """
    if isinstance(target, MemoizedModel):
        target = target.model
    if not isinstance(target, Decoder):
        raise UsageError(
            "a drafting head reads the target's hidden states, which drawn or recorded tokens do not have; leave tokens at pair"
        )
    head = read_head(Path(path), device=target.device, dtype=target.dtype)
    return _CLASSES[head.config.kind](head.config, head.tensors.pop, target)


def _linear(take: Take, name: str, *, bias: bool = True) -> Linear:
    return Linear(take(f"{name}.weight"), take(f"{name}.bias") if bias else None)


def _through(blocks: Sequence[Linear], x: Tensor) -> Tensor:
    for block in blocks:
        x = x + functional.silu(block(x))
    return x


def _layer(
    config: HeadConfig,
    take: Take,
    target: Decoder,
    before: Callable[[Rows, Tensor], tuple[Tensor, Tensor | None]],
    ends: tuple[Tensor, Callable[[Tensor], Tensor]] | None = None,
) -> Decoder:
    """Return a head's layer, with the target's embedding and head where it has none of its own."""

    def named(key: str) -> Tensor:
        return take(key.removeprefix("model."))

    embedding, head = ends or (target.embedding, target.head)
    return Decoder(
        config.layer(),
        named,
        "drafter",
        embedding=embedding,
        head=head,
        make_inputs=before,
        mask_tokens=config.masks,
    )


def _masks(config: HeadConfig, take: Take, name: str) -> Tensor | None:
    return take(name) if config.masks else None


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
