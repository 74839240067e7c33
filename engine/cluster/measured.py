"""The files of measurements, in the user's cache folder.

A measurement depends only on the models, the method and the machine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from engine.drafters.pace import Curve, Probe
from engine.drafters.plan import best_dynamic, best_tree
from engine.errors import UsageError
from engine.files import cache_folder, parse_json, read_text, replacing
from engine.pairs.forms import split_form

LONGEST = 1 << 20
"""Bytes of a file."""
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


def read_probe(path: Path) -> Probe | None:
    """Return a method's stored measurement; None if the file is missing or broken."""
    try:
        stored = parse_json(read_text(path, LONGEST))
        probe = Probe(**{name: _frozen(value) for name, value in stored.items()})
        plans = best_tree(probe), best_dynamic(probe, 1)  # wrong values fail here
    except BROKEN:
        return None
    return probe if all(isfinite(plan.speedup) for plan in plans) else None


def write_probe(path: Path, probe: Probe) -> None:
    write(path, asdict(probe))


def read_curve(path: Path) -> Curve:
    """Return the target's stored seconds by rows; empty if the file is missing or broken."""
    try:
        curve = tuple((int(rows), float(seconds)) for rows, seconds in parse_json(read_text(path, LONGEST)))
    except BROKEN:
        return ()
    return curve if all(isfinite(seconds) and seconds > 0 for _, seconds in curve) else ()


def write_curve(path: Path, curve: Curve) -> None:
    """Store the target's seconds by rows."""
    write(path, curve)


def write(path: Path, value: Any) -> None:
    """Store JSON in the cache folder, if it can be written."""
    with contextlib.suppress(OSError):  # the run does not need the file
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            json.dump(value, file)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
