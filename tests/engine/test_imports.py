"""Imports go one way, app -> traces -> engine; the engine needs none of the app's packages."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
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


def _imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return {name.removeprefix("specscope.").partition(".")[0] for name in names}


@pytest.mark.parametrize("folder", sorted(FORBIDDEN))
def test_imports_point_one_way(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    wrong = {str(f.relative_to(ROOT)): bad for f in files if (bad := _imported(f) & FORBIDDEN[folder])}
    assert not wrong


@pytest.mark.parametrize("folder", ["engine", "traces", "app", "tests"])
def test_all_imports_name_the_one_package(folder):
    """In a folder of somebody's own, `import engine` would take what lies there."""
    found = r"^\s*(?:from|import (?:[\w., ]+, )?)\s*(?:engine|traces|app|assets)\b"
    texts = {file: file.read_text(encoding="utf-8") for file in (ROOT / folder).rglob("*.py")}
    assert texts
    assert not [str(file) for file, text in texts.items() if re.search(found, text, re.MULTILINE)]


def test_engine_runs_where_the_app_packages_are_absent_and_a_worker_starts_without_transformers():
    blocked = sorted(FORBIDDEN["engine"])
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.removeprefix("specscope.").partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
import specscope.engine.runtimes.serve
assert not {{"transformers", "huggingface_hub"}} & set(sys.modules), "a worker that starts imports them"
import specscope
with specscope.open(runtime="local-thread") as cluster:
    trace = cluster.run("speculative", "Hello", limits=specscope.Limits(8))
assert trace.status == "done" and 1 <= len(trace.token_ids()) <= 8, trace.footer
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reading_of_a_worker_on_ray_imports_no_models_code_during_the_run():
    asked = list[Any]()
    worker = SimpleNamespace(devices=[Device("cpu:0", "", "", "cpu")], ask=asked.append)
    NodeMeter([worker])
    code = f"""
import pickle, sys
reading = pickle.loads({pickle.dumps(asked[0])!r})()
assert reading.memory > 0 and not {{"torch", "transformers"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
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


def test_methods_are_listed_without_torch():
    """`specscope.engine.methods` lists the methods without importing torch, which is slow."""
    code = (
        "import sys, specscope.engine.methods; sys.exit('torch is imported' if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_loop_is_recorded_without_any_package(tmp_path):
    """`specscope.record` runs without torch, Gradio or SQLModel: the standard library is enough."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "src")!r})
import specscope
with specscope.record({str(tmp_path / "mine.jsonl")!r}) as rec:
    with rec.span("verify"): pass
    rec.round(drafted=[1], accepted=1, emitted=[1, 2])
loaded = {{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)
sys.exit(str(loaded) if loaded - {{"specscope", "__main__"}} else 0)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


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
