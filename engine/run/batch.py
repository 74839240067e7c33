"""The sequences of a run that decode together, and those that wait for their turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.types import Prefix, Verdict

if TYPE_CHECKING:
    from engine.run.run import Run


class Batch:
    """Up to `size` sequences at once, in their order in the run. The run has prefilled the first ones.

    Args:
        run: Whose sequences.
        size: Sequences decoded at once; at least 1.
        dynamic: Whether a waiting sequence takes a finished one's place at once (EMS-SD, section 4.4 and limitation 1);
            otherwise all of a batch end before the next one begins.
    """

    def __init__(self, run: Run, size: int, *, dynamic: bool = False) -> None:
        self._run = run
        self._size = size
        self._dynamic = dynamic
        self._members = list(run.sequences[:size])
        self._waiting = list(run.sequences[size:])
        self._ended: list[int] = []

    @property
    def active(self) -> int:
        """How many sequences are being decoded."""
        return len(self._members)

    @property
    def xs(self) -> list[Prefix]:
        """Their prefixes."""
        return [sequence.x for sequence in self._members]

    def room(self, prefix: Prefix) -> int:
        """Return how many tokens a sequence may still get."""
        return self._run.sequences[prefix.sequence].room - len(prefix)

    def commit(self, verdicts: Sequence[Verdict]) -> None:
        """Commit a round; sequences that end with it leave."""
        self._run.commit(*verdicts)
        self._ended += [sequence.x.sequence for sequence in self._members if sequence.done]
        self._members = [sequence for sequence in self._members if not sequence.done]

    async def admit(self) -> None:
        """Let waiting sequences join as far as there is room now: in the KV slots of those that left, after a prefill."""
        free = self._size - len(self._members)
        if not self._waiting or not free or (self._members and not self._dynamic):
            return
        joining, self._waiting = self._waiting[:free], self._waiting[free:]
        await self._run.retire(self._ended)
        await self._run.prefill([sequence.x for sequence in joining])
        self._members += joining
        self._ended = []
