"""The files of measurements, in the user's cache folder.

A measurement depends only on the models, the method and the machine. One that other programs
disturbed serves as long as they go on, and is made again on a quiet machine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

from engine.drafters.pace import Curve, Probe
from engine.drafters.plan import best_dynamic, best_tree
from engine.errors import UsageError
from engine.files import cache_folder, parse_json, read_text, replacing
from engine.pairs.forms import split_form
from engine.trace.events import TOO_BUSY

LONGEST = 1 << 20
"""Bytes of a file."""
Load: TypeAlias = Callable[[], float]
"""The cores that other programs use now; called only for a disturbed measurement."""
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
    """Store a method's measurement."""
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
    """Return a JSON value with tuples instead of lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
