"""The rooms of the three packages and their imports: one way, without cycles.

Imports for annotations (`TYPE_CHECKING`) and imports inside functions count, too.
"""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specscope.engine.cluster.ray_devices import NodeMeter
from specscope.engine.trace.events import Device

ROOT = Path(__file__).parents[2]
FORBIDDEN = {
    "engine": {"traces", "app", "gradio", "plotly", "sqlmodel", "sqlalchemy"},
    "traces": {"app", "gradio"},
}
GROUND = "misfits errors schema environment hangs files plot bounds types layout"
ROOMS = {
    "engine": f"{GROUND} sampling trace vllm servers drafting model checkpoints heads simulate worker runtimes run "
    "methods cluster training",
    "traces": "facts judge database lengths view whatif lab advise sets export imports following papers",
    "app": "signals named pairs busy bars ray jobs shipped render experiments notebook bench tabs web cli command main",
}
"""The modules and folders of each package, from the lowest to the highest."""


def modules() -> dict[str, Path]:
    """Return dotted name, without `specscope.`, -> path of all modules in the three folders.

    The package itself imports its names lazily, so every module may import it.
    """
    files = (file for package in ("engine", "traces", "app") for file in (ROOT / package).rglob("*.py"))
    files = (file for file in files if file != ROOT / "engine" / "__init__.py")  # it imports nothing
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


@cache
def imported(file: Path) -> set[str]:
    """Return the modules and names that a file imports, without `specscope.`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("specscope.") for name in names}


def imports(file: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules among `known` that a file imports."""
    names = imported(file)
    return {name if name in known else name.rpartition(".")[0] for name in names} & known.keys()


@cache
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(file, known) - {name} for name, file in known.items()}


def rooms(package: str) -> dict[str, str]:
    """Return module -> room of a package."""
    return {name: name.split(".")[1] for name in graph() if name.startswith(f"{package}.")}


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_listed(package):
    assert {*rooms(package).values()} == {*ROOMS[package].split()}


@pytest.mark.parametrize("package", ROOMS)
def test_no_room_imports_one_above_it(package):
    order = ROOMS[package].split()
    ranks = {name: order.index(room) for name, room in rooms(package).items()}
    upward = {
        name: above
        for name, rank in ranks.items()
        if (above := sorted(other for other in graph()[name] if ranks.get(other, -1) > rank))
    }
    assert not upward


def test_one_word_is_one_class():
    names = Counter(
        node.name
        for file in modules().values()
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == {"Config"}, "every method has one"


def test_no_import_cycle():
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


@pytest.mark.parametrize("folder", sorted(FORBIDDEN))
def test_imports_point_one_way(folder):
    packages = {
        str(file.relative_to(ROOT)): {name.partition(".")[0] for name in imported(file)}
        for file in (ROOT / folder).rglob("*.py")
    }
    assert packages
    assert not {file: bad for file, names in packages.items() if (bad := names & FORBIDDEN[folder])}


@pytest.mark.parametrize("folder", ["engine", "traces", "app", "tests"])
def test_all_imports_name_the_one_package(folder):
    """In a folder of somebody's own, `import engine` would take what lies there."""
    found = r"^\s*(?:from|import (?:[\w., ]+, )?)\s*(?:engine|traces|app|assets)\b"
    texts = {file: file.read_text(encoding="utf-8") for file in (ROOT / folder).rglob("*.py")}
    assert texts
    assert not [str(file) for file, text in texts.items() if re.search(found, text, re.MULTILINE)]


def nodes_reading() -> bytes:
    """Return what a node of Ray is asked for, as it is sent."""
    asked = list[Any]()
    NodeMeter([SimpleNamespace(devices=[Device("cpu:0", "", "", "cpu")], ask=asked.append)])
    return pickle.dumps(asked[0])


ALONE = {
    "the engine without the app's packages": f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.removeprefix("specscope.").partition(".")[0] in {sorted(FORBIDDEN["engine"])!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import specscope.engine.runtimes.serve
assert not {{"transformers", "huggingface_hub"}} & set(sys.modules), "a worker that starts imports them"
import specscope
with specscope.open(runtime="local-thread") as cluster:
    trace = cluster.run("speculative", "Hello", limits=specscope.Limits(8))
assert trace.status == "done" and 1 <= len(trace.token_ids()) <= 8, trace.footer
""",
    "a reading of a worker on Ray without models' code": f"""
import pickle, sys
reading = pickle.loads({nodes_reading()!r})()
assert reading.memory > 0 and not {{"torch", "transformers"}} & set(sys.modules)
""",
    "the list of methods without torch": """
import sys, specscope.engine.methods
assert "torch" not in sys.modules
""",
    "a recorded loop with the standard library alone": f"""
import sys
sys.path.insert(0, {str(ROOT / "src")!r})
import specscope
with specscope.record("mine.jsonl") as rec:
    with rec.span("verify"): pass
    rec.round(drafted=[1], accepted=1, emitted=[1, 2])
loaded = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)
assert not loaded - {{"specscope", "__main__"}}, loaded
""",
}
"""What runs in a process of its own, which finds no more than it names."""


@pytest.mark.parametrize("name", ALONE)
def test_what_runs_alone(name, tmp_path):
    isolated = ["-I", "-S"] if "standard library" in name else []
    command = [sys.executable, *isolated, "-c", ALONE[name]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_engines_only_doors_to_the_app_are_modules_for_notebooks():
    texts = [(f, f.read_text(encoding="utf-8")) for f in (ROOT / "engine").rglob("*.py")]
    doors = {
        (f.relative_to(ROOT).as_posix(), d)
        for f, t in texts
        for d in re.findall(r'"specscope\.((?:app|traces)\.[\w.]+)"', t)
    }
    assert doors == {("engine/trace/trace.py", "app.notebook.run")}
    assert (ROOT / "app/notebook/run.py").is_file()


def test_no_file_but_its_own_names_a_method():
    """Differences between methods are data in the registry, never a branch on a name."""
    keys = [
        f.stem
        for f in (ROOT / "engine/methods").glob("*.py")
        if f.stem not in ("__init__", "registry", "common")
    ]
    assert keys
    for folder in ("engine", "traces", "app"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            for key in keys:
                if file != ROOT / f"engine/methods/{key}.py":
                    assert f'== "{key}"' not in text, (file, key)
                    assert f'!= "{key}"' not in text, (file, key)
