"""EMS-SD: speculative decoding of several prompts at once, without padding their inputs or their KV caches.

Source: EMS-SD (Efficient Multi-sample Speculative Decoding), sections 3 and 4, appendix D. Lossless: every sequence's text is the one it has alone.
Each round drafts for every sequence and verifies all drafts in one target forward; sequences accept different numbers
of tokens, and with LLMA also get drafts of different lengths. The two settings `unpad_inputs` and `unpad_kv` say whether
such differences are padded; with both off this is the paper's vanilla method. Finished sequences leave the batch. What the
paper leaves open: dynamic batching (limitation 1) and a token tree for each sequence (limitation 4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from engine.drafters.copy import Copier
from engine.drafters.tree import Wide
from engine.methods.registry import method, setting
from engine.methods.tree import check_nodes
from engine.types import Draft, Layout, Packing, Separate

if TYPE_CHECKING:
    from engine.run.batch import Batch
    from engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EMS-SD."""

    base: str = setting(
        "llma",
        "What drafts: llma copies from prompt and output, speculative asks the drafter.",
        choices=("llma", "speculative"),
    )
    batch: int = setting(
        8, "Sequences decoded at once; further prompts wait until there is room.", low=1, high=24
    )
    unpad_inputs: bool = setting(
        True, "Feed each sequence its own new tokens only; off pads all to the longest."
    )
    unpad_kv: bool = setting(
        True, "Let each sequence's KV cache be as long as its tokens; off pads all to one length."
    )
    dynamic: bool = setting(False, "Dynamic batching: a waiting prompt takes a finished one's place at once.")
    match: int = setting(2, "llma: copy where at least this many of the last tokens stand.", low=1, high=16)
    copy: int = setting(7, "llma: tokens copied at most before each verification.", low=1, high=32)
    gamma: int = setting(
        4, "speculative: tokens drafted before each verification, or levels of each tree.", low=1, high=16
    )
    width: int = setting(
        1,
        "speculative: nodes per level of each sequence's draft tree at most; 1 is a chain. Width times gamma is at most 64.",
        low=1,
        high=16,
    )

    def __post_init__(self) -> None:
        check_nodes(self.width, self.gamma, "gamma")


Propose = Callable[[], Awaitable[list[Draft]]]
"""Drafts for the sequences that are in the batch now."""


def _drafted(run: Run, batch: Batch, cfg: Config) -> Propose:
    """Let the drafter propose for all sequences: chains position by position, or trees level by level."""
    if cfg.width == 1:
        return lambda: run.drafter.propose(batch.xs, cfg.gamma)
    shape = Wide(cfg.width, cfg.gamma)
    return lambda: run.drafter.grow(batch.xs, shape)


def _copied(_: Run, batch: Batch, cfg: Config) -> Propose:
    """Copy, each sequence from itself, as LLMA does."""
    copiers: dict[int, Copier] = {}

    async def propose() -> list[Draft]:
        drafts = list[Draft]()
        for x in batch.xs:
            copier = copiers.setdefault(x.sequence, Copier(match=cfg.match, copy=cfg.copy))
            drafts.append(copier.draft(x.tokens, batch.room(x)))
        return drafts

    return propose


class _Base(NamedTuple):
    """A base method: what drafts, and how many drafters that takes."""

    propose: Callable[[Run, Batch, Config], Propose]
    drafters: int


BASES = {"llma": _Base(_copied, 0), "speculative": _Base(_drafted, 1)}


@method(
    title="EMS-SD",
    source="EMS-SD, section 3",
    config=Config,
    batched=True,
    layout=lambda cfg: Layout(
        Separate(drafters=BASES[cfg.base].drafters, turns=True),
        batch=cfg.batch,
        packing=Packing(cfg.unpad_inputs, cfg.unpad_kv),
    ),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft for all, verify all in one forward, commit, until no prompt is left."""
    batch = run.batch(cfg.batch, dynamic=cfg.dynamic)
    propose = BASES[cfg.base].propose(run, batch, cfg)
    while batch.active:
        drafts = await propose()
        batch.commit(await run.target.verify(batch.xs, drafts))
        await batch.admit()
