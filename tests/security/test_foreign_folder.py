"""Commands and loops in a folder whose files have the names of modules: none is executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(pytest.__file__).parents[1]
RUN = ("run", "--method", "pearl", "--pair", "bundled", "--prompt", "Hi", "--max-new-tokens", "4")
OURS = ("engine", "app", "traces", "assets", "tests")
LOOP = """
import specscope
if __name__ == "__main__":
    with specscope.record("mine.jsonl") as rec:
        with rec.span("verify"):
            pass
        rec.round(drafted=[1], accepted=1, emitted=[1, 2])
    with specscope.open("bundled", device="cpu") as cluster:
        print(cluster.run("speculative", "Hi", limits=specscope.Limits(4)).status)
"""


def foreign(folder: Path, *names: str) -> Path:
    """Write modules that leave a mark when they are executed; return the file of the marks."""
    marks = folder.parent / "executed"
    folder.mkdir()
    for name in filter(str.isidentifier, names):
        text = f"open({str(marks)!r}, 'a').write(__name__ + ' ')\nraise SystemExit('a foreign {name} runs')\n"
        (folder / f"{name}.py").write_text(text)
    return marks


def every_module() -> set[str]:
    """Return the names of all modules and packages that Python finds, and of those it looks for."""
    found = {path.name.partition(".")[0] for path in SITE.iterdir()}
    return {*sys.stdlib_module_names, *found, *OURS, "specscope", "sitecustomize", "usercustomize"}


def done(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPECSCOPE_DB": str(folder.parent / "t.db"), **more}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_a_run_in_a_folder_with_a_file_for_every_module(tmp_path):
    marks = foreign(tmp_path / "here", *every_module())
    ran = done([str(Path(sys.executable).with_name("specscope")), *RUN], tmp_path / "here")
    assert ran.returncode == 0, ran.stderr
    assert not marks.exists(), marks.read_text()


def test_an_own_loop_beside_files_with_the_names_of_our_folders(tmp_path):
    """The loop's own folder is on its path, so only names of SpecScope's own must not matter."""
    marks = foreign(tmp_path / "here", *OURS)
    (tmp_path / "here" / "loop.py").write_text(LOOP)
    ran = done([sys.executable, "loop.py"], tmp_path / "here")
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert (tmp_path / "here" / "mine.jsonl").exists()
    assert not marks.exists(), marks.read_text()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the built wheel; a path file lends it this environment's packages."""
    place = tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in files.stdout.split("\0"):
        if name.startswith((*OURS[:4], "src", "pyproject.toml", "README.md", "LICENSE")):
            copy = place / "tree" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to((ROOT / name).readlink() if (ROOT / name).is_symlink() else ROOT / name)
    python = [sys.executable, "-P", "-m"]
    pip = [*python, "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(place), str(place / "tree")]
    subprocess.run(build, check=True)
    subprocess.run([*python, "venv", "--without-pip", str(place / "env")], check=True)
    (mine,) = (place / "env").glob("lib/*/site-packages")
    (mine / "others.pth").write_text(f"{SITE}\n")
    (wheel,) = place.glob("*.whl")
    into = [
        "--python",
        str(place / "env" / "bin" / "python"),
        "install",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
    ]
    subprocess.run([*pip, *into, str(wheel)], check=True)
    return place / "env"


@pytest.mark.timeout(900)  # on a machine with other work
class TestTheWheel:
    def test_it_installs_one_package_with_all_files(self, installed):
        (site,) = installed.glob("lib/*/site-packages")
        assert {path.name.partition("-")[0] for path in site.iterdir()} == {"specscope", "others.pth"}
        files = subprocess.run(
            ["git", "ls-files", *OURS[:4]], cwd=ROOT, capture_output=True, text=True, check=True
        )
        absent = [name for name in files.stdout.split() if not (site / "specscope" / name).is_file()]
        assert not absent

    @pytest.mark.parametrize("runtime", ["local-process", "local-thread", "ray"])
    def test_it_runs_in_a_folder_with_a_file_for_every_module(self, installed, tmp_path, runtime):
        marks = foreign(tmp_path / "here", *every_module())
        command = [str(installed / "bin" / "specscope"), *RUN, "--runtime", runtime]
        ran = done(command, tmp_path / "here", PYTHONPATH="")
        assert ran.returncode == 0, ran.stderr
        assert not marks.exists(), marks.read_text()

    def test_the_public_names(self, installed, tmp_path):
        code = "import specscope as s; print(s.__file__, *(getattr(s, name).__name__ for name in s.__all__))"
        ran = done([str(installed / "bin" / "python"), "-P", "-c", code], tmp_path, PYTHONPATH="")
        assert ran.stdout.startswith(str(installed)), ran.stderr
        assert {"open", "record", "watch", "compare", "Limits"} <= set(ran.stdout.split())
