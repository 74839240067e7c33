"""Sequences of a run that decode together, and those that wait for a free place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.types import Draft, Prefix, Verdict

if TYPE_CHECKING:
    from engine.drafters.tree import TreeShape
    from engine.run.run import Run


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
        """The number of sequences being decoded."""
        return len(self._active)

    @property
    def xs(self) -> list[Prefix]:
        """The prefix of each active sequence."""
        return [sequence.x for sequence in self._active]

    def room(self, prefix: Prefix) -> int:
        """Return how many tokens the output can still take after a prefix."""
        return self._sequences[prefix.sequence].room(prefix)

    async def propose(self, gamma: int) -> list[Draft]:
        """Let the drafter draft up to gamma tokens for each sequence."""
        return await self._run.drafter.propose_each(self.xs, gamma)

    async def grow(self, shape: TreeShape) -> list[Draft]:
        """Let the drafter draft a tree for each sequence."""
        return await self._run.drafter.grow_each(self.xs, shape)

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
