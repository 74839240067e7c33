"""Attacks by folders: files that are followed, and files with the names of modules."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from specscope.app.jobs.recordings import MOST_FOLLOWED, Recordings
from specscope.app.jobs.service import Service
from specscope.app.web.server import build_app
from specscope.engine.errors import UsageError
from specscope.engine.trace.jsonl import to_json
from specscope.traces.following import follow
from specscope.traces.following.follow import Tail
from tests.app.fakes import FakeOpen
from tests.security.conftest import HOST
from tests.traces.samples import sample_events

LINES = [to_json(event) + "\n" for event in sample_events("pearl")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "recordings"
    path.mkdir()
    (path / "run.jsonl").write_text("".join(LINES), encoding="utf-8")
    return path


@pytest.fixture
def recordings(folder: Path) -> Recordings:
    return Recordings((), folder)


def read_on(tail: Tail) -> None:
    for _ in range(100):
        tail.read()


def test_a_name_leads_to_no_file_outside_the_list(recordings, folder, outside) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "deep.jsonl").write_text("".join(LINES), encoding="utf-8")
    (folder / "notes.txt").write_text("private")
    names = [
        *(str(outside), f"../{outside.name}", "../recordings/run.jsonl", str(folder / "run.jsonl")),
        *("./run.jsonl", "inner/deep.jsonl", "inner", "notes.txt", "", ".", "..", "/dev/zero", "/etc/passwd"),
        *(
            "run.jsonl\0",
            "run.jsonl/",
            "RUN.JSONL",
            "*.jsonl",
            "%2e%2e/run.jsonl",
            "\udcff.jsonl",
            "x" * 9000,
        ),
    ]
    for name in names:
        with pytest.raises(UsageError, match=r"there is no file .* to follow") as refusal:
            recordings.tail(name)
        assert "secret" not in str(refusal.value)
    assert [row["name"] for row in recordings.listed()] == ["run.jsonl"]


def test_links_pipes_devices_and_folders_inside_are_neither_listed_nor_followed(
    recordings, folder, outside
) -> None:
    for name, to in (("link", outside), ("loop", folder / "loop.jsonl"), ("device", "/dev/zero")):
        (folder / f"{name}.jsonl").symlink_to(to)
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    assert [row["name"] for row in recordings.listed()] == ["run.jsonl"]
    for name in ("link", "loop", "device", "pipe", "folder"):
        with pytest.raises(UsageError, match="there is no file"):
            recordings.tail(f"{name}.jsonl")


def becomes(path: Path, to: Path) -> None:
    path.unlink()
    path.symlink_to(to)


def test_a_file_that_becomes_a_link_is_not_opened(recordings, folder, outside) -> None:
    tail = recordings.tail("run.jsonl")
    becomes(folder / "run.jsonl", outside)
    with pytest.raises(UsageError, match=r"cannot read run\.jsonl"):
        tail.read()


def test_the_followed_file_is_stored_and_not_what_its_name_became(recordings, folder, outside) -> None:
    tail = recordings.tail("run.jsonl")
    assert tail.read()
    becomes(folder / "run.jsonl", outside)
    assert tail.trace().header.run_id == "sample-pearl"
    tail.close()


def test_an_endless_line_and_a_huge_file_are_given_up(folder, monkeypatch) -> None:
    monkeypatch.setattr(follow, "MOST_READ", 2**12)
    monkeypatch.setattr(follow, "MOST_LINE", 2**16)
    (folder / "endless.jsonl").write_text("x" * 2**18)
    tail = Tail(folder / "endless.jsonl")
    with pytest.raises(UsageError, match="line 1 has no end within 65536 bytes"):
        read_on(tail)
    assert len(tail._cut) <= 2**16 + 2**12, "no more than a line is kept"
    with (folder / "huge.jsonl").open("wb") as file:
        file.truncate(2**40)  # a hole, which takes no space
    huge, began = Tail(folder / "huge.jsonl"), time.monotonic()
    with pytest.raises(UsageError, match="line 1 has no end"):
        read_on(huge)
    assert time.monotonic() - began < 20


def test_the_address_of_the_list_has_names_only(folder, tmp_path) -> None:
    with closing(Service(tmp_path / "traces.db", FakeOpen(), recordings=Recordings((), folder))) as service:
        with TestClient(build_app(service), base_url=HOST) as client:
            answer = client.get("/specscope/recordings")
            assert [row["name"] for row in answer.json()["files"]] == ["run.jsonl"]
            assert str(folder.parent) not in answer.text
            assert client.get("/specscope/recordings/../run.jsonl").status_code == 404
            foreign = client.get("/specscope/recordings", headers={"Origin": "http://evil.example"})
            assert foreign.status_code == 403


def test_one_file_more_than_the_limit_stops_the_first(folder) -> None:
    runs = []
    with closing(Service(None, FakeOpen(), recordings=Recordings((), folder))) as service:
        for number in range(MOST_FOLLOWED + 2):
            (folder / f"{number}.jsonl").write_text(LINES[0].replace("sample-pearl", f"run{number}"))
            runs.append(service.follower.start(f"{number}.jsonl").run)
        assert [run.wait(20) for run in runs[:2]] == [True, True]
        assert not any(run.ended for run in runs[2:])
    assert all(run.ended for run in runs)


def test_a_wrong_line_of_a_followed_file_is_shown_in_part(folder) -> None:
    (folder / "secret.jsonl").write_text("root:" + "secret-" * 5000 + "\n")
    tail = Recordings((), folder).tail("secret.jsonl")
    with pytest.raises(UsageError) as refusal:
        tail.read()
    assert "secret-" not in str(refusal.value).replace("secret.jsonl", "")


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


def tracked(*folders: str) -> list[str]:
    command = ["git", "ls-files", "-z", *folders]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout.rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the built wheel; a path file lends it this environment's packages."""
    place = tmp_path_factory.mktemp("wheel")
    for name in tracked():
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
    into = ["--python", str(place / "env/bin/python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, *into, "--ignore-installed", str(wheel)], check=True)
    return place / "env"


@pytest.mark.timeout(900)  # on a machine with other work
class TestTheWheel:
    def test_it_installs_one_package_with_all_files(self, installed):
        (site,) = installed.glob("lib/*/site-packages")
        assert {path.name.partition("-")[0] for path in site.iterdir()} == {"specscope", "others.pth"}
        absent = [name for name in tracked(*OURS[:4]) if not (site / "specscope" / name).is_file()]
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
