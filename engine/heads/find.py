"""Which drafting head serves a run: one of those that were named, or the one that comes with the pair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.heads.files import check_head
from engine.heads.form import LAYERED, HeadConfig

if TYPE_CHECKING:
    from engine.pairs.pair import Pair


@dataclass(frozen=True)
class HeadFile:
    """A head that fits its target."""

    path: Path
    config: HeadConfig

    @property
    def levels(self) -> int:
        """Tokens it was trained to draft one after the other; 0 where any number will do."""
        return self.config.levels

    def check_length(self, positions: int) -> None:
        """Check that its layer knows so many positions.

        Raises:
            UsageError: It does not.
        """
        if self.config.kind in LAYERED and positions > (context := self.config.layer().context):
            raise UsageError(
                f"prompt and max_new_tokens are {positions} tokens together; the head {self.path} knows at most "
                f"{context}: shorten the prompt or lower max_new_tokens"
            )


@dataclass(frozen=True)
class Heads:
    """The heads there are for a pair: those that were named, or those that come with the pair."""

    pair: Pair
    named: tuple[Path, ...] = ()

    def find(self, kind: str) -> HeadFile:
        """Return the head of a kind, checked against the pair's target.

        Raises:
            UsageError: There is none, it is of another kind, or it does not fit.
            ModelError: It is broken, or of a kind that cannot be run.
        """
        paths = self.named
        if not paths and self.pair.heads_path and (own := self.pair.heads_path / kind).is_dir():
            paths = (own,)
        if not paths:
            raise UsageError(
                f"{self.pair.name} has no drafting head of kind {kind}; name one with --head, or train it: "
                f"specscope train {kind}"
            )
        found = [HeadFile(path, check_head(path, self.pair.target_path)) for path in paths]
        for head in found:
            if head.config.serves == kind:
                return head
        others = ", ".join(f"{head.path} is a head of kind {head.config.kind}" for head in found)
        raise UsageError(f"{others}; this method needs one of kind {kind}")
