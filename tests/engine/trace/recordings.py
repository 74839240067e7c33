"""What the tests of the recorder share: devices, a tree, fake events, reading a file."""

import subprocess
import sys
from pathlib import Path

from specscope.engine.trace.jsonl import read_jsonl
from specscope.traces.facts.checks import check
from specscope.traces.following.follow import Tail
from specscope.traces.imports.reading import read_traces

ROOT = Path(__file__).parents[3]
DEVICES = {"d": "drafter", "t": "target"}
TREE = {"drafted": [10, 11, 12, 13, 14, 15], "parents": [-1, -1, 0, 1, 1, 4]}
"""Two roots, 10 and 11; 12 follows 10; 13 and 14 follow 11; 15 follows 14."""


def read(path):
    """Return the trace of a file, checked as an import checks it."""
    trace = read_jsonl(path.read_bytes().decode().split("\n"))
    check(trace)
    return trace


def followed(path):
    """Return the rows that a follower reads of a file, without its header."""
    tail, rows = Tail(path), []
    while new := tail.read():
        rows += new
    assert tail.header is not None
    tail.close()
    return rows


def run(code, *words, fds=()):
    """Run a program; return what it printed."""
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, pass_fds=fds)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def ids(path):
    """Return the ids of the spans, after an import and after a follower has read the file."""
    (trace,) = read_traces(path).traces
    followed(path)
    numbers = [span.id for span in trace.spans]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 2**53 for number in numbers)
    return numbers


class Event:
    """A CUDA event of a device that begins work half a millisecond after its launch."""

    now = 0

    def record(self):
        Event.now += 500_000
        self.time = Event.now

    def query(self):
        return True

    def synchronize(self):
        """Nothing to wait for."""

    def elapsed_time(self, other):
        return (other.time - self.time) / 1e6
