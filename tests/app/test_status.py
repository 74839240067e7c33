"""The progress of commands, bars, and the load by other programs."""

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
from tests.app.commands import VIRTUAL, call

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


def test_no_line_where_stderr_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(common, "QUIET_S", 0.0)
    with Status("loading"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("shared_clusters")
def test_a_run_streams_on_a_terminal(capsys, db, request, monkeypatch):
    text = json.loads(call(capsys, *RUN, *db, "--json")[1])["text"]
    plain = call(capsys, *RUN, *db)[1]
    request.getfixturevalue("terminal")
    pieces, write = [], sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda piece: pieces.append(piece) or write(piece))
    code, out, _ = call(capsys, *RUN, *db)
    assert code == 0
    assert re.sub(r"run \w+", "", out) == re.sub(r"run \w+", "", plain), "the text once, then the line"
    first = next(i for i in range(len(pieces)) if "".join(pieces[: i + 1]) == text)
    assert first >= 2, "in pieces"
    assert json.loads(call(capsys, *RUN, *db, "--json")[1])["text"] == text


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
    run_id = json.loads(call(capsys, *RUN, *db, "--json")[1])["run_id"]
    rows, page = str(tmp_path / "rows.jsonl"), str(tmp_path / "page.html")
    assert call(capsys, "export", run_id, "--format", "jsonl", "-o", rows, *db)[0] == 0
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


def test_a_bar_that_nobody_sees_writes_nothing(capsys):
    assert not is_watched()
    with new_bar(total=2) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("place", ["terminal", "notebook"])
def test_a_bar_that_someone_sees_counts(capsys, monkeypatch, place):
    if place == "terminal":
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    else:
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with new_bar(total=2, unit="run") as bar:
        bar.update(2)
    assert "2/2" in capsys.readouterr().err


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
    "words",
    [
        ["run", "--method", "autoregressive"],
        ["compare", "--methods", "autoregressive"],
        ["sweep", "--method", "speculative", "--over", "gamma=1"],
    ],
    ids=lambda words: words[0],
)
def test_measured_commands_warn_of_a_busy_machine_in_one_line_and_in_json(capsys, db, monkeypatch, words):
    words = [*words, "--prompt", "Hi", "--json", *db]

    def warning(*place: str) -> tuple[str | None, int]:
        """Return the warning in the JSON object, and the number of lines on stderr that have it."""
        readings = chain([ProcessorTime(100.0, 1000.0, {})], repeat(ProcessorTime(110.0, 1019.0, {})))
        monkeypatch.setattr(busy, "read_load", lambda: next(readings))
        code, out, err = call(capsys, *words, *place)
        assert code == 0
        return json.loads(out)["warning"], err.count("Other programs used 1.9 of")

    found, lines = warning("--runtime", "local-thread", "--max-new-tokens", "2")
    assert lines == 1
    assert found is not None
    assert found.startswith("Other programs used 1.9 of")
    assert warning(*VIRTUAL) == (None, 0)
