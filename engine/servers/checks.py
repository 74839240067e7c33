"""What a server told of its answers, compared with their steps and with its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.servers.counters import Counters
    from specscope.engine.servers.steps import Answered

ACCEPTED = "accepted and rejected drafts"
LENGTHS = "draft length of each step"
ORDER = "order of the steps"
"""Facts, as `assets/figures.toml` names them."""


def unknown(answers: Sequence[Answered]) -> list[str]:
    """Return the facts that the server left open."""
    guessed = any(step.drafted is None for answer in answers for step in answer.steps)
    found = [ACCEPTED, LENGTHS] if guessed or any(answer.told.why for answer in answers) else []
    return [*found, *([ORDER] if any(answer.told.disordered for answer in answers) else [])]


def notes(
    answers: Sequence[Answered], before: Counters | None = None, after: Counters | None = None
) -> list[str]:
    """Return sentences on what the server did not tell, and on its totals beside the steps."""
    ours = (
        sum(step.drafted or 0 for answer in answers for step in answer.steps),
        sum(step.accepted for answer in answers for step in answer.steps),
    )
    told = [(a.told.drafted, a.told.accepted or 0) for a in answers if a.told.drafted is not None]
    found = [answer.told.why for answer in answers if answer.told.why][:1]
    if len(told) == len(answers):
        theirs = sum(drafted or 0 for drafted, _ in told), sum(accepted for _, accepted in told)
        found.append(_agreement("The totals of its answers", theirs, ours))
    new = after.since(before) if before and after else None
    if new is not None:
        found.append(_agreement("Its counters at /metrics", (new.drafted, new.accepted), ours))
    return found


def _agreement(what: str, theirs: tuple[int, int], ours: tuple[int, int]) -> str:
    if theirs == ours:
        return f"{what} agree with the steps: {ours[0]} drafted, {ours[1]} accepted."
    more = " Other clients used the server, too." if theirs[0] > ours[0] else ""
    return f"{what} say {theirs[0]} drafted and {theirs[1]} accepted; the steps have {ours[0]} and {ours[1]}.{more}"
