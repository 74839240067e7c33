"""What the tests of the recorder share: devices, a tree, fake events, reading a file."""

from __future__ import annotations

from pathlib import Path

from specscope.engine.trace.jsonl import read_jsonl
from specscope.traces.checks import check

ROOT = Path(__file__).parents[3]
DEVICES = {"d": "drafter", "t": "target"}
TREE = {"drafted": [10, 11, 12, 13, 14, 15], "parents": [-1, -1, 0, 1, 1, 4]}
"""Two roots, 10 and 11; 12 follows 10; 13 and 14 follow 11; 15 follows 14."""


def read(path):
    """Return the trace of a file, checked as an import checks it."""
    trace = read_jsonl(path.read_bytes().decode().split("\n"))
    check(trace)
    return trace


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
