"""Texts as packed rows, and what a head learns of them.

A head turns the target's features into states that the target's own LM head reads. Embeddings are
often much smaller than features, and small inputs are learned slowly, so a head is trained on
embeddings times a scale.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows, Slots


class Texts(NamedTuple):
    """Texts end to end, T tokens, and the tokens after which drafts begin."""

    ids: Tensor
    """x, (T,) int64."""
    embedded: Tensor
    """E(x) times the scale, (T, D)."""
    features: Tensor
    """f: the target's final normed hidden state at each token, (T, D)."""
    starts: np.ndarray
    """First token of each text, then T, (N + 1,) int64."""
    anchors: np.ndarray
    """Tokens after which a draft begins, (A,) int64, rising; none is the first or the last of its
    text."""
    states: Tensor | None = None
    """What a head reads of the target at each token, (T, k D); None: the features."""
    answers: Tensor | None = None
    """Whether each token belongs to an answer, (T,) bool; losses count no others. None: all do."""

    def anchors_with(self, count: int) -> np.ndarray:
        """Return the anchors whose text has at least `count` more tokens."""
        ends = self.starts[np.searchsorted(self.starts, self.anchors, side="right")]
        return self.anchors[self.anchors + count < ends]

    def anchor_tensor(self, count: int) -> Tensor:
        return torch.from_numpy(self.anchors_with(count)).to(self.ids.device)


class Packed(NamedTuple):
    """R packed rows: those of several texts, one text after the other."""

    tokens: Tensor
    """Index in `Texts` of the token that each row is or follows, (R,) int64."""
    numbers: Tensor
    """Number of the row in its group, (R,) int64: 0 for the token, k for the k-th row after it."""
    positions: Tensor
    """(R,) int64, from 0 in each text."""
    seen: tuple[Tensor, ...]
    """For each text the rows that each row attends to, itself included, (R', R') bool."""

    def at(self, number: int) -> Tensor:
        return torch.nonzero(self.numbers == number)[:, 0]


