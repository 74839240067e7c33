"""Runs aligned by token: which run wrote which token, and how far the texts agree."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, TypedDict

from traces.imported import NO_TOKEN, is_timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.trace.trace import Trace


class RowView(TypedDict):
    """A run beside the reference run."""

    sequence: int
    """The run's sequence with the same prompt; -1 if it has none."""
    same: int
    """Tokens of the output, from the first on, that equal the reference's; 0 with a reason."""
    reason: str
    """Why the run cannot be aligned; empty if it can."""


class AlignedView(TypedDict):
    """A sequence of the reference run, which is the first one shown, and the runs beside it."""

    rows: list[RowView]
    """For each run, in the order shown."""


def aligned(traces: Sequence[Trace]) -> list[AlignedView]:
    """Return how the runs align with each sequence of the first one; empty for a single run."""
    if len(traces) < 2:
        return []
    reference = traces[0]
    return [
        {"rows": [_row(trace, reference, sequence) for trace in traces]}
        for sequence in range(len(reference.header.prompt_ids))
    ]


def _row(trace: Trace, reference: Trace, sequence: int) -> RowView:
    def refused(reason: str) -> RowView:
        return {"sequence": -1, "same": 0, "reason": reason}

    if not (is_timed(trace.header) and is_timed(reference.header)):
        return refused("its file holds no times")
    prompts, prompt = trace.header.prompt_ids, reference.header.prompt_ids[sequence]
    if prompt not in prompts:
        return refused("another prompt")
    own = sequence if trace is reference else prompts.index(prompt)
    ours, theirs = trace.token_ids(own), reference.token_ids(sequence)
    if NO_TOKEN in ours or NO_TOKEN in theirs:
        return refused("its token ids are unknown")
    equal = takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
    same = sum(1 for _ in equal)
    if not same:
        return refused("another text from the first token on" if ours else "no tokens")
    return {"sequence": own, "same": same, "reason": ""}
