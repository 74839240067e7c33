"""The recipes of CONTRIBUTING.md work when they are followed."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import specscope
from specscope.app.main import main
from specscope.app.tabs.picker import control_of
from specscope.engine import methods
from specscope.engine.heads import kinds
from specscope.engine.methods import METHODS
from specscope.engine.simulate.profile import FOLDER, Profile, profiles
from specscope.engine.types import Limits
from specscope.traces.export import assets

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = ("method", "kind of drafting head", "view or trace row", "profile")


def recipe(title: str) -> str:
    """Return the section of a recipe."""
    match = re.search(rf"^## A new {title}\n(.*?)(?=^## |\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    assert match, title
    return match[1]


def add_module(package, folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch):
    """Import a new module of a package from another folder."""
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setitem(vars(package), name, None)  # removed at the end of the test
    monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}", raising=False)  # of another test
    importlib.invalidate_caches()
    return importlib.import_module(f"{package.__name__}.{name}")


@pytest.mark.parametrize("title", RECIPES)
def test_every_place_in_a_recipe_exists(title):
    """A path with <name> is a pattern that existing files match."""
    paths = re.findall(r"`((?:engine|traces|assets|tests|docs)/[^`]+|[A-Z]+\.md)`", recipe(title))
    assert len(paths) >= 3
    for path in paths:
        assert list(ROOT.glob(re.sub(r"<\w+>", "*", path))), path


METHODS_SHOWN = re.findall(r"^```python\n(.*?)^```", recipe("method"), re.MULTILINE | re.DOTALL)


def test_the_recipe_has_a_method_with_and_one_without_a_drafter():
    assert ['uses=("target",)' in text for text in METHODS_SHOWN] == [False, True]


@pytest.mark.parametrize("text", METHODS_SHOWN, ids=["drafter", "copy"])
def test_the_methods_of_the_recipe_pass_the_lint(text):
    lint = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "engine/methods/recipe.py", "-"]
    found = subprocess.run(lint, input=text, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("text", METHODS_SHOWN, ids=["drafter", "copy"])
def test_the_methods_of_the_recipe_decode_and_are_found(tmp_path, monkeypatch, capsys, text):
    try:
        add_module(methods, tmp_path, "recipe", text, monkeypatch)
        with specscope.open(runtime="virtual", profile="pearl-4xA100") as cluster:
            baseline, trace = (
                cluster.run(method, "How can I sleep better at night?", limits=Limits(48))
                for method in (methods.BASELINE, "recipe")
            )
        assert trace.text == baseline.text
        assert any(commit.origin == "accepted" for commit in trace.commits)
        assert control_of(METHODS["recipe"].settings()[0])["kind"] == "whole"
        assert main(["methods"]) == 0
        assert f"{'recipe':20} {text.splitlines()[0].strip(chr(34)).split(',')[0]}" in capsys.readouterr().out
    finally:
        METHODS.pop("recipe", None)


def test_a_kind_of_head_is_found_by_its_file_name(tmp_path, monkeypatch):
    text = "from specscope.engine.heads.kinds.medusa import KIND"
    module = add_module(kinds, tmp_path, "recipe", text, monkeypatch)
    assert module.KIND is kinds.KINDS["medusa"]
    assert "recipe" in {module.name for module in pkgutil.iter_modules(kinds.__path__)}
    files = {file.stem for file in (ROOT / "engine/heads/kinds").glob("*.py")} - {"__init__"}
    assert set(kinds.KINDS) == files


def test_a_view_is_part_of_the_script_after_the_list_of_insets(tmp_path, monkeypatch):
    for name in assets.SCRIPTS:
        (tmp_path / name).write_text((assets.FOLDER / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "recipe.js").write_text("INSETS.push(() => new Recipe());", encoding="utf-8")
    monkeypatch.setattr(assets, "FOLDER", tmp_path)
    monkeypatch.setattr(assets, "SCRIPTS", assets.ordered(path.name for path in tmp_path.glob("*.js")))
    script = assets.viewer_script.__wrapped__()
    assert script.index("const INSETS") < script.index("new Recipe()") < script.index("INSETS.map")


def test_a_copied_profile_runs_by_its_path_and_is_listed_in_its_folder(tmp_path, monkeypatch):
    text = (FOLDER / "pearl-3xA100.toml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.toml"
    changed = text.replace('"pearl-3xA100"', '"mine"').replace("speed = 18.58", "speed = 9.29")
    mine.write_text(changed, encoding="utf-8")
    speeds = []
    for profile in ("pearl-3xA100", str(mine)):
        with specscope.open(runtime="virtual", profile=profile, tokens="bernoulli:0.8") as cluster:
            speeds.append(cluster.run("autoregressive", "Hi", limits=Limits(8)).footer.time)
    assert 1.5 < speeds[1] / speeds[0] < 2.1, "the target is half as fast"
    monkeypatch.setattr("specscope.engine.simulate.profile.FOLDER", tmp_path)
    assert profiles() == ["mine"]
    assert Profile.load("mine").name == "mine"
