"""The progress of commands, bars, the load by other programs, and `specscope calibrate`."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import nullcontext
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from specscope.app import busy
from specscope.app.bars import DownloadBar, is_watched, new_bar
from specscope.app.busy import ProcessorTime, busy_warning, read_load, used_by_others
from specscope.app.cli import common
from specscope.app.cli.common import ERASE, Status, recorded
from specscope.engine.checkpoints.progress import Progress
from specscope.engine.cluster import calibrate
from specscope.engine.simulate.profile import Profile
from tests.app.commands import VIRTUAL, answer, call, printed
from tests.engine.methods.pairs import make_pair

RUN = ["run", "--method", "speculative", "--prompt", "Tell me a story.", *VIRTUAL]


@pytest.fixture
def terminal(capsys, monkeypatch):
    """Make stdout and stderr terminals, on which the line appears at once."""
    monkeypatch.setattr(common, "QUIET_S", 0.0)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)


def test_the_line_is_overwritten_and_erased(monkeypatch):
    monkeypatch.setattr(common, "QUIET_S", 0.0)
    lines = list[str]()
    screen = SimpleNamespace(isatty=lambda: True, write=lines.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stderr", screen)

    def appears(text):
        end = time.monotonic() + 20
        while not any(re.fullmatch(rf"{re.escape(ERASE)}{text} · \d+ s", line) for line in lines):
            assert time.monotonic() < end, lines
            time.sleep(0.01)

    with Status("loading") as line:
        appears("loading")
        line.text = "measuring"
        appears("measuring")
    assert lines[-1] == ERASE


@pytest.mark.usefixtures("shared_clusters")
def test_a_run_streams_on_a_terminal(capsys, db, request, monkeypatch):
    text, plain = answer(capsys, *RUN, *db, "--json")["text"], printed(capsys, *RUN, *db)
    request.getfixturevalue("terminal")
    pieces, write = [], sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda piece: pieces.append(piece) or write(piece))
    out = printed(capsys, *RUN, *db)
    assert re.sub(r"run \w+", "", out) == re.sub(r"run \w+", "", plain), "the text once, then the line"
    first = next(i for i in range(len(pieces)) if "".join(pieces[: i + 1]) == text)
    assert first >= 2, "in pieces"
    assert answer(capsys, *RUN, *db, "--json")["text"] == text


@pytest.mark.parametrize("shown", [False, True])
def test_a_measurement_names_models_method_part_and_seconds(capsys, request, shown):
    if shown:
        request.getfixturevalue("terminal")

    def run(*_, measuring, **__):
        measuring()
        time.sleep(0.5)

    store = SimpleNamespace(listening=nullcontext)
    recorded(store, SimpleNamespace(pair=SimpleNamespace(name="m"), run=run), "pearl", [], {}, "(2 of 3)")
    line = "measuring m for pearl (2 of 3): 8 to 14 s, once on this machine; Ctrl-C stops it"
    err = capsys.readouterr().err
    assert (line in err, err == f"specscope: {line}\n") == (True, not shown)


@pytest.mark.usefixtures("shared_clusters")
def test_commands_on_stored_runs_and_papers_show_what_they_do(capsys, db, request, tmp_path):
    run_id = answer(capsys, *RUN, *db, "--json")["run_id"]
    rows, page = str(tmp_path / "rows.jsonl"), str(tmp_path / "page.html")
    printed(capsys, "export", run_id, "--format", "jsonl", "-o", rows, *db)
    other = ["--db", str(tmp_path / "other.db")]
    request.getfixturevalue("terminal")
    for command, line in (
        (["papers", "--paper", "ems"], "computing the rows of "),
        (["import", rows, *other], "storing the runs"),
        (["whatif", run_id, *db], "replaying the run"),
        (["report", run_id, "-o", page, *db], "writing the report"),
    ):
        code, _, err = call(capsys, *command)
        assert (code, line in err, err.endswith(ERASE)) == (0, True, True), command


@pytest.mark.parametrize(("place", "said"), [("terminal", "2/2"), ("notebook", "2/2"), ("nowhere", "")])
def test_a_bar_is_counted_where_someone_sees_it(capsys, monkeypatch, place, said):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: place == "terminal")
    if place == "notebook":
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert is_watched() == (place != "nowhere")
    with new_bar(total=2, unit="run") as bar:
        bar.update(2)
    err = capsys.readouterr().err
    assert (err == "") if not said else said in err


def test_a_download_has_its_bar_in_a_notebook(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with DownloadBar() as bar:
        bar.show(Progress("a/model", "model.safetensors", 512, 1024))
    err = capsys.readouterr().err
    assert err.startswith("downloading a/model; Ctrl-C stops it\n")
    assert "model.safetensors:  50%" in err


# The load by other programs.


def test_the_load_by_others_leaves_out_this_program_and_a_calm_machine_has_no_warning() -> None:
    before = ProcessorTime(100.0, 1000.0, {1: 50.0, 2: 7.0})
    after = ProcessorTime(110.0, 1016.0, {1: 54.0, 3: 4.0})  # worker 2 has ended, worker 3 is new
    assert used_by_others(before, after) == 0.8
    assert "Other programs used 0.8 of 2 cores" in busy_warning(before, after, 2)
    before = ProcessorTime(100.0, 1000.0, {1: 50.0})
    assert busy_warning(before, ProcessorTime(110.0, 1014.0, {1: 60.0}), 2) == ""
    assert busy_warning(before, ProcessorTime(100.1, 1010.0, {1: 50.0}), 2) == ""
    assert used_by_others(before, ProcessorTime(110.0, 1009.0, {1: 60.0})) == 0.0, "clocks of different grain"
    reading = read_load()
    assert reading.own[os.getpid()] > 0
    assert reading.machine > 0


@pytest.mark.usefixtures("shared_clusters")
@pytest.mark.parametrize(
    "command",
    ["run --method autoregressive", "compare --methods autoregressive", "sweep --method speculative --over gamma=1"],
)  # fmt: skip
def test_measured_commands_warn_of_a_busy_machine_in_one_line_and_in_json(capsys, db, monkeypatch, command):
    words = [*command.split(), "--prompt", "Hi", "--json", *db]

    def warning(*place: str) -> tuple[str, int]:
        """Return the warning in the JSON object, and the number of lines on stderr that have it."""
        readings = chain([ProcessorTime(100.0, 1000.0, {})], repeat(ProcessorTime(110.0, 1019.0, {})))
        monkeypatch.setattr(busy, "read_load", lambda: next(readings))
        code, out, err = call(capsys, *words, *place)
        assert code == 0
        return str(json.loads(out)["warning"])[:26], err.count("Other programs used 1.9 of")

    busy_here = ("--runtime", "local-thread", "--max-new-tokens", "2")
    assert warning(*busy_here) == ("Other programs used 1.9 of", 1)
    assert warning(*VIRTUAL) == ("None", 0)


# `specscope calibrate`.


def test_a_calibration_is_a_profile_for_virtual_runs_and_json_of_every_cell(
    capsys, db, tmp_path, monkeypatch
):
    """It is measured once; the second command, on a busy machine, has the same measurement."""
    pair, _ = make_pair(tmp_path / "pairs", "llama", "other")
    words = ["calibrate", "--target", str(pair.target_path), "--drafter", str(pair.drafter_path)]
    words += ["--device", "cpu", "--quick", "-o"]
    path, measured, made = tmp_path / "mine.toml", calibrate.calibrate, []
    monkeypatch.setattr(calibrate, "calibrate", lambda *args: made.append(measured(*args)) or made[0])
    code, out, err = call(capsys, *words, str(path))
    assert (code, out.splitlines()[-1]) == (0, f"wrote {path}; use it with --profile {path}")
    assert all(line.startswith("specscope: ") for line in err.splitlines())
    assert "turn 3 of 3" in err
    assert Profile.load(str(path)).name == "mine"
    run = ["run", "--method", "pearl", "--set", "gamma=2", "--prompt", "Hi", "--max-new-tokens", "4"]
    assert answer(capsys, *run, "--profile", str(path), *db, "--json")["runtime"] == "virtual"

    busy_file, readings = tmp_path / "busy.toml", iter([(100.0, 1000.0), (110.0, 1019.0)])
    monkeypatch.setattr(busy, "read_load", lambda: ProcessorTime(*next(readings), {}))
    monkeypatch.setattr(calibrate, "calibrate", lambda *_: made[0])
    result = answer(capsys, *words, str(busy_file), "--json")
    cells = result["forwards"]["target"]
    assert result["file"] == str(busy_file)
    assert result["c"] == pytest.approx(Profile.read(path).latency().c)
    assert len(cells) == 3 * 2  # three row counts, one context of a model of 64 positions, two batches
    assert set(cells[0]) == {"rows", "context", "batch", "us", "least", "most"}
    assert result["warning"].startswith("Other programs used 1.9 of")
    assert busy_file.read_text(encoding="utf-8").startswith(f"# {result['warning']}\n")
    assert Profile.load(str(busy_file)).name == "busy"
