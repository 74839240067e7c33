"""The rooms of the code: no module imports one above it, and no modules import each other in a circle.

Imports for annotations only (`TYPE_CHECKING`) and imports inside functions count, too.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GROUND = ("errors", "environment", "files", "bounds", "types", "draws", "accept")
ROOMS = (
    *GROUND,
    "trace",
    "drafters",
    "model",
    "heads",
    "workers",
    "run",
    "methods",
    "simulate",
    "cluster",
    "training",
)
"""The engine's modules and folders, from the ground up."""
LAZY = "engine"
"""The package itself: it imports its names on first use, so everything may import it."""


def modules() -> dict[str, Path]:
    """Return the path of every module of the three packages, by its dotted name."""
    files = (file for package in ("engine", "traces", "app") for file in (ROOT / package).rglob("*.py"))
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


def imports(file: Path, known: dict[str, Path]) -> set[str]:
    """Return the dotted names of the modules among `known` that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in full}
    return found & known.keys()


@cache
def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports."""
    known = modules()
    return {name: imports(file, known) - {name, LAZY} for name, file in known.items() if name != LAZY}


def room(module: str) -> str:
    """Return the part of the engine that a module belongs to."""
    return module.split(".")[1]


def test_every_part_of_the_engine_has_its_place():
    assert {room(name) for name in modules() if name.startswith("engine.")} == set(ROOMS)


@pytest.mark.parametrize("lower", ROOMS)
def test_no_room_imports_one_above_it(lower):
    above = set(ROOMS[ROOMS.index(lower) + 1 :])
    upward = {
        name: sorted(other for other in others if other.startswith("engine.") and room(other) in above)
        for name, others in graph().items()
        if name.startswith("engine.") and room(name) == lower
    }
    assert not {name: others for name, others in upward.items() if others}


def test_no_modules_import_each_other_in_a_circle():
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None
