"""How long the next draft is: as given, or from what became of the last ones.

Facts: SGLang chooses among a few lengths by a moving average of the accepted tokens (pull request
21599); TensorRT-LLM stops drafting for good when the acceptance rate of a window stays low, and
counts rates, because the lengths of different drafts do not compare (pull request 12905).

Lossless: a length is a function of tested tokens. A rejected token also discards the rest of its
draft, and those positions are drawn again with the same random numbers: a length that depended on
discarded tokens would favour some tokens there.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from specscope.engine.trace.events import Stop
    from specscope.engine.types import Draft, Verdict

MOST = 32
"""The longest draft."""
KEPT = 0.8
"""Weight of the past in the moving average of accepted runs, as in SGLang."""
WINDOW = 32
"""Verdicts whose acceptance rate decides whether drafting ends for good."""
LONGER, SHORTER = 2, 1
"""Tokens by which `heuristic` changes the length."""


class Ask(NamedTuple):
    """The next draft that is wanted."""

    tokens: int
    """Its length at most; 0 for none."""
    stop_below: float = 0.0
    """It ends after a token of smaller probability."""

    def ends(self, draft: Draft) -> bool:
        """Return whether a draft ends at an uncertain token."""
        return bool(draft) and draft.tokens[-1].probability < self.stop_below

    def rest(self, begun: Draft) -> int:
        """Return how many tokens at most a draft that has begun still lacks."""
        return 0 if self.ends(begun) else self.tokens - len(begun)

    def stop(self, draft: Draft, room: int, allowed: int) -> Stop:
        """Return why a draft ended; output and load had room for `room` and `allowed` tokens."""
        if not self.tokens:
            return "off"
        if len(draft) >= self.tokens:
            return "full"
        if self.ends(draft):
            return "uncertain"
        if len(draft) >= room:
            return "end"
        return "load" if len(draft) >= allowed else "cancelled"


Rule: TypeAlias = "Callable[[int, int, bool], int]"
"""(length, accepted tokens of a draft, whether the next one was rejected) -> next length."""


class Schedule:
    """The draft lengths of one sequence.

    Args:
        start: Length of the first draft.
        rule: Gives the next length after each verdict.
        stop_below: See `Ask`.
        off_below: Drafting ends for good when fewer of the tokens tested by the last `WINDOW`
            verdicts were accepted; 0 for never.
    """

    def __init__(self, start: int, rule: Rule, *, stop_below: float = 0.0, off_below: float = 0.0) -> None:
        self._length, self._rule = start, rule
        self._stop_below, self._off_below = stop_below, off_below
        self._tests = deque[tuple[int, bool]](maxlen=WINDOW)

    def next(self) -> Ask:
        return Ask(self._length, self._stop_below)

    def learn(self, verdict: Verdict) -> None:
        """Take account of a verdict about drafted tokens; one without any says nothing."""
        if not verdict.draft or not self._length:
            return
        accepted, rejected = len(verdict.accepted), not verdict.all_accepted
        self._length = self._rule(self._length, accepted, rejected)
        self._tests.append((accepted, rejected))
        if len(self._tests) == WINDOW and acceptance(self._tests) < self._off_below:
            self._length = 0


def acceptance(tests: deque[tuple[int, bool]]) -> float:
    accepted = sum(n for n, _ in tests)
    return accepted / (accepted + sum(rejected for _, rejected in tests))


def fixed(length: int, accepted: int, rejected: bool) -> int:  # noqa: ARG001 - a `Rule`
    return length


def heuristic(length: int, accepted: int, rejected: bool) -> int:  # noqa: ARG001 - a `Rule`
    """Follow the last draft: longer after a fully accepted one (transformers)."""
    return max(1, length - SHORTER) if rejected else length + LONGER


class Average:
    """The shortest of a few lengths that holds the mean run of accepted tokens, rounded.

    A run ends at a rejected token and may extend over several drafts, so short drafts do not bound
    it. Few lengths mean few CUDA graphs: gamma, half of it, ..., 1, and twice gamma.
    """

    def __init__(self, gamma: int) -> None:
        self.lengths = ladder(gamma)
        self._mean, self._run = float(gamma), 0

    def __call__(self, length: int, accepted: int, rejected: bool) -> int:  # noqa: ARG002 - a `Rule`
        self._run += accepted
        if rejected:  # one very long run must not count for many
            self._mean, self._run = self._with(min(self._run, self.lengths[-1])), 0
        mean = max(self._mean, self._with(self._run))  # a run in progress counts if it is long
        return next((n for n in self.lengths if round(mean) <= n), self.lengths[-1])

    def _with(self, run: int) -> float:
        return KEPT * self._mean + (1 - KEPT) * run


def ladder(gamma: int) -> tuple[int, ...]:
    """Return twice gamma, gamma, half of it and so on down to 1, in rising order."""
    lengths = {min(MOST, 2 * gamma)}
    while gamma:
        lengths.add(gamma)
        gamma //= 2
    return tuple(sorted(lengths))
