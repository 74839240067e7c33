"""Signals to commands; programs that write to one database; `make` without a package index."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from specscope.app import signals
from specscope.engine.checkpoints.catalog import PAIRS
from specscope.engine.training.loop import read_log
from specscope.traces.database.store import Store
from tests.engine.runtimes.processes import worker_processes
from tests.engine.training.tiny import stories, write_source
from tests.traces.samples import sample_trace

pytestmark = pytest.mark.timeout(900)
LIMIT_S = 240
"""Most seconds until the end, usually two: a machine with ten busy programs ends one slowly."""
STOPPED = "specscope: stopped\n"


PROGRAM = """
import json, os, sys
from specscope.app import main
import specscope.engine.cluster.open, specscope.traces.database.store  # what a run imports
for line in sys.stdin:
    words, errors = json.loads(line)
    child = os.fork()
    if not child:
        for number, file in ((0, os.devnull), (1, os.devnull), (2, errors)):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
        sys.exit(main.main(words))
    print("pid", child, flush=True)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
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
        code = said(self.program, "exit")
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


@contextlib.contextmanager
def begun(program: subprocess.Popen[str], words: list[str], errors: Path) -> Iterator[psutil.Process]:
    """Start a command; kill it at the end of the block."""
    assert program.stdin is not None
    program.stdin.write(json.dumps([words, str(errors)]) + "\n")
    program.stdin.flush()
    process = psutil.Process(said(program, "pid"))
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def said(program: subprocess.Popen[str], what: str) -> int:
    """Return the next `pid` or `exit`; a command that a test left may have one before it."""
    assert program.stdout is not None
    while True:
        word, _, number = program.stdout.readline().partition(" ")
        if word == what:
            return int(number)
        assert number, "the program has ended"


def until(ready: Callable[[], object], process: psutil.Process) -> None:
    """Wait for something while a command runs."""
    while not ready():
        assert process.status() != psutil.STATUS_ZOMBIE, "it ended by itself"
        time.sleep(0.1)


@pytest.fixture
def command(program, tmp_path) -> Iterator[Command]:
    """Start a command with one worker that would decode for minutes."""
    database, prompts, errors = (tmp_path / name for name in ("traces.db", "prompts.jsonl", "errors"))
    prompts.write_text('{"prompt": "Tell me a story about a lighthouse."}\n' * 2000)
    words = ["run", "--method", "autoregressive", "--target", str(PAIRS / "bundled" / "target")]
    words += ["--prompt-file", str(prompts), "--db", str(database), "--device", "cpu"]
    with begun(program, words, errors) as process:
        until(lambda: spans_of(database), process)
        (worker,) = worker_processes(process.pid)
        yield Command(process, worker, database, program, errors)


def spans_of(database: Path) -> int:
    """Return the number of stored spans."""
    with contextlib.suppress(sqlite3.Error):
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT COUNT(*) FROM span").fetchone()[0]
    return 0


SIGNALS = {
    "SIGTERM": (False, [signal.SIGTERM], (143, STOPPED, ["cancelled"])),
    "SIGHUP": (False, [signal.SIGHUP], (129, STOPPED, ["cancelled"])),
    "Ctrl-C while the worker is stopped": (True, [signal.SIGINT], (130, STOPPED, ["cancelled"])),
    "a second Ctrl-C": (True, [signal.SIGINT, signal.SIGINT], (130, STOPPED, ["cancelled"])),
    "SIGKILL while the worker is stopped": (True, [signal.SIGKILL], (-signal.SIGKILL, "", ["incomplete"])),
}
"""Whether the worker is stopped, signals; the exit code, stderr and the stored run."""


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_ends_the_command_and_its_worker_and_leaves_a_readable_run(command, name):
    stopped, numbers, expected = SIGNALS[name]
    if stopped:
        command.worker.suspend()
    for number in numbers:
        time.sleep(0.5 * (len(numbers) > 1))  # the run waits for the worker, or has ended
        command.process.send_signal(number)
    assert command.ends() == expected


