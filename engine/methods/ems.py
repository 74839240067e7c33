"""EMS-SD: speculative decoding of several prompts at once, without padding inputs or KV caches.

Source: EMS-SD (Efficient Multi-sample Speculative Decoding), sections 3 and 4, appendix D.
Lossless: a sequence has the same text as in a run without others. Each round drafts for every
sequence and verifies all drafts in one target forward. Sequences accept different numbers of
tokens; with LLMA their drafts also differ in length. `unpad_inputs` and `unpad_kv` decide whether
these differences are padded; with both off this is the paper's vanilla method. Finished sequences
leave the batch, or are fed until it ends, as in the authors' vanilla program. Beyond the paper:
dynamic batching (its limitation 1) and a token tree for each sequence (its limitation 4).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specscope.engine.drafting.copy import Copier
from specscope.engine.drafting.tree import TreeShape, Wide
from specscope.engine.layout import Layout, Packing, Separate
from specscope.engine.methods.common import check_nodes
from specscope.engine.methods.registry import method, setting
from specscope.engine.run.run import Run
from specscope.engine.types import Draft, Prefix, Verdict


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EMS-SD."""

    base: str = setting(
        "llma",
        "The base method: llma copies from prompt and output, speculative uses the drafter, plain drafts nothing: "
        "batched plain decoding, the baseline of a batch.",
        choices=("llma", "speculative", "plain"),
    )
    batch: int = setting(8, "Sequences decoded at once; further prompts wait.", low=1, high=24)
    unpad_inputs: bool = setting(True, "Feed only each sequence's new tokens; off pads all to the longest.")
    unpad_kv: bool = setting(
        True, "Keep each sequence's KV cache as long as its tokens; off pads all to one length."
    )
    dynamic: bool = setting(
        False, "Dynamic batching: a waiting prompt takes the place of a finished one at once."
    )
    feed_finished: bool = setting(
        False, "Feed sequences that ended until their batch ends, as the authors' vanilla method does."
    )
    match: int = setting(2, "llma: tokens that must match, at least.", low=1, high=16)
    copy: int = setting(
        7, "llma: tokens copied before each verification, at most.", low=1, high=32, role="copies"
    )
    gamma: int = setting(
        4,
        "speculative: tokens drafted before each verification, or levels of each tree.",
        low=1,
        high=16,
        role="length",
    )
    width: int = setting(
        1,
        "speculative: nodes per tree level at most; 1 is a chain. Width times gamma is at most 64.",
        low=1,
        high=16,
    )

    def __post_init__(self) -> None:
        check_nodes(self.width, self.gamma, "gamma")


class Batch:
    """Up to `size` sequences at once, in the run's order; the first ones are prefilled.

    Args:
        run: The run.
        size: Sequences decoded at once; at least 1.
        dynamic: Whether a waiting sequence takes a finished one's place at once (EMS-SD, section
            4.4 and limitation 1); otherwise a whole batch ends before the next one begins.
        feed_finished: Whether the target's forwards have a row for each sequence that ended, until
            others take the places. Its result is dropped.
    """

    def __init__(self, run: Run, size: int, *, dynamic: bool = False, feed_finished: bool = False) -> None:
        self._run = run
        self._size = size
        self._dynamic = dynamic
        self._feed_finished = feed_finished
        self._sequences = {sequence.x.sequence: sequence for sequence in run.sequences}
        self._active = list(run.sequences[:size])
        self._waiting = list(run.sequences[size:])
        self._ended: list[int] = []

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def xs(self) -> list[Prefix]:
        return [sequence.x for sequence in self._active]

    def remaining(self, prefix: Prefix) -> int:
        return self._sequences[prefix.sequence].remaining(prefix)

    async def propose(self, gamma: int) -> list[Draft]:
        return await self._run.drafter.draft_each(self.xs, Wide(1, gamma), chain=True)

    async def grow(self, shape: TreeShape) -> list[Draft]:
        return await self._run.drafter.draft_each(self.xs, shape)

    async def verify(self, drafts: Sequence[Draft]) -> list[Verdict]:
        """Judge one draft for each sequence, all in one target forward."""
        finished = [self._sequences[number].x for number in self._ended] if self._feed_finished else []
        empty = [Draft.empty() for _ in finished]
        verdicts = await self._run.target.verify_each([*self.xs, *finished], [*drafts, *empty])
        return verdicts[: len(drafts)]

    def commit(self, verdicts: Sequence[Verdict]) -> None:
        """Commit a round; sequences that end with it leave."""
        self._run.commit(*verdicts)
        self._ended += [sequence.x.sequence for sequence in self._active if sequence.done]
        self._active = [sequence for sequence in self._active if not sequence.done]

    async def admit(self) -> None:
        """Prefill waiting sequences in the KV slots of finished ones, until the batch is full."""
        free = self._size - len(self._active)
        if not self._waiting or not free or (self._active and not self._dynamic):
            return
        joining, self._waiting = self._waiting[:free], self._waiting[free:]
        await self._run.retire(self._ended)
        await self._run.prefill([sequence.x.sequence for sequence in joining])
        self._active += joining
        self._ended = []


Propose = Callable[[], Awaitable[list[Draft]]]
"""Returns one draft for each active sequence of the batch."""


def _drafted(batch: Batch, cfg: Config) -> Propose:
    if cfg.width == 1:
        return lambda: batch.propose(cfg.gamma)
    shape = Wide(cfg.width, cfg.gamma)
    return lambda: batch.grow(shape)


def _copied(batch: Batch, cfg: Config) -> Propose:
    """Copy for each sequence from its own text, as LLMA does."""
    copiers: dict[int, Copier] = {}

    async def propose() -> list[Draft]:
        drafts = list[Draft]()
        for x in batch.xs:
            copier = copiers.setdefault(x.sequence, Copier(match=cfg.match, copy=cfg.copy))
            drafts.append(copier.draft(x.tokens, batch.remaining(x)))
        return drafts

    return propose


def _plain(batch: Batch, cfg: Config) -> Propose:  # noqa: ARG001 - it has no settings

    async def propose() -> list[Draft]:
        return [Draft.empty() for _ in batch.xs]

    return propose


class _Base(NamedTuple):
    """A base method: its way of drafting, and the number of drafters."""

    propose: Callable[[Batch, Config], Propose]
    drafters: int


BASES = {"llma": _Base(_copied, 0), "speculative": _Base(_drafted, 1), "plain": _Base(_plain, 0)}


@method(
    title="EMS-SD",
    source="EMS-SD, section 3",
    config=Config,
    batched=True,
    plain={"base": "plain"},
    layout=lambda cfg: Layout(
        Separate(drafters=BASES[cfg.base].drafters, turns=True),
        batch=cfg.batch,
        packing=Packing(cfg.unpad_inputs, cfg.unpad_kv),
    ),
)
async def decode(run: Run, cfg: Config) -> None:
    batch = Batch(run, cfg.batch, dynamic=cfg.dynamic, feed_finished=cfg.feed_finished)
    propose = BASES[cfg.base].propose(batch, cfg)
    while batch.active:
        drafts = await propose()
        batch.commit(await batch.verify(drafts))
        await batch.admit()
