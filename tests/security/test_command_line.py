"""Attacks on the command line: bad values, bytes, outputs; signals to the server."""

from __future__ import annotations

import http.client
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.app.cli import bench, calibrate, play, train
from specscope.engine.errors import UsageError, shown
from specscope.traces.database.store import Store
from tests.security.commands import Models, command, is_one_line, use_models
from tests.traces.samples import sample_trace

ROOT = Path(__file__).parents[2]
RUN = ("run", "--method", "pearl", "--prompt", "x")
DIGITS = "9" * 5000


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.fixture(autouse=True)
def _no_models(monkeypatch, tmp_path):
    """Fail if models are opened: errors must be raised before that."""
    use_models(monkeypatch, raising(AssertionError("models were opened")))
    monkeypatch.setenv("SPECSCOPE_DB", str(tmp_path / "own.db"))


def process(*argv, code="", env=None, **streams):
    """Run `specscope`, or other code, in a new process; arguments may be bytes."""
    program = ["-c", code] if code else ["-m", "specscope.app.main", *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    return subprocess.run([sys.executable, *program], cwd=ROOT, env=env, timeout=240, check=False, **streams)


WRONG = """
--set gamma=abc | gamma is 'abc'; it must be a whole number of at least 1 and at most 32
--set gamma=99 | gamma is 99
--set depth=1 | no field 'depth'
--set gamma | --set 'gamma' is not FIELD=VALUE
--method none | there is no method 'none'
--temperature nan | temperature is nan
--temperature 1e999 | temperature is inf
--top-p 2 | top_p is 2
--top-k -1 | top_k is -1
--seed -1 | seed is -1; it must be at least 0 and at most 9223372036854775807
--seed 9223372036854775808 | seed is 9223372036854775808; it must
--max-new-tokens 0 | max_new_tokens is 0
--limit 0 | --limit is 0; it must be at least 1
--stop '' | stop text 1 of 1 is empty
--head somewhere | uses no drafting head
--prompt '' | the prompt is empty
"""


@pytest.mark.parametrize("line", WRONG.strip().splitlines())
def test_a_wrong_setting_is_refused_before_models_open(line):
    words, message = line.split(" | ")
    assert command(*RUN, *shlex.split(words)).failed(2, message)


def test_a_wrong_setting_of_a_comparison_or_of_the_last_prompt_is_refused_before_models_open(tmp_path):
    done = command("compare", "--methods", "pearl", "--prompt", "x", "--set", "pearl.gamma=abc")
    assert done.failed(2, "gamma is 'abc'")
    file = tmp_path / "two.jsonl"
    file.write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8")
    argv = ["run", "--method", "pearl", "--prompt-file", str(file), "--seed", str(2**63 - 1)]
    assert command(*argv).failed(2, "seed is 9223372036854775808")


def test_arguments_are_checked_before_libraries_are_imported():
    code = "import specscope.app.command, sys; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'gradio')))"
    assert process(code=code).returncode == 0


LONG = """
--seed N,--top-k N,--temperature N,--set N,--method N,--limit N,--no-such-option N,--set gamma=N,--set N=1,--max-new-tokens -N
"""


@pytest.mark.parametrize("words", LONG.strip().split(","))
def test_a_value_of_5000_digits_is_shortened_in_the_error(words):
    done = command(*RUN, *words.replace("N", DIGITS).split())
    assert (done.code, is_one_line(done.err)) == (2, True), done.err[:200]
    assert len(done.err) < 500


FAILURES = {
    "many lines": (UsageError("x" * 10**6 + "\n" + "y z\n" * 10**5), 2, "xxx… y z y z"),
    "a library": (
        ImportError("libtorch_cpu.so: failed to map"),
        1,
        "failed to map",
        "raise its limit (ulimit -v)",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_to_open_models_is_one_line(monkeypatch, name):
    error, *expected = FAILURES[name]
    use_models(monkeypatch, raising(error))
    assert command(*RUN).failed(*expected)


def test_an_internal_error_is_one_line_and_its_traceback_optional(monkeypatch):
    use_models(monkeypatch, raising(ZeroDivisionError("a bug")))
    assert command(*RUN) == (1, "", "specscope: internal error: ZeroDivisionError: a bug; please report it\n")
    monkeypatch.setenv("SPECSCOPE_DEBUG", "1")
    assert "Traceback" in command(*RUN).err


def test_shown_values_are_one_short_line():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (10**5000, -(10**5000), "x" * 5000, deep, None, float("nan"), "a\nb"):
        assert 0 < len(shown(value)) < 100
        assert "\n" not in shown(value)


NO_TEXT = [
    *([*RUN, option, b"\xff"] for option in ("--stop", "--method", "--pair", "--target")),
    *([*RUN, "--prompt", b"a\xffb"], [*RUN, "--set", b"gamma=\xff"]),
    *(["--host", b"\xff"], ["--auth", b"me:\xff"], ["export", b"\xff"], [b"\xff"]),
]


@pytest.mark.parametrize("argv", NO_TEXT, ids=lambda argv: repr(argv[-2:]))
def test_bytes_that_are_not_utf8_are_refused_in_any_argument(argv):
    done = command(*map(os.fsdecode, argv))
    assert done.code == 2
    assert is_one_line(done.err)


def test_a_database_path_that_is_not_utf8_works(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.db")
    with Store(path) as store:
        store.insert(sample_trace())
    assert command("export", "sample-pearl", "--db", path).failed(2, "there is no run 'sample-pearl'")
    assert command("export", "sample-speculative", "--db", path).code == 0


@pytest.mark.parametrize("variable", ["SPECSCOPE_DB", "XDG_DATA_HOME"])
def test_an_unknown_home_folder_is_a_one_line_error(monkeypatch, variable):
    monkeypatch.delenv("SPECSCOPE_DB")
    monkeypatch.setenv(variable, "~nouser/x.db")
    assert command("export", "x").failed(2, "there is no home folder for '~nouser/x.db'")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "traces.db"
    with Store(path) as store:
        store.insert(sample_trace())
    return path


EXPORT = ("export", "sample-speculative", "--db")


def test_output_is_utf8_on_an_ascii_terminal(stored):
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = process(*EXPORT, str(stored), env=ascii_only, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "猫" in done.stdout.decode("utf-8")


def test_a_full_standard_output_is_a_one_line_error_also_of_the_server(stored):
    with open("/dev/full", "wb") as full:
        for words, code in (((*EXPORT, str(stored)), ""), ((), STUCK)):
            done = process(*words, code=code, stdout=full, stderr=subprocess.PIPE)
            assert (done.returncode, done.stderr) == (1, b"specscope: No space left on device\n")


def test_a_closed_pipe_ends_the_command_silently(stored):
    read, write = os.pipe()
    os.close(read)
    done = process(*EXPORT, str(stored), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


def test_ctrl_c_during_the_imports_is_one_line():
    code = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "specscope.app.command":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a child inherits SIG_IGN
sys.meta_path.insert(0, Interrupt())
from specscope.app.main import main
assert "specscope.app.cli" not in sys.modules
main(["methods"])
"""
    done = process(code=code, capture_output=True)
    assert (done.returncode, done.stderr) == (130, b"specscope: stopped\n")


def test_a_deleted_working_folder_is_refused(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert command("methods").failed(2, "the working folder cannot be used")


def test_an_error_shows_no_control_characters():
    refusal = r"a\x1b[31mb\x9b: there is no such directory"
    assert command("plan", "--target", "a\x1b[31mb\x9b").failed(1, refusal)


WORDS = "play run compare methods report export import bench calibrate nap"
STARTS = """
run --method pearl --prompt x
run --method autoregressive --prompt-file prompts.jsonl
compare --methods pearl --prompt-file prompts.jsonl
export sample-speculative
report sample-speculative
"""
FLAGS = """
--method --methods --set --prompt --prompt-file --limit --system --head --no --max-new-tokens --temperature --top-k
--top-p --seed --stop --runtime --profile --db --json --host --port --auth --unsafe --cuda --format --table -o --output
--compared --redact-prompt --quick --drafters
"""
NAMES = "pearl all pearl,dsi gamma=3 pearl.gamma=3 gamma=x sample-speculative csv"
PATHS = "prompts.jsonl folder own.db /dev/zero /dev/null missing/x.html out.toml /proc/self/mem"
ODD = ("", "-1", "0", "3", "1e999", "nan", "9" * 5000, "x" * 5000, "\udcff", "a\nb", "%s{}", "--", "~nouser")


def test_any_arguments_give_an_exit_code_and_at_most_one_line_of_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPECSCOPE_DB", str(tmp_path / "own.db"))
    use_models(monkeypatch, Models())
    monkeypatch.setattr("specscope.app.busy.busy_since", lambda _: "")  # a busy machine is a line, too
    for module in (play, train):
        monkeypatch.setattr(module, "run", lambda _: 0)
    for module in (bench, calibrate):
        monkeypatch.setattr(module, "run", lambda args, check=module._check: check(args) or 0)
    (tmp_path / "prompts.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8")
    (tmp_path / "folder").mkdir()
    with Store(tmp_path / "own.db") as store:
        store.insert(sample_trace())
    texts = st.text(max_size=8).map(lambda text: text.replace("\0", ""))
    values = st.sampled_from((*ODD, *NAMES.split(), *PATHS.split())) | texts
    flags = st.sampled_from(FLAGS.split())
    options = st.tuples(flags, values) | st.tuples(values) | st.tuples(flags)
    words = [*map(str.split, STARTS.strip().splitlines()), *([word] for word in WORDS.split())]
    starts = st.sampled_from([*words, []])

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(starts, st.lists(options, max_size=4))
    def attack(start, rest):
        done = command(*start, *(part for option in rest for part in option))
        assert done.code in (0, 1, 2), done
        assert (done.err != "") == (done.code != 0), done
        assert not done.err or is_one_line(done.err), done.err

    attack()


# Signals to the server.


SERVER = """
import sys
from pathlib import Path
from specscope.app import main
from specscope.app.web import server
from specscope.app.jobs.runs import RunRequest
from tests.app.fakes import FakeCluster, FakeOpen

class Reported(FakeCluster):
    waits = 0

    def _wait(self, cancel):
        self.waits += 1
        if self.waits == 3:  # two words are decoded
            print("decoding", flush=True)
        return super()._wait(cancel)

    def close(self):
        super().close()
        print("cluster closed", flush=True)

def service(database, **more):
    real = Service(database, FakeOpen(Reported(words=("word",) * 100_000, delay=0.01)), **more)
    start, real.start = real.start, lambda request: (start(request), start(RunRequest(method="pearl", prompt="Hi")))
    return real

Service, server.Service = server.Service, service
sys.exit(main.main(["play", "--pair", "bundled", "--port", "0", "--db", sys.argv[1]]))
"""


def started(code, *argv):
    """Start a program whose output and errors are read."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *argv], cwd=ROOT, **streams)


def test_sigterm_ends_the_workers_stores_the_run_and_exits_with_143(tmp_path):
    database = tmp_path / "traces.db"
    program = started(SERVER, str(database))
    try:
        lines = sorted(program.stdout.readline() for _ in range(2))
        assert lines[1] == "decoding\n", lines
        page = http.client.HTTPConnection("127.0.0.1", int(lines[0].rpartition(":")[2]), timeout=60)
        page.request("GET", "/gradio_api/heartbeat/open-page")
        assert page.getresponse().status == 200  # a stream without an end
        program.send_signal(signal.SIGTERM)
        output, errors = program.communicate(timeout=120)
    finally:
        program.kill()
        program.wait()
    assert (program.returncode, errors) == (128 + signal.SIGTERM, "specscope: stopped\n")
    assert "cluster closed" in output
    with Store(database) as store:
        (run,), _ = store.runs()
        trace = store.load(run.header.run_id)
    assert trace.status == "cancelled"
    assert trace.text.startswith("word")


STUCK = """
import asyncio, sys, time
from types import SimpleNamespace
from specscope.app import main
from specscope.app.web import server

async def app(scope, receive, send):
    if scope["type"] == "http":
        print("computing", flush=True)
        await asyncio.to_thread(time.sleep, 600)  # no cancellation ends a thread

server.PAGE_S = server.CLOSE_S = 0.2
server.build_app = lambda *_, **__: app
server.Service = lambda *_, **__: SimpleNamespace(
    start=lambda _: None, close=lambda: time.sleep(600), follower=SimpleNamespace(recordings=SimpleNamespace())
)
sys.argv = ["specscope", "play", "--pair", "bundled", "--port", "0"]
sys.exit(main.main())
"""


def test_ctrl_c_ends_a_server_whose_page_and_runs_do_not_end():
    program = started(STUCK)
    try:
        port = int(program.stdout.readline().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as call:
            call.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert program.stdout.readline() == "computing\n"
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert (program.returncode, errors) == (130, "specscope: stopped\n")
