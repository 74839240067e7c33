"""Hydra (Ankner et al. 2024): heads that also read the tokens drafted so far.

Head i computes the state of d_(i+1) from z = [f_(n-1); E(x_n); E(d_1) ... E(d_i)]: tensors
`hydra_mlp.{i}.1` are res_connection(z) + SiLU(linear(z)), further layers `hydra_mlp.{i}.{2j+1}` are
x + SiLU(W x + b).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from specscope.engine.errors import ModelError
from specscope.engine.heads.config import HeadConfig, TensorShapes
from specscope.engine.heads.drafting import ByPath, Growing, Head, HeadForwards
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.kinds.medusa import check
from specscope.engine.heads.modules import lent_lm_head, residual, vocabulary_share
from specscope.engine.heads.packed import Frozen, Learned, Texts
from specscope.engine.heads.published import Published, target_name, vocab_size
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder

_MLP = re.compile(r"hydra_mlp\.([0-9]{1,12})\.([0-9]{1,12})\.(.+)")
_LM_HEAD = re.compile(r"hydra_lm_head\.([0-9]{1,12})\.(?:([0-9]{1,12})\.)?(weight|bias)")


def _check(config: HeadConfig) -> None:
    check(config)
    if config.own_lm_head and config.draft_vocab:
        raise ModelError(
            f"draft_vocab is {config.draft_vocab}; it must be 0 for a Hydra head with an LM head of its own"
        )


def _matches(names: Collection[str]) -> bool:
    return any(map(_MLP.fullmatch, names))


def _read(path: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> Published:
    """Read Hydra's names: a block's number is even, or odd where a Dropout precedes each block."""
    blocks = [match.groups() for match in map(_MLP.fullmatch, shapes) if match]
    heads, numbers = 1 + max(int(i) for i, _, _ in blocks), sorted({int(m) for _, m, _ in blocks})
    own_number = {m: 2 * j + 1 for j, m in enumerate(numbers)}
    names = {
        f"hydra_mlp.{i}.{own_number[int(m)]}.{rest}": f"hydra_mlp.{i}.{m}.{rest}" for i, m, rest in blocks
    }
    lm_heads = [match for match in map(_LM_HEAD.fullmatch, shapes) if match]
    names |= {f"hydra_lm_head.{match[1]}.1.{match[3]}": match[0] for match in lm_heads}
    names |= {name: name for name in shapes if name not in names.values()}
    first = names.get("hydra_mlp.0.1.linear.weight")
    if first is None:
        raise ModelError(f"{path} lacks hydra_mlp.0.{numbers[0]}.linear.weight, which a Hydra head has")
    config = HeadConfig(
        "hydra",
        shapes[first][0],
        max((shapes[match[0]][0] for match in lm_heads), default=vocab_size(path, raw)),
        heads=heads,
        layers=len(numbers),
        target=target_name(raw),
        own_lm_head=bool(lm_heads),
        biased=any(match[3] == "bias" for match in lm_heads),
    )
    return Published(config, names)


def _work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - a head per level
    return Work(0, 2 * (number + 2) + config.layers - 1, vocabulary_share(config))


class Hydra(nn.Module):
    """A head for each token of a draft."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        d, heads = config.hidden_size, range(config.heads)
        self.config = config
        self.hydra_mlp = nn.ModuleList(_mlp(config, i) for i in heads)
        if config.own_lm_head:
            own = (nn.Linear(d, config.vocab_size, bias=config.biased) for _ in heads)
            self.hydra_lm_head = nn.ModuleList(nn.ModuleDict({"1": lm_head}) for lm_head in own)

    @property
    def blocks(self) -> list[list[nn.Module]]:
        """By head: the first block's connection and matrix, then each further block."""
        names = ["1.res_connection", *(f"{2 * j + 1}.linear" for j in range(self.config.layers))]
        return [[head.get_submodule(name) for name in names] for head in self.hydra_mlp]

    def learn(self, texts: Texts) -> list[Learned]:
        learned = list[Learned]()
        for i, blocks in enumerate(self.blocks):
            n = texts.anchor_tensor(i + 1)
            embedded = (texts.embedded[n + j] for j in range(i + 1))
            state = _state(blocks, torch.cat((texts.features[n - 1], *embedded), -1))
            learned.append(Learned(state, n + 1 + i))
        return learned

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        n, drafts = texts.anchor_tensor(0), list[Tensor]()
        inputs = [texts.features[n - 1], texts.embedded[n]]
        for blocks in self.blocks[:count]:
            drafts.append(frozen.draft_best(_state(blocks, torch.cat(inputs, -1))))
            inputs.append(frozen.embed(drafts[-1]))
        return torch.stack(drafts, 1)

    def serve(self, target: Decoder, d2t: Tensor | None) -> Head:
        lm_head, columns = lent_lm_head(target, d2t)
        lm_heads = [head.get_submodule("1") for head in self.hydra_lm_head] if self.config.own_lm_head else []
        embedding, blocks = target.embedding, self.blocks

        @torch.inference_mode()
        def after(states: Tensor, paths: Tensor) -> Tensor:
            i = paths.shape[1] - 1
            tokens = embedding.index_select(0, paths.flatten()).view(len(paths), -1)
            state = _state(blocks[i], torch.cat([states, tokens], 1))
            return (lm_heads[i] if lm_heads else lm_head)(state).float()

        def work(level: int) -> Work:
            return _work(self.config, level + 1, level)

        source = ByPath(after, work)

        def logits(forwards: HeadForwards, trees: Sequence[Growing]) -> Sequence[Tensor]:
            paths = [_path(tree, node) for tree in trees for node in tree.frontier]
            counts = [len(tree.frontier) for tree in trees]
            states = forwards.target_states(trees)
            repeats = torch.tensor(counts, device=states.device)
            states = states.repeat_interleave(repeats, 0, output_size=len(paths))
            ids = torch.tensor(paths, device=embedding.device)
            compute = partial(source.logits, states, ids)
            return forwards.timed(trees, len(paths), source.work(trees[0].depth), compute).split(counts)

        return Head(columns, lambda forwards: partial(logits, forwards), from_state=source)