def test_a_signal_that_is_ignored_stays_so():
    """As SIGHUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.terminable() as received:
            signal.raise_signal(signal.SIGHUP)
        assert received == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


PROMPT = "--pair bundled --device cpu --prompt 'Tell me a story.' --max-new-tokens 400"
LONG = {
    "sweep": f"--method speculative --over gamma=1:32 {PROMPT}",
    "load": f"--methods speculative --rate 1 --requests 200 {PROMPT}",
    "whatif": "sample-speculative --profile pearl-4xA100 --over gamma=1:32",
}
"""Commands that would take minutes."""


@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_ends_a_long_command_with_one_line_and_leaves_no_process(program, tmp_path, name):
    database, errors = tmp_path / "traces.db", tmp_path / "errors"
    with Store(database) as store:
        store.insert(sample_trace("speculative", tokens=1500, acceptance=0.6))
    with begun(program, [name, *shlex.split(LONG[name]), "--db", str(database)], errors) as process:
        until(lambda: seconds_of(process) > 1, process)
        children = process.children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, alive = psutil.wait_procs([process, *children], timeout=LIMIT_S)
        assert alive == []
        assert (said(program, "exit"), errors.read_text()) == (130, STOPPED)


def seconds_of(process: psutil.Process) -> float:
    """Return how long a command and its workers have computed."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return sum(sum(p.cpu_times()[:2]) for p in (process, *process.children(recursive=True)))
    return 0


TRAIN = "--target 2x32x2x64 --drafter 1x16x1x32 --vocabulary 320 --sequence 64 --context 128 --steps 100000"


def test_sigterm_ends_a_training_which_goes_on_with_resume(program, tmp_path):
    out, errors = tmp_path / "pair", tmp_path / "errors"
    write_source(tmp_path / "data", "stories", stories())
    words = ["train", "pair", "--data", str(tmp_path / "data"), "--out", str(out), "--device", "cpu"]
    words += TRAIN.split()
    log = out / "loss.jsonl"
    with begun(program, words, errors) as process:
        until(lambda: log.exists() and read_log(log)[3:], process)
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
        assert said(program, "exit") == 143
    printed = errors.read_text()
    line = r"specscope: stopped at step \d+ of 100000 of the target; .* add --resume to go on"
    assert re.fullmatch(line, printed.splitlines()[-1])
    assert "Traceback" not in printed
    done = len(read_log(log))
    with begun(program, [*words, "--resume"], errors) as resumed:
        until(lambda: len(read_log(log)) > done, resumed)
    assert said(program, "exit") == -signal.SIGKILL


ROOT = Path(__file__).parents[2]
RUNS, SPANS, IMPORTS = 2, 1000, 10
RECORD = """
import sys
from dataclasses import replace
from tests.traces.samples import sample_events
from tests.traces.test_recorder import span
from specscope.traces.database.store import Store

database, name, spans = sys.argv[1], sys.argv[2], int(sys.argv[3])
header, *_, footer = sample_events()
input()
with Store(database) as store, store.record(replace(header, run_id=name)) as recording:
    for number in range(spans):
        recording.add(span(number))
    recording.add(footer)
"""
IMPORT = """
import sys
from dataclasses import replace
from tests.traces.samples import sample_trace
from specscope.traces.database.store import Store

database, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
trace = sample_trace()
header = trace.header
input()
for number in range(count):
    trace.header = replace(header, run_id=f"{name}{number}")
    with Store(database) as store:
        store.insert(trace)
        if number % 2:
            assert store.delete([f"{name}{number}"]) == 1
"""


def test_programs_that_record_import_and_delete_together_lose_nothing(tmp_path):
    database = tmp_path / "traces.db"
    words = [(RECORD, f"recorded{i}", SPANS) for i in range(RUNS)] + [(IMPORT, "imported", IMPORTS)]
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(database), name, str(count)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for code, name, count in words
    ]
    for program in programs:  # the file is new for all of them
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
    errors = [program.communicate(timeout=240)[1] for program in programs]
    assert (errors, [program.returncode for program in programs]) == ([""] * len(words), [0] * len(words))
    with Store(database, readonly=True) as store:
        runs, total = store.runs(limit=100)
        assert total == RUNS + IMPORTS // 2
        assert {run.status for run in runs} == {"done"}
        for i in range(RUNS):
            assert [span.id for span in store.load(f"recorded{i}").spans] == [*range(SPANS)]
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


PIP = '#!/bin/sh\necho "pip: $PIP_RETRIES $*"\nexit 1\n'


def test_a_set_up_without_a_package_index_tries_once_more_and_says_what_to_do(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PIP)
    python.chmod(0o755)
    for goal in (".app", ".dev"):
        words = ["make", "-C", str(ROOT), f"VENV={tmp_path}", str(tmp_path / goal)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2
        assert "pip: 1 -m pip install" in done.stdout
        assert "specscope: pip cannot install the packages; check the network" in done.stderr
        assert not (tmp_path / goal).exists()
