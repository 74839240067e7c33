"""Virtual runs of placements, and their speed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from specscope.engine.errors import UsageError
from specscope.traces.lab.plan import default
from specscope.traces.lab.sweep import ScriptedRunner, SweepRun
from specscope.traces.lab.winners import LEAST

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.advise.places import Estimate

RUN_TOKENS = 512
"""New tokens of all sequences of a batch that a run decodes."""
LEAST_TOKENS = 32
"""Of each sequence."""


def run(one: Estimate, seed: int, group: str = "") -> Trace:
    """Return a run of a placement at the rate in the middle.

    A batch says as much in fewer tokens of each sequence: it decodes `RUN_TOKENS` in all.
    """
    plan, question, batch = default(), one.question, one.each
    runner = ScriptedRunner(
        one.profile,
        "",
        question.tokens if batch == 1 else min(question.tokens, max(LEAST_TOKENS, RUN_TOKENS // batch)),
        doubt=plan.doubt,
        misses=plan.misses,
        prompt=question.context,
        batch=batch if batch > 1 else 0,
    )
    group = group or uuid.uuid4().hex[:12]
    return runner(SweepRun(one.way.entrant.key, dict(one.config), seed, question.at(), group))


def replay(one: Estimate, group: str) -> Trace:
    """Return a placement's replay of the recorded run.

    Raises:
        UsageError: The run has no accepted pattern for it.
    """
    from specscope.traces.whatif.replay import replayed  # needs torch

    trace, question = one.question.recorded, one.question
    assert trace is not None
    name = f"run {trace.header.run_id}"
    if one.each > 1 or len(trace.header.prompts) > 1:
        raise UsageError(f"{name} is replayed alone, and here are several sequences")
    found = replayed(trace, one.profile, one.way.entrant.key, one.config, question.context, group)
    if len(found.commits) < LEAST:
        raise UsageError(f"{name} has {len(found.commits)} tokens, at least {LEAST} tell a pattern")
    return found


def speed(trace: Trace) -> float:
    """Return the tokens per second of all sequences while all of them decode.

    Of several that is from each one's first round after the last prefill, a drafter's included, to
    the end of the first sequence: an engine gives the place of one that ends to the next, and of
    many rounds the first draft, which nothing hides, is a small part.
    """
    prefilled = max((span.end for span in trace.spans if span.kind == "prefill"), default=0)
    commits = sorted(trace.commits, key=lambda c: c.time)
    ends = {c.sequence: c.time for c in commits}
    firsts = {c.sequence: c.time for c in reversed(commits) if c.time > prefilled}
    start, end = max(firsts.values()), min(ends.values())
    if len(ends) == 1 or start >= end:  # all of a single sequence counts
        start = prefilled
    tokens = sum(start < c.time <= end for c in commits)
    return 1e9 * tokens / (end - start)


def total_speed(one: Estimate, trace: Trace) -> float:
    """Return the tokens per second of all sequences of all engines, of which one ran."""
    return speed(trace) * one.batch / one.each
