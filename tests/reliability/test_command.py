"""Signals to `specscope run`: message, exit code, stored run, and the end of its worker."""

from __future__ import annotations

import contextlib
import json
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

from specscope.engine.checkpoints.catalog import PAIRS
from specscope.traces.store import Store
from tests.engine.runtimes.processes import worker_processes

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


@pytest.fixture
def command(program, tmp_path) -> Iterator[Command]:
    """Start a command with one worker that would decode for minutes."""
    database, prompts, errors = (tmp_path / name for name in ("traces.db", "prompts.jsonl", "errors"))
    prompts.write_text('{"prompt": "Tell me a story about a lighthouse."}\n' * 2000)
    words = ["run", "--method", "autoregressive", "--target", str(PAIRS / "bundled" / "target")]
    words += ["--prompt-file", str(prompts), "--db", str(database), "--device", "cpu"]
    program.stdin.write(json.dumps([words, str(errors)]) + "\n")
    program.stdin.flush()
    process = psutil.Process(int(program.stdout.readline()))
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


def test_sigterm_cancels_the_run_with_exit_code_143(command):
    command.process.send_signal(signal.SIGTERM)
    assert command.ends() == (143, STOPPED, ["cancelled"])


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
