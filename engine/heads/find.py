"""Find the drafting head of a run, named by the user or stored with the pair, and load it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from specscope.engine.checkpoints.checkpoint import Checkpoint, drafts_itself
from specscope.engine.checkpoints.config import unused_layers
from specscope.engine.checkpoints.sizes import shape_of
from specscope.engine.errors import UsageError
from specscope.engine.heads.config import HeadConfig
from specscope.engine.heads.drafting import Head
from specscope.engine.heads.files import check_head, read_head
from specscope.engine.heads.kinds import KINDS
from specscope.engine.model.compiled import compile_layers
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.language import LanguageModel
from specscope.engine.model.memoized import MemoizedModel
from specscope.engine.model.shape import EMBEDDING
from specscope.engine.model.static import StaticSteps

if TYPE_CHECKING:
    from specscope.engine.checkpoints.pair import Pair


@dataclass(frozen=True)
class HeadFile:
    """The directory of a head that fits its target, checked but not loaded."""

    path: Path
    config: HeadConfig
    target: Path

    def check_split(self) -> None:
        """Check that the head reads only the last state, which a target's last stage has."""
        if self.config.features != (-1,):
            raise UsageError(
                f"the head {self.path} reads the target's states {list(self.config.features)}, and this target is "
                "split by layers: split it by tensors (tp), or use a head that reads the last state"
            )

    @property
    def levels(self) -> int:
        """The most tokens that it drafts in a row; 0: any number."""
        return KINDS[self.config.kind].levels(self.config)

    @property
    def serves(self) -> str:
        return KINDS[self.config.kind].serves or self.config.kind

    @property
    def context(self) -> float:
        return self.config.layer().context if KINDS[self.config.kind].layered else inf

    def check_length(self, positions: int) -> None:
        if positions > self.context:
            raise UsageError(
                f"prompt and max_new_tokens are {positions} tokens together; the head {self.path} knows at most "
                f"{self.context}: shorten the prompt or lower max_new_tokens",
                "max_new_tokens",
            )


@dataclass(frozen=True)
class Heads:
    """The heads of a pair: those that the user named, else those stored with the pair."""

    pair: Pair
    named: tuple[Path, ...] = ()

    def find(self, kind: str) -> HeadFile:
        """Return the head of a kind, checked against the pair's target.

        Raises a UsageError if the pair has none, or those named are of other kinds or for another
        target; a ModelError if it is broken, or of a kind that cannot be run.
        """
        paths = self.named
        if not paths and self.pair.heads_path and (stored := self.pair.heads_path / kind).is_dir():
            paths = (stored,)
        if not paths and KINDS[kind].in_target and (declared := unused_layers(self.pair.target_path)):
            if not drafts_itself(self.pair.target_path):
                raise UsageError(
                    f"{declared}: train them (specscope train {kind}), or name a head with --head"
                )
            paths = (self.pair.target_path,)
        if not paths:
            raise UsageError(
                f"{self.pair.name} has no drafting head of kind {kind}; name one with --head, or train it: "
                f"specscope train {kind}"
            )
        heads = [
            HeadFile(path, check_head(path, self.pair.target_path), self.pair.target_path) for path in paths
        ]
        for head in heads:
            if head.serves == kind:
                return head
        others = ", ".join(f"{head.path} is a head of kind {head.config.kind}" for head in heads)
        raise UsageError(f"{others}; this method needs one of kind {kind}")


def load_head(path: str, target: LanguageModel, origin: str = "") -> Head:
    """Load the head of a directory beside its target; both are static, or none is.

    `target` may be the last stage of one that is split by layers: then its embeddings are read from
    the directory `origin`. A UsageError if it has no hidden states.
    """
    if isinstance(target, MemoizedModel):
        target = target.model
    if not isinstance(target, Decoder):
        raise UsageError(
            "a drafting head reads the target's hidden states, and drawn or recorded tokens have none: set tokens to pair"
        )
    if not len(target.embedding):
        checkpoint = Checkpoint(Path(origin), shape=shape_of(Path(origin)))
        target.embedding = checkpoint.take(EMBEDDING, target.device, target.dtype)
    config, tensors = read_head(Path(path), device=target.device, dtype=target.dtype)
    head = KINDS[config.kind].load(config, tensors, target)
    decoders = [part.layer.decoder for part in (head, *head.further) if part.layer is not None]
    for decoder in decoders:
        if target.steps is not None and not decoder.shape.block:
            decoder.steps = StaticSteps(decoder)
            if target.compiler is not None:
                compile_layers(decoder, waits=target.compiler.waits)
    return head
