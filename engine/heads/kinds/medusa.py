"""Medusa (Cai et al. 2024): heads side by side on one hidden state, in one call.

Head i maps f_(n-1) to the state of x_(n+1+i) by its layers x + SiLU(W x + b), tensors
`{i}.{j}.linear`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specscope.engine.errors import ModelError
from specscope.engine.heads import modules
from specscope.engine.heads.config import MOST, HeadConfig, TensorShapes
from specscope.engine.heads.drafting import AllLevels, Head
from specscope.engine.heads.kind import Kind, PublishedForm
from specscope.engine.heads.packed import Frozen, Learned, Texts
from specscope.engine.heads.published import Published, target_name, vocab_size
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


class Medusa(nn.Module):
    """Heads that begin as the identity."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        for i in range(config.heads):
            blocks: list[nn.Module] = [_block(config.hidden_size) for _ in range(config.layers)]
            if config.own_lm_head:
                weight = torch.empty(config.drafted, config.hidden_size)
                blocks.append(nn.ParameterDict({"weight": weight}))
            self.add_module(str(i), nn.ModuleList(blocks))

    @property
    def blocks(self) -> list[list[nn.Module]]:
        layers = range(self.config.layers)
        return [[self.get_submodule(f"{i}.{j}.linear") for j in layers] for i in range(self.config.heads)]

    @property
    def lm_heads(self) -> list[Tensor]:
        """Each head's own LM head, (N, D); none if they use the target's."""
        heads = range(self.config.heads if self.config.own_lm_head else 0)
        return [self.get_parameter(f"{i}.{self.config.layers}.weight") for i in heads]

    def _states(self, feature_of: Callable[[int], Tensor], count: int) -> list[Tensor]:
        return [modules.residual(blocks, feature_of(i)) for i, blocks in enumerate(self.blocks[:count])]

    def learn(self, texts: Texts) -> list[Learned]:
        anchors = [texts.anchor_tensor(i + 1) for i in range(self.config.heads)]
        states = self._states(lambda i: texts.features[anchors[i] - 1], self.config.heads)
        own = self.lm_heads or [None] * len(states)
        return [Learned(state, anchors[i] + 1 + i, own[i]) for i, state in enumerate(states)]

    def draft(self, texts: Texts, frozen: Frozen, count: int) -> Tensor:
        features = texts.features[texts.anchor_tensor(0) - 1]
        states = self._states(lambda _: features, count)
        own = self.lm_heads or [None] * len(states)
        return torch.stack([frozen.draft_best(state, own[i]) for i, state in enumerate(states)], 1)

    def serve(self, target: Decoder, d2t: Tensor | None) -> Head:
        own, lent, blocks = list[Linear](), None, self.blocks
        if self.config.own_lm_head:
            own, columns = modules.own_lm_heads(self.lm_heads, d2t)
        else:
            lent, columns = modules.lent_lm_head(target, d2t)

        @torch.inference_mode()
        def logits(states: Tensor, count: int) -> Tensor:
            """Map B states f_(n-1), (B, D), to logits of the first heads, (B, count, N)."""
            read = [modules.residual(layers, states) for layers in blocks[:count]]
            if lent is None:
                computed = torch.cat([lm_head(x) for lm_head, x in zip(own, read, strict=False)])
            else:
                computed = lent(torch.cat(read))
            return computed.float().unflatten(0, (count, len(states))).transpose(0, 1)

        def work(count: int) -> Work:
            return _work(self.config, count, 0)._replace(outputs=count)

        source = AllLevels(logits, work)
        return Head(columns, modules.draft_from_state(source), from_state=source)


def _block(width: int) -> nn.Module:
    block = nn.Linear(width, width)
    nn.init.zeros_(block.weight)
    nn.init.zeros_(block.bias)
    return nn.ModuleDict({"linear": block})


KIND = Kind(
    module=Medusa,
    check=check,
    work=_work,
    layered=False,
    sized_by="heads",
    published=PublishedForm(_matches, _read),
    own_lm_heads=True,
)
