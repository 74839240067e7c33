"""A playground in a process of its own, for measurements."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from app.bench.memory import ROOT
from engine.errors import SpecScopeError


@contextmanager
def serving(database: Path) -> Generator[tuple[str, psutil.Process]]:
    """Serve the playground with the bundled pair; yield the address and the process.

    Raises:
        SpecScopeError: The server did not start.
    """
    command = [sys.executable, "-m", "app.main", "play", "--pair", "bundled"]
    command += ["--port", "0", "--db", str(database)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline().strip()
            if not line.startswith("SpecScope: http"):
                raise SpecScopeError(f"the server did not start; its first line is {line!r}")
            yield line.removeprefix("SpecScope: "), psutil.Process(child.pid)
        finally:
            child.terminate()
