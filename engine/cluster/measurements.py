"""The measurements that drafts are planned from: read, or made and stored in the cache folder.

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
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from specscope.engine.checkpoints.forms import split_form
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.execution import other_programs
from specscope.engine.cluster.occupancy import OtherPrograms
from specscope.engine.cluster.placement import Placement
from specscope.engine.cluster.probing import MANY_ROWS, ROWS, RunProbe, measure_probe, measure_rows
from specscope.engine.drafting.admission import Costs
from specscope.engine.drafting.pace import Curve, Probe, seconds_at
from specscope.engine.drafting.planner import Plan, best_dynamic, best_tree
from specscope.engine.environment import environment
from specscope.engine.errors import UsageError
from specscope.engine.files import cache_folder, parse_json, read_text, replacing
from specscope.engine.trace.events import OTHERS, TOO_BUSY
from specscope.engine.trace.trace import Trace

LOOK_S = 0.5
"""Seconds in which the load by other programs is read."""
LONGEST = 1 << 20
Load: TypeAlias = Callable[[], float]
"""The cores that other programs use now; called only for a disturbed measurement."""
KEPT = 20
"""Runs of a method that are kept: the last ones."""
FEWEST = 16
"""Tokens of a run from which on it counts."""
PLAIN = "plain"
BROKEN = (UsageError, ValueError, TypeError, AttributeError, KeyError, IndexError, ZeroDivisionError)


def measured_path(facts: Mapping[str, Any], models: Iterable[Path]) -> Path:
    """Return the file of a measurement that depends on these facts, JSON values, and these models.

    The models are directories, with the forms of their weights; sizes and times of their files
    count.
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
    """Return the target's stored seconds by rows, if any, and the cores of other programs."""
    try:
        stored = parse_json(read_text(path, LONGEST))
        curve = tuple((int(rows), float(seconds)) for rows, seconds in stored["verify"])
        others = float(stored["others"])
        fine = all(isfinite(seconds) and seconds > 0 for _, seconds in curve) and _serves(others, load)
    except BROKEN:
        return (), 0.0
    return (curve, others) if fine else ((), 0.0)


def write_curve(path: Path, curve: Curve, others: float) -> None:
    write(path, {"verify": curve, "others": others})


def _serves(others: float, load: Load) -> bool:
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
    """Keep the measured / predicted speed of a run of one sequence in the pair's file.

    A run that other programs disturbed does not count. `verify`: rows -> seconds of the target's
    forward; empty if unknown.
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
    """Return a plan, made from measurements, with the speed-up and the range of earlier runs."""
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


class Measurements:
    """The measurements of a pair on a cluster's devices."""

    def __init__(self, pair: Pair, placement: Placement) -> None:
        self._pair, self._placement = pair, placement
        self._probes: dict[Path, Probe] = {}

    @property
    def verify(self) -> Curve:
        """The target's seconds by rows, if no other programs disturbed their measurement."""
        return read_curve(self._path([], model="target", rows=ROWS), load=lambda: 0.0)[0]

    @property
    def learned(self) -> Path:
        return self._path([], learned=True)

    def probe(
        self,
        method: str,
        settings: Mapping[str, Any],
        heads: list[Path],
        run: RunProbe,
        cancel: threading.Event,
        measuring: Callable[[], None],
    ) -> Probe | None:
        """Return the measurement of a method with these settings; None if it is cancelled."""
        path = self._path(heads, method=method, settings=dict(settings))
        probe = self._probes.get(path) or read_probe(path, self._load)
        if probe is None:
            measuring()
            (verify, before), programs = self._times("target", ROWS, cancel), self._other_programs()
            probe = measure_probe(verify, run, cancel)
            if probe is None:
                return None
            probe = replace(probe, others=max(before, programs.cores() if programs else 0.0))
            write_probe(path, probe)
        if probe.others < TOO_BUSY:
            self._probes[path] = probe
        return probe

    def costs(self, cancel: threading.Event, measuring: Callable[[], None]) -> Costs | None:
        """Return the times of target and drafter by rows; None if `cancel` is set."""
        models = self._placement.workers_for(self._placement.base).by_model
        paths = [self._path([], model=model, rows=MANY_ROWS) for model in models]
        if not all(read_curve(path, self._load)[0] for path in paths):
            measuring()
        curves = {model: self._times(model, MANY_ROWS, cancel)[0] for model in models}
        return None if cancel.is_set() else Costs(curves["target"], curves.get("drafter", ()))

    def _times(self, model: str, rows: tuple[int, ...], cancel: threading.Event) -> tuple[Curve, float]:
        """Return a model's seconds by rows, and the cores that other programs used meanwhile."""
        path = self._path([], model=model, rows=rows)
        curve, others = read_curve(path, self._load)
        if not curve:
            programs = self._other_programs()
            curve = measure_rows(self._placement, cancel, model, rows)
            others = programs.cores() if programs else 0.0
            if not cancel.is_set():
                write_curve(path, curve, others)
        return curve, others

    def _other_programs(self) -> OtherPrograms | None:
        return other_programs(self._placement.workers_for(self._placement.base))

    def _load(self) -> float:
        """Return the cores that other programs use now, measured for `LOOK_S`."""
        programs = self._other_programs()
        if programs is None:
            return 0.0
        time.sleep(LOOK_S)
        return programs.cores()

    def _path(self, heads: list[Path], **facts: Any) -> Path:
        placement = self._placement
        facts |= {
            "runtime": placement.runtime,
            "devices": sorted({device.kind for worker in placement.workers for device in worker.devices}),
            "environment": environment() | dict(placement.details),
        }
        return measured_path(facts, [*self._pair.models.values(), *heads])
