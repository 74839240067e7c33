"""What a server told of its answers, compared with their steps and with its counters."""

from __future__ import annotations

from collections.abc import Sequence

from specscope.engine.servers.counters import Counters
from specscope.engine.servers.steps import Answered
from specscope.engine.trace.ranges import NO_TOKEN

ACCEPTED = "accepted and rejected drafts"
LENGTHS = "draft length of each step"
ORDER = "order of the steps"
NUMBER = "number of tokens"
ORIGIN = "origin of each token"
"""Facts, as `assets/figures.toml` names them."""


def unknown(answers: Sequence[Answered]) -> list[str]:
    """Return the facts that the server left open."""
    found = [ACCEPTED, LENGTHS] if _guessed(answers) or any(answer.told.why for answer in answers) else []
    if any(_merged(answer) for answer in answers):
        found += [NUMBER, ORIGIN]
    return [*found, *([ORDER] if any(answer.told.disordered for answer in answers) else [])]


def _guessed(answers: Sequence[Answered]) -> bool:
    return any(step.drafted is None for answer in answers for step in answer.steps)


def _merged(answer: Answered) -> bool:
    """Return whether an event without ids may have several tokens."""
    ids = [token.id for step in answer.steps for token in step.tokens]
    return bool(answer.told.why) and NO_TOKEN in ids and answer.told.tokens != len(ids)


def notes(
    answers: Sequence[Answered], before: Counters | None = None, after: Counters | None = None
) -> list[str]:
    """Return sentences on what the server did not tell, and on its totals beside the steps."""
    ours = (
        sum(step.drafted or 0 for answer in answers for step in answer.steps),
        sum(step.accepted for answer in answers for step in answer.steps),
    )
    found = [answer.told.why for answer in answers if answer.told.why][:1]
    sums = dict[str, tuple[int, int]]()
    if all(answer.told.drafted is not None for answer in answers):
        theirs = [(answer.told.drafted or 0, answer.told.accepted or 0) for answer in answers]
        sums["totals"] = sum(drafted for drafted, _ in theirs), sum(accepted for _, accepted in theirs)
    if before and after and (new := after.since(before)) is not None:
        sums["counters"] = new.drafted, new.accepted
    known = not _guessed(answers)
    if agreed := [name for name, theirs in sums.items() if known and theirs == ours]:
        found.append(f"The server's {' and '.join(agreed)} agree: {ours[0]} drafted, {ours[1]} accepted.")
    for name, (drafted, accepted) in sums.items():
        if name not in agreed:
            beside = f"; the steps {ours[0]} and {ours[1]}" if known else ""
            more = " Other clients used it, too." if known and drafted > ours[0] else ""
            found.append(f"The server's {name} say {drafted} drafted, {accepted} accepted{beside}.{more}")
    return found
