"""Run the command line in this process; return exit code, output and error."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

import specscope
from specscope.app.main import main
from specscope.engine.trace.trace import Trace
from tests.traces.samples import sample_events


class Done(NamedTuple):
    """Result of a command."""

    code: int
    out: str
    err: str

    def failed(self, code: int, *parts: str) -> bool:
        """Whether the command ended with this code and a one-line error that contains all parts."""
        return (
            self.code == code
            and self.out == ""
            and is_one_line(self.err)
            and all(p in self.err for p in parts)
        )


def command(*argv: str) -> Done:
    """Run a command as `specscope` would."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(argv))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, _content(out), _content(err))


def is_one_line(err: str) -> bool:
    """Whether an error is one line of bounded length, not a traceback."""
    known = err.startswith("specscope: ") and "Traceback" not in err and "internal error" not in err
    return known and err.endswith("\n") and err.count("\n") == 1 and len(err) < 2200


def _content(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")


def use_models(monkeypatch: pytest.MonkeyPatch, opening: Callable[..., Any]) -> None:
    """Replace `specscope.open` without importing the engine's libraries."""
    monkeypatch.setitem(vars(specscope), "open", opening)


class Models:
    """Fake of an open cluster: every run is a sample, too long for a warning of short answers."""

    context = 512
    note = ""

    def __init__(self):
        self.runs = 0

    def __call__(self, *_, **__):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def check(self, *_):
        pass

    def count(self, prompt):
        return len(prompt)

    def run(self, method, *prompts, listener, **_):
        self.runs += 1
        header, *rows = sample_events("autoregressive", tokens=40)
        trace = Trace.of([replace(header, run_id=f"fuzz{id(self)}-{self.runs}", method=method), *rows])
        for event in trace.events():
            listener(event)
        return trace
