"""Runs aligned by token: which run wrote which token, and how far the texts agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypedDict

from specscope.traces.facts.imported import NO_TOKEN, is_timed

if TYPE_CHECKING:
    from specscope.engine.trace.events import Header


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

    rows: Sequence[RowView]


class TextOutput(Protocol):
    """What a run wrote: a trace, or a part of a stored one."""

    @property
    def header(self) -> Header: ...

    def token_ids(self, sequence: int, /) -> list[int]: ...


def aligned(runs: Sequence[TextOutput]) -> list[AlignedView]:
    if len(runs) < 2:
        return []
    sequences = range(len(runs[0].header.prompt_ids))
    return [{"rows": [_row(run, runs[0], sequence) for run in runs]} for sequence in sequences]


def _row(output: TextOutput, reference: TextOutput, sequence: int) -> RowView:
    def refused(reason: str) -> RowView:
        return {"sequence": -1, "same": 0, "reason": reason}

    if not (is_timed(output.header) and is_timed(reference.header)):
        return refused("its file holds no times")
    prompts, prompt = output.header.prompt_ids, reference.header.prompt_ids[sequence]
    if prompt not in prompts:
        return refused("another prompt")
    own = sequence if output is reference else prompts.index(prompt)
    ours, theirs = output.token_ids(own), reference.token_ids(sequence)
    if NO_TOKEN in ours or NO_TOKEN in theirs:
        return refused("its token ids are unknown")
    same = equal_tokens(ours, theirs)
    if not same:
        return refused("another text from the first token on" if ours else "no tokens")
    return {"sequence": own, "same": same, "reason": ""}


def equal_tokens(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (own, other) in pairs if own != other), min(len(ours), len(theirs)))
