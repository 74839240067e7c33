"""Virtual runs of placements, and their speed."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from specscope.traces.facts.waiting import of_prefill
from specscope.traces.lab.plan import default
from specscope.traces.lab.sweep import ScriptedRunner, SweepRun

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
    plan, question, batch = default(), one.question, one.batch
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
    return runner(SweepRun(one.way.entrant.key, dict(one.config), seed, question.rate, group))


def speed(trace: Trace) -> float:
    """Return the tokens per second of all sequences while all of them decode.

    That is from the end of the last prefill, a drafter's included, to the end of the first
    sequence: an engine gives the place of one that ends to the next.
    """
    start = max((span.end for span in trace.spans if span.kind == "prefill"), default=0)
    ends = {commit.sequence: commit.time for commit in sorted(trace.commits, key=lambda c: c.time)}
    end, prefilled = min(ends.values()), of_prefill(trace)
    tokens = sum(start < c.time <= end and (c.sequence, c.step) not in prefilled for c in trace.commits)
    return 1e9 * tokens / (end - start)
