"""Medusa (Cai et al. 2024): heads side by side on one hidden state, in one call.

Head i maps f_(n-1) to the state of x_(n+1+i) by its layers x + SiLU(W x + b), tensors
`{i}.{j}.linear`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specscope.engine.errors import ModelError
from specscope.engine.heads import modules
from specscope.engine.heads.config import MOST, HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Growing, Head, HeadForwards, LevelLogits, Take
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.published import Published, target_name, vocab_size
from specscope.engine.heads.trainable import Frozen, Learned, Texts, TrainableHead
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.fields import MOST_TOKENS
from specscope.engine.model.weights import Linear

_PREFIX = "medusa_head."
_BLOCK = re.compile(r"([0-9]{1,12})\.([0-9]{1,12})\.linear\.weight")


def check(config: HeadConfig) -> None:
    low = 1 if config.own_lm_head else 0
    config.check(vocab_size=(low, MOST_TOKENS), heads=(1, MOST), layers=(1, MOST))
    config.check_reads_last_state()


def _tensors(config: HeadConfig) -> TensorShapes:
    d, shapes = config.hidden_size, TensorShapes()
    for i in range(config.heads):
        for j in range(config.layers):
            shapes |= {f"{i}.{j}.linear.weight": (d, d), f"{i}.{j}.linear.bias": (d,)}
        if config.own_lm_head:
            shapes[f"{i}.{config.layers}.weight"] = (config.drafted, d)
    return shapes | modules.vocabulary_tensors(config)


def _matches(names: Collection[str]) -> bool:
    return any(name.startswith(_PREFIX) or _BLOCK.fullmatch(name) for name in names)


def _read(path: Path, raw: Mapping[str, Any], shapes: TensorShapes) -> Published:
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in shapes) else ""
    names = {name.removeprefix(prefix): name for name in shapes if name.startswith(prefix)}
    blocks = [tuple(map(int, match.groups())) for match in map(_BLOCK.fullmatch, names) if match]
    if not blocks:
        raise ModelError(f"{path} lacks 0.0.linear.weight, which a Medusa head has")
    heads, layers = (1 + max(column) for column in zip(*blocks, strict=True))
    lm_head, first = names.get(f"0.{layers}.weight"), names.get("0.0.linear.weight")
    config = HeadConfig(
        "medusa",
        shapes[first][0] if first else 0,
        shapes[lm_head][0] if lm_head else vocab_size(path, raw),
        heads=heads,
        layers=layers,
        target=target_name(raw),
        own_lm_head=bool(lm_head),
    )
    return Published(config, names)


def _work(config: HeadConfig, levels: int, number: int) -> Work:  # noqa: ARG001 - one call
    lm_heads = levels if config.own_lm_head else 1
    return Work(0, config.layers * levels, modules.vocabulary_share(config) * lm_heads, levels)


def _load(config: HeadConfig, take: Take, target: Decoder) -> Head:
    heads = range(config.heads)
    blocks = [[modules.linear(take, f"{i}.{j}.linear") for j in range(config.layers)] for i in heads]
    own, lent = list[Linear](), None
    if config.own_lm_head:
        own, columns = modules.own_lm_heads(config, take, [f"{i}.{config.layers}.weight" for i in heads])
    else:
        lent, columns = modules.lent_lm_head(config, take, target)

    @torch.inference_mode()
    def logits(states: Tensor, count: int) -> Tensor:
        """Map B states f_(n-1), (B, D), to the logits of the first `count` heads, (B, count, N)."""
        read = [modules.residual(layers, states) for layers in blocks[:count]]
        if lent is None:
            computed = torch.cat([lm_head(x) for lm_head, x in zip(own, read, strict=False)])
        else:
            computed = lent(torch.cat(read))
        return computed.float().unflatten(0, (count, len(states))).transpose(0, 1)

    def draft(forwards: HeadForwards) -> LevelLogits:
        def compute(trees: Sequence[Growing]) -> Sequence[Tensor]:
            count, states = max(tree.levels for tree in trees), forwards.target_states(trees)
            work = _work(config, count, 0)._replace(outputs=count * len(trees))
            return forwards.timed(trees, len(trees), work, lambda: logits(states, count)).unbind()

        return modules.draft_at_once(compute)

    return Head(columns, draft)


def _block(width: int) -> nn.Module:
    """Return a block that begins as the identity."""
    block = nn.Linear(width, width)
    nn.init.zeros_(block.weight)
    nn.init.zeros_(block.bias)
    return nn.ModuleDict({"linear": block})


def _trainable(width: int, heads: int) -> TrainableHead:
    module = nn.ModuleList(nn.ModuleList([_block(width)]) for _ in range(heads))

    def own(i: int) -> Tensor | None:
        parameters = dict(module.named_parameters())
        return parameters.get(f"{i}.1.weight")

    def state(i: int, features: Tensor) -> Tensor:
        return modules.residual([module.get_submodule(f"{i}.0.linear")], features)

    def learn(texts: Texts) -> list[Learned]:
        anchors = [texts.anchor_tensor(i + 1) for i in range(heads)]
        return [Learned(state(i, texts.features[n - 1]), n + 1 + i, own(i)) for i, n in enumerate(anchors)]

    def draft(texts: Texts, frozen: Frozen, count: int) -> Tensor:
        features = texts.features[texts.anchor_tensor(0) - 1]
        return torch.stack([frozen.draft_best(state(i, features), own(i)) for i in range(count)], 1)

    def add_lm_heads(lm_head: Tensor) -> None:
        for i in range(heads):
            learned = nn.ParameterDict({"weight": nn.Parameter(lm_head.clone())})
            module.get_submodule(str(i)).add_module("1", learned)

    return TrainableHead(module, learn, draft, add_lm_heads=add_lm_heads)


KIND = Kind(
    check=check,
    tensors=_tensors,
    load=_load,
    work=_work,
    layered=False,
    sized_by="heads",
    published=PublishedForm(_matches, _read),
    trainable=lambda shape, size, *_: _trainable(shape.width, size),
)
