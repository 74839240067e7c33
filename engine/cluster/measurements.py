"""The measurements that drafts are planned from: read, or made and stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.checkpoints.pair import Pair
from engine.cluster.execution import other_programs
from engine.cluster.measured import measured_path, read_curve, read_probe, write_curve, write_probe
from engine.cluster.occupancy import OtherPrograms
from engine.cluster.placement import Placement
from engine.cluster.probing import ROWS, RunProbe, measure_probe, measure_verify
from engine.drafting.pace import Curve, Probe
from engine.environment import environment
from engine.trace.events import TOO_BUSY

LOOK_S = 0.5
"""Seconds in which the load by other programs is read."""


class Measurements:
    """The measurements of a pair on a cluster's devices."""

    def __init__(self, pair: Pair, placement: Placement) -> None:
        self._pair, self._placement = pair, placement
        self._probes: dict[Path, Probe] = {}

    @property
    def verify(self) -> Curve:
        """The target's seconds by rows, if no other programs disturbed their measurement."""
        return read_curve(self._path([], rows=ROWS), load=lambda: 0.0)[0]

    @property
    def learned(self) -> Path:
        """The file of earlier runs' speeds."""
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
            (verify, before), programs = self._verify_times(cancel), self._other_programs()
            probe = measure_probe(verify, run, cancel)
            if probe is None:
                return None
            probe = replace(probe, others=max(before, programs.cores() if programs else 0.0))
            write_probe(path, probe)
        if probe.others < TOO_BUSY:
            self._probes[path] = probe
        return probe

    def _verify_times(self, cancel: threading.Event) -> tuple[Curve, float]:
        """Return the target's seconds by rows, and the cores that other programs used meanwhile."""
        path = self._path([], rows=ROWS)
        curve, others = read_curve(path, self._load)
        if not curve:
            programs = self._other_programs()
            curve = measure_verify(self._placement, cancel)
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
        """Return the file of a measurement; all that it depends on is in its name."""
        placement = self._placement
        facts |= {
            "runtime": placement.runtime,
            "devices": sorted({device.kind for worker in placement.workers for device in worker.devices}),
            "environment": environment() | dict(placement.details),
        }
        return measured_path(facts, [*self._pair.models.values(), *heads])
