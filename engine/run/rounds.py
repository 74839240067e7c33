"""Rounds that a worker finished, or began, before the method asked for all of them.

Drafter and target on one worker: `propose` sends a job that may verify its draft at once, and
`verify` of this very draft finds the judgement. A worker may also begin a round before the method
asks for it; the round is the next one unless the output has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from specscope.engine.run.dispatch import Submission
from specscope.engine.run.scores import mode_of, new_verdict
from specscope.engine.types import Draft, Judgement, Prefix, Verdict


class EarlyJudgement(NamedTuple):
    """A judgement that nobody has asked for yet."""

    prefix: Prefix
    draft: Draft
    judgement: Judgement
    verification: Submission

    def of(self, prefix: Prefix, draft: Draft) -> bool:
        """Return whether it judges this very draft after this prefix."""
        numbers = [[token.number for token in one.tokens] for one in (draft, self.draft)]
        return numbers[0] == numbers[1] and _equal(self.prefix, prefix)

    async def verdict(self) -> Verdict:
        verification = self.verification.claim()
        await verification.result()
        mode, span = mode_of(len(self.draft), len(self.draft)), verification.spans[0]
        return new_verdict(self.judgement, self.prefix, self.draft, mode, span)


class Ahead:
    """The round that a worker may begin before a model's next call.

    It may where two calls in a row ask for the same: the third one will, too, unless the output
    ends. `abandon` ends a round that is not asked for, of so many drafted tokens.
    """

    def __init__(self, abandon: Callable[[int], None]) -> None:
        self._abandon = abandon
        self._last: tuple[int, bool] | None = None
        self._begun: Prefix | None = None

    def asks(self, prefix: Prefix, levels: int = 0, sampled: bool = False) -> bool:
        """Note a call; return whether the worker may begin the round after it."""
        again = self._last == (levels, sampled)
        if self._begun is not None and not (again and _equal(self._begun, prefix)):
            self.end()
        self._begun, self._last = None, (levels, sampled)
        return again

    def began(self, prefix: Prefix) -> None:
        """Note that the worker has begun the round of the next call, which has this prefix."""
        self._begun = prefix

    def end(self) -> None:
        """End a round that was begun and is not asked for."""
        if self._begun is not None and self._last is not None:
            self._begun = None
            self._abandon(self._last[0])


def _equal(one: Prefix, other: Prefix) -> bool:
    return one.sequence == other.sequence and np.array_equal(one.tokens, other.tokens)
