"""What earlier runs measured where a plan predicted: later predictions of this pair learn from it.

A plan knows the measured prompts, and times of one model at a time. Runs have other prompts, and
models that share a memory bus. So a file keeps the measured / predicted tokens per second of the
last runs by method, and by whether they sampled; plain decoding's are relative to the target's
one-row forward. The median scales a prediction, the smallest and the largest are its range.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path
from statistics import median

from engine.cluster.measured import BROKEN, LONGEST, write
from engine.drafters.pace import Curve, seconds_at
from engine.drafters.plan import Plan
from engine.files import parse_json, read_text
from engine.trace.events import OTHERS, TOO_BUSY
from engine.trace.trace import Trace

KEPT = 20
"""Runs of a method that are kept: the last ones."""
FEWEST = 16
"""Tokens of a run from which on it counts."""
PLAIN = "plain"
"""Name of the runs that drafted nothing."""


def learn(path: Path, trace: Trace, plan: Plan | None, verify: Curve) -> None:
    """Keep a run's measured / predicted speed, unless other programs disturbed it.

    Args:
        path: The pair's file.
        trace: A run of one sequence.
        plan: Its plan, if it was planned.
        verify: Rows -> seconds of the target's forward; empty if unknown.
    """
    plain = not any(r.drafted for r in trace.rounds)
    expected = plan.seconds if plan else seconds_at(verify, 1) if plain and verify else 0.0
    measured = _seconds_per_token(trace)
    if not expected or measured is None:
        return
    greedy = not trace.header.sampling["temperature"]
    ratios, name = _read(path), _name(PLAIN if plain else trace.header.method, greedy=greedy)
    write(path, {**ratios, name: [*ratios.get(name, []), expected / measured][-KEPT:]})


def scaled(path: Path, plan: Plan, method: str, verify: Curve, *, greedy: bool) -> Plan:
    """Return the plan of a method's run with the speed-up, and its range, of earlier runs.

    Args:
        path: The pair's file.
        plan: The plan, from measurements alone.
        method: The method's key.
        verify: Rows -> seconds of the target's forward.
        greedy: Whether the run has temperature 0.
    """
    ratios = _read(path)
    own, plain = (ratios.get(_name(name, greedy=greedy), []) for name in (method, PLAIN))
    if not own:
        return plan
    token = seconds_at(verify, 1) / median(plain) if plain else plan.speedup * plan.seconds
    low, value, high = (token / plan.seconds * ratio for ratio in (min(own), median(own), max(own)))
    return replace(plan, speedup=value, low=low, high=high, runs=len(own))


def _name(method: str, *, greedy: bool) -> str:
    return method if greedy else f"{method}, sampled"


def _seconds_per_token(trace: Trace) -> float | None:
    prefill = max((s.end for s in trace.spans if s.kind == "prefill" and s.step == 0), default=0)
    tokens, header = len(trace.commits), trace.header
    busy = next((row.busy for row in trace.occupancy if row.device == OTHERS), 0.0)
    cores = header.environment.get("cores", 1)
    if trace.status != "done" or tokens < FEWEST or len(header.prompts) > 1 or busy * cores >= TOO_BUSY:
        return None
    seconds = (max(c.time for c in trace.commits) - prefill) / 1e9
    return seconds / tokens if seconds > 0 else None


def _read(path: Path) -> dict[str, list[float]]:
    try:
        stored = parse_json(read_text(path, LONGEST))
        found = {str(name): [float(ratio) for ratio in ratios] for name, ratios in stored.items()}
    except BROKEN:
        return {}
    fine = all(isfinite(ratio) and ratio > 0 for ratios in found.values() for ratio in ratios)
    return found if fine else {}