def _mlp(config: HeadConfig, number: int) -> nn.ModuleDict:
    d, blocks = config.hidden_size, dict[str, nn.Module]()
    for j in range(config.layers):
        inputs = d if j else d * (number + 2)
        parts = {name: nn.Linear(inputs, d) for name in ("linear", "res_connection")[: 1 if j else 2]}
        for part in parts.values():
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)
        blocks[str(2 * j + 1)] = nn.ModuleDict(parts)
    return nn.ModuleDict(blocks)


def _state(blocks: Sequence[nn.Module], z: Tensor) -> Tensor:
    """Return a head's state, (..., D), from a feature and the embeddings behind it, (..., n D)."""
    connection, first, *further = blocks
    return residual(further, connection(z) + functional.silu(first(z)))


def _path(tree: Growing, node: int) -> list[int]:
    path, nodes = list[int](), tree.nodes
    while node >= 0:
        path.insert(0, nodes[node].id)
        node = nodes[node].parent
    return [int(tree.prefix.tokens[-1]), *path]


def _rescaled(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    scaled = dict(tensors)
    for name, tensor in tensors.items():
        if name.startswith("hydra_mlp.") and name.endswith(".weight"):
            feature, embedded = tensor.split((len(tensor), tensor.shape[1] - len(tensor)), 1)
            scaled[name] = torch.cat((feature, embedded * scale), 1)
    return scaled


KIND = Kind(
    module=Hydra,
    check=_check,
    work=_work,
    layered=False,
    sized_by="heads",
    published=PublishedForm(_matches, _read),
    rescale=_rescaled,
)
