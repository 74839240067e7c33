"""What sets one kind of drafting head apart from the others, as data and functions.

A head is one `nn.Module`, in training and in use; a parameter's name is its tensor's name in the
file. These methods of it are called:

- `serve(target, d2t)` returns the `Head` that drafts beside a target. Its matrices are int8.
- `learn(texts)` returns the states of all drafts, by place in the draft, as a list of `Learned`.
  The text's own tokens are the earlier drafts. Trainable kinds only.
- `draft(texts, frozen, count)` returns greedy drafts at every anchor, as in use, (A, count).
  Trainable kinds only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from specscope.engine.heads.config import HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Head
from specscope.engine.heads.modules import round_matrices
from specscope.engine.heads.published import Published
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape


class PublishedForm(NamedTuple):
    """How checkpoints of a kind are published."""

    matches: Callable[[Collection[str]], bool]
    """(names of tensors) -> whether a checkpoint is of the kind."""
    read: Callable[[Path, Mapping[str, Any], TensorShapes], Published]
    """(path for errors, config.json, shapes of the tensors) -> the head; raises ModelError."""


def _unscaled(tensors: Mapping[str, Tensor], _: float) -> dict[str, Tensor]:
    return dict(tensors)


def _same(config: HeadConfig, _: int) -> HeadConfig:
    return config


def _usual(_: ModelShape) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of head; its key is the name of its file."""

    module: Callable[[HeadConfig], Any]
    """Returns a head with random weights; see above."""
    check: Callable[[HeadConfig], None]
    """Raises ModelError."""
    work: Callable[[HeadConfig, int, int], Work]
    """(config, levels of the draft, number of the draft's forward from 0) -> the forward's work for
    one sequence. A prefill is a first forward."""
    layered: bool
    """Whether it has a decoder layer, with KV rows and a context."""
    sized_by: Literal["heads", "masks", "block", ""] = ""
    """The config's field that bounds a draft's length; none: any length."""
    serves: str = ""
    """The kind that methods ask for; empty: this one."""
    published: PublishedForm | None = None
    for_target: Callable[[HeadConfig, int], HeadConfig] = _same
    """(config, layers of the target) -> the config with all states numbered; raises ModelError."""
    trained: Callable[[ModelShape], dict[str, Any]] = _usual
    """(shape of the target) -> fields of the config of a head to train that are not the usual ones.
    The last of its `features` is -1."""
    own_lm_heads: bool = False
    """Whether a training can learn an LM head for each head."""
    in_target: bool = False
    """Whether a target's own checkpoint may have the head."""
    scaled: bool = False
    """Whether the config has the embeddings' scale; in other kinds a weight matrix includes it."""
    rescale: Callable[[Mapping[str, Tensor], float], dict[str, Tensor]] = _unscaled
    """(tensors, factor) -> tensors that read embeddings without this factor."""

    def tensors(self, config: HeadConfig) -> TensorShapes:
        with torch.device("meta"):
            named: dict[str, Tensor] = self.module(config).state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
        return shapes | ({"d2t": (config.draft_vocab,)} if config.draft_vocab else {})

    def load(self, config: HeadConfig, tensors: dict[str, Tensor], target: Decoder) -> Head:
        """Return a head that drafts; `tensors` is emptied, so that none is held twice."""
        d2t = tensors.pop("d2t", None)
        with torch.device("meta"):
            module = self.module(config).requires_grad_(False)
        module.load_state_dict(tensors, assign=True)
        tensors.clear()
        round_matrices(module)
        return module.serve(target, d2t)

    def size(self, config: HeadConfig) -> int:
        return getattr(config, self.sized_by) if self.sized_by else 0

    def drafts(self, size: int) -> int:
        """Return the tokens that a head drafts: one per head or place, one more than masks."""
        return size + 1 if self.sized_by == "masks" else size

    def levels(self, config: HeadConfig) -> int:
        """Return the most tokens that a head drafts in a row; 0: any number."""
        return self.drafts(self.size(config)) if self.sized_by else config.heads
