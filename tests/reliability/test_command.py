"""Signals to commands: message, exit code, stored run or checkpoint, and the end of workers."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from specscope.app import main
from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.training.loop import read_log
from specscope.traces.store import Store
from tests.engine.runtimes.processes import worker_processes
from tests.engine.training.tiny import stories, write_source
from tests.traces.samples import sample_trace

LIMIT_S = 60
"""Most seconds until the end, usually two: a busy machine ends an interpreter slowly."""
STOPPED = "specscope: stopped\n"


PROGRAM = """
import json, os, sys
from specscope.app import main
import specscope.engine.cluster.open, specscope.traces.store  # what a run imports
for line in sys.stdin:
    words, errors = json.loads(line)
    child = os.fork()
    if not child:
        for number, file in ((0, os.devnull), (1, os.devnull), (2, errors)):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
        sys.exit(main.main(words))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs each command in a child that has imported the libraries, which take longer than the run."""


@dataclass
class Command:
    """`specscope run` in the middle of a run."""

    process: psutil.Process
    worker: psutil.Process
    database: Path
    program: subprocess.Popen[str]
    errors: Path

    def ends(self) -> tuple[int, str, list[str]]:
        """Wait for the end; return the exit code, stderr, and the status of the stored run."""
        psutil.wait_procs([self.process, self.worker], timeout=LIMIT_S)
        assert not self.process.is_running(), "the command is still running"
        assert not self.worker.is_running(), "the worker is still running"
        assert self.program.stdout is not None
        code = int(self.program.stdout.readline())
        with Store(self.database) as store:
            return code, self.errors.read_text(), [run.status for run in store.runs()[0]][:1]


@pytest.fixture(scope="module")
def program() -> Iterator[subprocess.Popen[str]]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a child inherits SIG_IGN
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, before)
    yield process
    process.communicate()


def begun(program: subprocess.Popen[str], words: list[str], errors: Path) -> psutil.Process:
    """Start a command."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(json.dumps([words, str(errors)]) + "\n")
    program.stdin.flush()
    return psutil.Process(int(program.stdout.readline()))


@pytest.fixture
def command(program, tmp_path) -> Iterator[Command]:
    """Start a command with one worker that would decode for minutes."""
    database, prompts, errors = (tmp_path / name for name in ("traces.db", "prompts.jsonl", "errors"))
    prompts.write_text('{"prompt": "Tell me a story about a lighthouse."}\n' * 2000)
    words = ["run", "--method", "autoregressive", "--target", str(PAIRS / "bundled" / "target")]
    words += ["--prompt-file", str(prompts), "--db", str(database), "--device", "cpu"]
    process = begun(program, words, errors)
    try:
        while not spans_of(database):
            assert process.status() != psutil.STATUS_ZOMBIE, "it ended by itself"
            time.sleep(0.1)
        (worker,) = worker_processes(process.pid)
        yield Command(process, worker, database, program, errors)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def spans_of(database: Path) -> int:
    """Return the number of stored spans."""
    with contextlib.suppress(sqlite3.Error):
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT COUNT(*) FROM span").fetchone()[0]
    return 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_sigterm_and_sighup_cancel_the_run(command, number, code):
    command.process.send_signal(number)
    assert command.ends() == (code, STOPPED, ["cancelled"])


def test_a_signal_that_is_ignored_stays_so():
    """As SIGHUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with main.terminable() as received:
            signal.raise_signal(signal.SIGHUP)
        assert received == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_first_interrupt_cancels_the_run_although_the_worker_is_stopped(command):
    command.worker.suspend()
    command.process.send_signal(signal.SIGINT)
    assert command.ends() == (130, STOPPED, ["cancelled"])


def test_a_second_interrupt_ends_the_command_like_the_first(command):
    command.worker.suspend()
    time.sleep(1)  # now the run waits for the worker
    command.process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # the run waits for the worker, or has ended: the result is the same
    command.process.send_signal(signal.SIGINT)
    assert command.ends() == (130, STOPPED, ["cancelled"])


def test_sigkill_ends_a_stopped_worker_too_and_leaves_a_readable_run(command):
    command.worker.suspend()
    command.process.kill()
    assert command.ends() == (-signal.SIGKILL, "", ["incomplete"])


PROMPT = ["--pair", "bundled", "--device", "cpu", "--prompt", "Tell me a story."]
LONG: dict[str, list[str]] = {
    "sweep": ["--method", "speculative", "--over", "gamma=1:32", *PROMPT, "--max-new-tokens", "400"],
    "load": ["--methods", "speculative", "--rate", "1", "--requests", "200", "--max-new-tokens", "400", *PROMPT,  ],
    "whatif": ["sample-speculative", "--profile", "pearl-4xA100", "--over", "gamma=1:32"],
}  # fmt: skip
"""Commands that would take minutes."""


@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_ends_a_long_command_with_one_line_and_leaves_no_process(program, tmp_path, name):
    database, errors = tmp_path / "traces.db", tmp_path / "errors"
    with Store(database) as store:
        store.insert(sample_trace("speculative", tokens=1500, acceptance=0.6))
    process = begun(program, [name, *LONG[name], "--db", str(database)], errors)
    try:
        busy_for(process, 2)
        children = process.children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs([process, *children], timeout=LIMIT_S)
        assert alive == []
        assert (int(program.stdout.readline()), errors.read_text()) == (130, STOPPED)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def busy_for(process: psutil.Process, seconds: float) -> None:
    """Wait until a command and its workers have computed for some time."""
    spent = 0.0
    while spent < seconds:
        assert process.status() != psutil.STATUS_ZOMBIE, "it ended by itself"
        time.sleep(0.1)
        with contextlib.suppress(psutil.NoSuchProcess):
            spent = sum(sum(p.cpu_times()[:2]) for p in (process, *process.children(recursive=True)))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_training_which_goes_on_with_resume(program, tmp_path, number, code):
    out, errors = tmp_path / "pair", tmp_path / "errors"
    write_source(tmp_path / "data", "stories", stories())
    words = ["train", "pair", "--data", str(tmp_path / "data"), "--out", str(out), "--device", "cpu"]
    words += [
        "--target",
        "2x32x2x64",
        "--drafter",
        "1x16x1x32",
        "--vocabulary",
        "320",
        "--sequence",
        "64",
        "--context",
        "128",
    ]
    process = begun(program, [*words, "--steps", "100000"], errors)
    try:
        while not (out / "loss.jsonl").exists() or not read_log(out / "loss.jsonl")[3:]:
            assert process.status() != psutil.STATUS_ZOMBIE, errors.read_text()
            time.sleep(0.1)
        process.send_signal(number)
        process.wait(LIMIT_S)
        assert int(program.stdout.readline()) == code
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    last = errors.read_text().splitlines()[-1]
    assert re.fullmatch(
        r"specscope: stopped at step \d+ of 100000 of the target; .* add --resume to go on", last
    )
    assert "Traceback" not in errors.read_text()
    done = len(read_log(out / "loss.jsonl"))
    resumed = begun(program, [*words, "--steps", "100000", "--resume"], errors)
    try:
        while len(read_log(out / "loss.jsonl")) <= done:
            assert resumed.status() != psutil.STATUS_ZOMBIE, errors.read_text()
            time.sleep(0.1)
    finally:
        resumed.kill()
    assert int(program.stdout.readline()) == -signal.SIGKILL
