"""The files of measurements, in the user's cache folder.

A measurement depends only on the models, the method and the machine. One that other programs
disturbed serves as long as they go on, and is made again on a quiet machine.

Later predictions of a pair learn from earlier runs. A plan knows the measured prompts, and times of
one model at a time; runs have other prompts, and models that share a memory bus. So a file keeps
the measured / predicted tokens per second of the last runs by method, and by whether they sampled;
plain decoding's are relative to the target's one-row forward. The median scales a prediction, the
smallest and the largest are its range.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from engine.checkpoints.forms import split_form
from engine.drafting.pace import Curve, Probe, seconds_at
from engine.drafting.planner import Plan, best_dynamic, best_tree
from engine.errors import UsageError
from engine.files import cache_folder, parse_json, read_text, replacing
from engine.trace.events import OTHERS, TOO_BUSY
from engine.trace.trace import Trace

LONGEST = 1 << 20
"""Bytes of a file."""
Load: TypeAlias = Callable[[], float]
"""The cores that other programs use now; called only for a disturbed measurement."""
KEPT = 20
"""Runs of a method that are kept: the last ones."""
FEWEST = 16
"""Tokens of a run from which on it counts."""
PLAIN = "plain"
"""Name of the runs that drafted nothing."""
BROKEN = (UsageError, ValueError, TypeError, AttributeError, KeyError, IndexError, ZeroDivisionError)
"""Errors of a file with wrong values."""


def measured_path(facts: Mapping[str, Any], models: Iterable[Path]) -> Path:
    """Return the file of a measurement.

    Args:
        facts: JSON values that the measurement depends on: method, settings, machine, versions.
        models: Directories of the models and of the head, with the forms of their weights; sizes
            and times of their files count.
    """
    files = [
        (str(file), bits, file.stat().st_size, file.stat().st_mtime_ns)
        for folder, bits in map(split_form, models)
        for file in sorted(folder.resolve().glob("*"))
        if file.is_file()
    ]
    key = json.dumps([facts, files], sort_keys=True)
    return cache_folder() / "measured" / f"{sha256(key.encode()).hexdigest()[:32]}.json"


def read_probe(path: Path, load: Load) -> Probe | None:
    """Return a method's stored measurement; None if the file is missing, broken or disturbed."""
    try:
        stored = parse_json(read_text(path, LONGEST))
        probe = Probe(**{name: _frozen(value) for name, value in stored.items()})
        plans = best_tree(probe), best_dynamic(probe, 1)  # wrong values fail here
    except BROKEN:
        return None
    fine = all(isfinite(plan.speedup) for plan in plans) and _serves(probe.others, load)
    return probe if fine else None


def write_probe(path: Path, probe: Probe) -> None:
    write(path, asdict(probe))


def read_curve(path: Path, load: Load) -> tuple[Curve, float]:
    """Return the target's stored seconds by rows, and the cores of other programs meanwhile.

    The curve is empty if the file is missing, broken or disturbed.
    """
    try:
        stored = parse_json(read_text(path, LONGEST))
        curve = tuple((int(rows), float(seconds)) for rows, seconds in stored["verify"])
        others = float(stored["others"])
        fine = all(isfinite(seconds) and seconds > 0 for _, seconds in curve) and _serves(others, load)
    except BROKEN:
        return (), 0.0
    return (curve, others) if fine else ((), 0.0)


def write_curve(path: Path, curve: Curve, others: float) -> None:
    """Store the target's seconds by rows, and the cores of other programs meanwhile."""
    write(path, {"verify": curve, "others": others})


def _serves(others: float, load: Load) -> bool:
    """Return whether a measurement beside other programs serves now."""
    return others < TOO_BUSY or load() >= TOO_BUSY


def write(path: Path, value: Any) -> None:
    """Store JSON in the cache folder, if it can be written."""
    with contextlib.suppress(OSError):  # the run does not need the file
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            json.dump(value, file)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


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
    if not expected or measured is None or (plan and plan.others >= TOO_BUSY):
        return
    greedy = not trace.header.sampling["temperature"]
    ratios, name = _read_ratios(path), _ratio_name(PLAIN if plain else trace.header.method, greedy=greedy)
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
    ratios = _read_ratios(path)
    own, plain = (ratios.get(_ratio_name(name, greedy=greedy), []) for name in (method, PLAIN))
    if not own:
        return plan
    token = seconds_at(verify, 1) / median(plain) if plain else plan.speedup * plan.seconds
    low, value, high = (token / plan.seconds * ratio for ratio in (min(own), median(own), max(own)))
    return replace(plan, speedup=value, low=low, high=high, runs=len(own))


def _ratio_name(method: str, *, greedy: bool) -> str:
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


def _read_ratios(path: Path) -> dict[str, list[float]]:
    try:
        stored = parse_json(read_text(path, LONGEST))
        found = {str(name): [float(ratio) for ratio in ratios] for name, ratios in stored.items()}
    except BROKEN:
        return {}
    fine = all(isfinite(ratio) and ratio > 0 for ratios in found.values() for ratio in ratios)
    return found if fine else {}