def lay_out(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pack a text's tokens, (L,), with `groups[i]` rows after token i; see `Packed`."""
    sizes = groups + 1
    tokens = np.repeat(np.arange(len(groups)), sizes)
    first = np.cumsum(sizes) - sizes
    numbers = np.arange(len(tokens)) - first[tokens]
    previous = np.concatenate([[-1], first[:-1]])
    parents = np.where(numbers == 0, previous[tokens], np.arange(len(tokens)) - 1)
    slots = Slots(1, len(tokens))
    slots.append(Rows.of(0, np.zeros(len(tokens)), parents))
    return tokens, numbers, slots.positions[0], slots.ancestor_mask(0, 0)


def pack(texts: Texts, count: int, *, within: bool) -> Packed:
    """Return the rows that a layer reads: the tokens of each text without its ends, with groups.

    The row of x_j reads f_(j-1), so x_0 has no row; x_(L-1) has nothing to predict. Each anchor has
    `count` rows after it, without those that would predict past the end of their text if `within`.
    """
    layouts = list[tuple[np.ndarray, ...]]()
    for start, stop in zip(texts.starts[:-1], texts.starts[1:], strict=True):
        inner = np.arange(start + 1, stop - 1)
        groups = np.where(np.isin(inner, texts.anchors), count, 0)
        tokens, *layout = lay_out(np.minimum(groups, stop - 2 - inner) if within else groups)
        layouts.append((inner[tokens], *layout))
    *columns, masks = zip(*layouts, strict=True)
    device = texts.ids.device
    return Packed(
        *(torch.from_numpy(np.concatenate(column)).to(device) for column in columns),
        seen=tuple(torch.from_numpy(mask).to(device) for mask in masks),
    )


class TrainableNorm(nn.RMSNorm):
    """A norm whose weight stays in float32 under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class PackedLayer(nn.Module):
    """A Llama layer over packed rows; its attention may read other vectors, `inputs` wide."""

    def __init__(self, shape: ModelShape, inputs: int = 0) -> None:
        super().__init__()
        width, queries, keys = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.input_layernorm = TrainableNorm(width, shape.eps) if shape.input_norm else nn.Identity()
        sizes = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        reads = {name: nn.Linear(inputs or width, n, bias=shape.qkv_bias) for name, n in sizes.items()}
        self.self_attn = nn.ModuleDict(reads | {"o_proj": nn.Linear(queries, width, bias=False)})
        self.post_attention_layernorm = TrainableNorm(width, shape.eps)
        gates = {name: nn.Linear(width, shape.inner, bias=False) for name in ("gate_proj", "up_proj")}
        self.mlp = nn.ModuleDict(gates | {"down_proj": nn.Linear(shape.inner, width, bias=False)})
        if shape.qk_norm:
            norms = {name: TrainableNorm(shape.head_dim, shape.eps) for name in ("q_norm", "k_norm")}
            self.self_attn.update(norms)
        self._size, self._scale = shape.head_dim, shape.rope_scale
        self.register_buffer("frequencies", torch.tensor(shape.frequencies), persistent=False)

    def forward(self, x: Tensor, attention_input: Tensor | None, packed: Packed) -> Tensor:
        """Map residual inputs, (R, D), to outputs; attention reads its own or the normed x."""
        x = x + self._attention(
            self.input_layernorm(x) if attention_input is None else attention_input, packed
        )
        y, mlp = self.post_attention_layernorm(x), self.mlp
        return x + mlp["down_proj"](functional.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))

    def _attention(self, x: Tensor, packed: Packed) -> Tensor:
        angles = packed.positions[:, None, None] * self.get_buffer("frequencies")
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        q, k, v = (self.self_attn[f"{name}_proj"](x).unflatten(-1, (-1, self._size)) for name in "qkv")
        if "q_norm" in self.self_attn:
            q, k = self.self_attn["q_norm"](q), self.self_attn["k_norm"](k)
        sizes = [len(mask) for mask in packed.seen]
        split = (t.transpose(0, 1).split(sizes, 1) for t in (_rotate(q, cos, sin), _rotate(k, cos, sin), v))
        outputs = [
            functional.scaled_dot_product_attention(*(t[None] for t in qkv), attn_mask=mask, enable_gqa=True)
            for qkv, mask in zip(zip(*split, strict=True), packed.seen, strict=True)
        ]
        return self.self_attn["o_proj"](torch.cat(outputs, 2)[0].transpose(0, 1).flatten(1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2)."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


_AT_ONCE = 1024
"""States whose logits are computed at once: V floats each."""


class Frozen(NamedTuple):
    """What heads share with the target; never trained."""

    embedding: Tensor
    """E, (V, D)."""
    lm_head: Tensor
    tokens: Tensor | None = None
    """The tokens that the head drafts, (N,) int64, rising; None: all."""
    rows: Tensor | None = None
    scale: float = 1.0
    """Factor of the embeddings in training; the file's weights include it."""

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embedding[tokens] * self.scale

    def shortened(self, tokens: Tensor) -> Frozen:
        return self._replace(tokens=tokens, rows=self.lm_head[tokens])

    @property
    def draft_lm_head(self) -> Tensor:
        return self.lm_head if self.rows is None else self.rows

    def columns(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's column among the drafted ones, and whether it has one, (T,) each."""
        if self.tokens is None:
            return tokens, torch.ones_like(tokens, dtype=torch.bool)
        columns = torch.searchsorted(self.tokens, tokens).clamp(max=len(self.tokens) - 1)
        return columns, self.tokens[columns] == tokens

    def target_best(self, states: Tensor) -> Tensor:
        """Return the target's most probable token of each state: (T, D) -> (T,)."""
        return torch.cat([(part @ self.lm_head.T).argmax(-1) for part in states.split(_AT_ONCE)])

    def draft_best(self, states: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the head's most probable token of each state, (T,); `own`: its LM head, (N, D)."""
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
    """Their LM head, (N, D); None: the target's."""

    def of_answers(self, texts: Texts) -> Learned:
        if texts.answers is None:
            return self
        counted = texts.answers[self.labels]
        return Learned(self.states[counted], self.labels[counted], self.own)


def with_blocks(packed: Packed) -> Packed:
    """Let the rows of a group, which follow its token, attend to each other in both directions."""
    groups = torch.where(packed.numbers > 0, packed.tokens, -1).split([len(mask) for mask in packed.seen])
    seen = (m | (g[:, None] == g) & (g >= 0) for m, g in zip(packed.seen, groups, strict=True))
    return packed._replace(seen=tuple(seen))


def rows_of_anchors(texts: Texts, packed: Packed, number: int) -> Tensor:
    """Return the rows of a number in the anchors' groups; the anchors themselves have number 0."""
    rows, anchors = packed.at(number), torch.from_numpy(texts.anchors).to(texts.ids.device)
    return rows[torch.isin(packed.tokens[rows], anchors)]


def states_of(head: Any, embedded: Tensor, features: Tensor, packed: Packed) -> Tensor:
    """Return the states of packed rows, (R, D), of a head with a layer.

    Such a head has `layers`, one `PackedLayer`, `norm`, and `inputs(numbers, embedded, features)`,
    which returns the layer's two inputs.
    """
    return head.norm(head.layers[0](*head.inputs(packed.numbers, embedded, features), packed))


def _states(head: Any, texts: Texts, packed: Packed) -> Tensor:
    return states_of(head, texts.embedded[packed.tokens], texts.features[packed.tokens - 1], packed)


def learn_with_masks(head: Any, texts: Texts, masks: int) -> list[Learned]:
    """Return the states of all tokens, and of the K masks behind the anchors."""
    packed = pack(texts, masks, within=True)
    states, rows = _states(head, texts, packed), [packed.at(k) for k in range(masks + 1)]
    return [Learned(states[at], packed.tokens[at] + 1 + k) for k, at in enumerate(rows)]


def draft_with_masks(head: Any, texts: Texts, frozen: Frozen, count: int) -> Tensor:
    """Draft all tokens in one forward over masks."""
    packed = pack(texts, count - 1, within=False)
    states = _states(head, texts, packed)
    places = (states[rows_of_anchors(texts, packed, k)] for k in range(count))
    return torch.stack([frozen.draft_best(place) for place in places], 1)


def mask_vectors(masks: int, width: int, *names: str) -> nn.ParameterDict:
    """Return random vectors; none without masks.

    A training makes them as large as features: a small vector would attend to all tokens alike,
    and training leaves that state slowly.
    """
    return nn.ParameterDict({name: torch.randn(masks, width) for name in names if masks})


def init_matrices(module: nn.Module) -> None:
    for parameter in module.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
