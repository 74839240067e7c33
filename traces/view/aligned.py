"""Runs aligned by token: which run wrote which token, and how far the texts agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from specscope.traces.facts.imported import NO_TOKEN, is_timed
from specscope.traces.view.tokens import NumberedView, commit_view

if TYPE_CHECKING:
    from specscope.engine.trace.events import Commit, Header
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.waiting import Clock


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


class PartRow(RowView):
    """A run beside the reference run, in a window of time of the reference run."""

    length: int
    before: float
    """When the token before the first one was committed; 0 if there is none."""
    tokens: list[NumberedView]


class AlignedPart(TypedDict):
    """The tokens that the reference run commits in a window, and the same tokens of the others."""

    first: int
    """Number of the sequence's tokens before the window."""
    inside: int
    """Tokens of the reference run in the window; the rows have the first of them."""
    rows: list[PartRow]


class AlignedOutput(NamedTuple):
    """A run's header, and the ids of the tokens of one of its sequences."""

    header: Header
    ids: Callable[[int], Sequence[int]]


def aligned(traces: Sequence[Trace]) -> list[AlignedView]:
    if len(traces) < 2:
        return []
    outputs = [AlignedOutput(trace.header, trace.token_ids) for trace in traces]
    return [
        {"rows": aligned_rows(outputs, sequence)} for sequence in range(len(outputs[0].header.prompt_ids))
    ]


def aligned_rows(outputs: Sequence[AlignedOutput], sequence: int) -> list[RowView]:
    return [_row(output, outputs[0], sequence) for output in outputs]


def _row(output: AlignedOutput, reference: AlignedOutput, sequence: int) -> RowView:
    def refused(reason: str) -> RowView:
        return {"sequence": -1, "same": 0, "reason": reason}

    if not (is_timed(output.header) and is_timed(reference.header)):
        return refused("its file holds no times")
    prompts, prompt = output.header.prompt_ids, reference.header.prompt_ids[sequence]
    if prompt not in prompts:
        return refused("another prompt")
    own = sequence if output is reference else prompts.index(prompt)
    ours, theirs = output.ids(own), reference.ids(sequence)
    if NO_TOKEN in ours or NO_TOKEN in theirs:
        return refused("its token ids are unknown")
    same = equal_tokens(ours, theirs)
    if not same:
        return refused("another text from the first token on" if ours else "no tokens")
    return {"sequence": own, "same": same, "reason": ""}


def equal_tokens(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def aligned_tokens(commits: Sequence[tuple[int, Commit]], clock: Clock) -> list[NumberedView]:
    return [
        {"index": index, **commit_view(commit, commit.text, clock(commit.time))} for index, commit in commits
    ]
