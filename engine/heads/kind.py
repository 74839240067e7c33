"""What sets one kind of drafting head apart from the others, as data and functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from specscope.engine.heads.config import HeadConfig, TensorShapes
from specscope.engine.heads.drafting import Head, Take
from specscope.engine.heads.published import Published
from specscope.engine.heads.trainable import TrainableHead
from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape


class PublishedForm(NamedTuple):
    """How checkpoints of a kind are published."""

    matches: Callable[[Collection[str]], bool]
    """(names of tensors) -> whether a checkpoint is of the kind."""
    read: Callable[[Path, Mapping[str, Any], TensorShapes], Published]
    """(path for errors, config.json, shapes of the tensors) -> the head; raises ModelError."""


def _same(config: HeadConfig, _: int) -> HeadConfig:
    return config


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of head; its key is the name of its file."""

    check: Callable[[HeadConfig], None]
    """Raises ModelError."""
    tensors: Callable[[HeadConfig], TensorShapes]
    load: Callable[[HeadConfig, Take, Decoder], Head]
    work: Callable[[HeadConfig, int, int], Work]
    """(config, levels of the draft, number of the draft's forward from 0) -> the forward's work for
    one sequence. A prefill is a first forward."""
    layered: bool
    """Whether it has a decoder layer, with KV rows and a context."""
    sized_by: Literal["heads", "masks", ""] = ""
    """The config's field that bounds a draft's length; none: any length."""
    scaled: bool = False
    """Whether the config has the embeddings' scale; in other kinds a weight matrix includes it."""
    serves: str = ""
    """The kind that methods ask for; empty: this one."""
    published: PublishedForm | None = None
    trainable: Callable[[ModelShape, int, float, float], TrainableHead] | None = None
    """(target, size, scale of the embeddings, root mean square of the features) -> a new head to
    train."""
    for_target: Callable[[HeadConfig, int], HeadConfig] = _same
    """(config, layers of the target) -> the config with all states numbered; raises ModelError."""

    def size(self, config: HeadConfig) -> int:
        return getattr(config, self.sized_by) if self.sized_by else 0

    def drafts(self, size: int) -> int:
        """Return the tokens that a head drafts: one per head, or one more than its masks."""
        return size + 1 if self.sized_by == "masks" else size

    def levels(self, config: HeadConfig) -> int:
        """Return the most tokens that a head drafts in a row; 0: any number."""
        return self.drafts(self.size(config)) if self.sized_by else 0
