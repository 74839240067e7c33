"""The rooms of the engine: no upward imports and no import cycles.

Imports for annotations (`TYPE_CHECKING`) and imports inside functions count, too.
"""

from __future__ import annotations

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
GROUND = ("misfits", "errors", "environment", "hangs", "files", "plot", "bounds", "types", "layout")
ROOMS = (
    *GROUND,
    "sampling",
    "trace",
    "servers",
    "drafting",
    "model",
    "checkpoints",
    "heads",
    "worker",
    "runtimes",
    "run",
    "methods",
    "simulate",
    "cluster",
    "training",
)
"""The engine's modules and folders, from the lowest to the highest."""


def modules() -> dict[str, Path]:
    """Return dotted name, without `specscope.`, -> path of all modules in the three folders.

    The package itself imports its names lazily, so every module may import it.
    """
    files = (file for package in ("engine", "traces", "app") for file in (ROOT / package).rglob("*.py"))
    files = (file for file in files if file != ROOT / "engine" / "__init__.py")  # it imports nothing
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


def imports(file: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules among `known` that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.removeprefix("specscope.") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = node.module.removeprefix("specscope.")
            full = {f"{module}.{alias.name}" for alias in node.names}
            names |= {name if name in known else module for name in full}
    return names & known.keys()


@cache
def graph() -> dict[str, set[str]]:
    """Return module -> modules that it imports."""
    known = modules()
    return {name: imports(file, known) - {name} for name, file in known.items()}


def room(module: str) -> str:
    """Return the room of a module."""
    return module.split(".")[1]


def test_every_room_of_the_engine_is_listed():
    assert {room(name) for name in modules() if name.startswith("engine.")} == set(ROOMS)


def test_no_room_imports_one_above_it():
    rooms = {name: ROOMS.index(room(name)) for name in graph() if name.startswith("engine.")}
    upward = {
        name: above
        for name, rank in rooms.items()
        if (above := sorted(other for other in graph()[name] if rooms.get(other, -1) > rank))
    }
    assert not upward


def test_no_import_cycle():
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None
