"""The drafter's next choices after its draft: recorded ones, and drawn ones.

A test at temperature 0 lists the drafter's most probable tokens, and SSD guesses them at each place
of a draft. Where neither is recorded and the drafter is wrong, the rank of the target's token is
that of a recorded wrong draft.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from specscope.engine.sampling.draws import Draws, Key
from specscope.engine.trace.events import Top
from specscope.traces.facts.imported import NO_TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.events import Commit, Decision
    from specscope.engine.trace.trace import Trace

Ranked: TypeAlias = tuple[int, Top]
"""The token that a wrong draft should have been, and the next choices there."""


def guesses(trace: Trace, rows: Sequence[Commit]) -> dict[int, Top]:
    """Return index -> the drafter's most probable tokens there, without a draft, as SSD guessed.

    `rows` are one sequence's. Guesses after a rejected draft are not of this text.
    """
    begun, ended = dict[int, int](), dict[int, int]()
    for i, commit in enumerate(rows):
        begun.setdefault(commit.step, i)
        ended[commit.step] = i
    found = defaultdict[int, list[tuple[int, float]]](list)
    for fork in trace.forks:
        index = begun.get(fork.step, len(rows)) + fork.place
        if fork.sequence == rows[0].sequence and index <= ended.get(fork.step, -1):
            found[index].append((fork.token, fork.q))
    return {i: tuple(top) for i, top in found.items()}


def next_choices(test: Decision) -> Top:
    return tuple((token, q) for token, q in test.top_q if token != test.token and q > 0)


def drawn_choices(token: int, wrong: Sequence[Ranked], draws: Draws, index: int) -> Top:
    """Return next choices that hold a token at the rank that one of the wrong drafts had."""
    if not wrong:
        return ()
    right, top = wrong[int(draws.value(Key(index, "residual")) * len(wrong))]
    return tuple((token if other == right else NO_TOKEN, q) for other, q in top)
