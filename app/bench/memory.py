"""Peak memory of `specscope compare` and its workers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from engine.errors import SpecScopeError

ROOT = Path(__file__).resolve().parents[2]
PAUSE = 0.01
"""Seconds between two samples."""


def compare(prompt: str, new_tokens: int, methods: Sequence[str], database: Path) -> list[str]:
    """Return the command to measure."""
    command = [sys.executable, "-m", "app.main", "compare", "--methods", ",".join(methods), "--json"]
    command += ["--prompt", prompt, "--max-new-tokens", str(new_tokens)]
    return [*command, "--runtime", "local-process", "--device", "cpu", "--db", str(database)]


def peak_mib(command: Sequence[str]) -> float:
    """Run a command and return the peak resident memory of its process tree, in MiB.

    Shared pages count once per process, so this is an upper bound.

    Raises:
        SpecScopeError: The command failed; the message has its last line.
    """
    peak = 0
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors) as child:
            while child.poll() is None:
                peak = max(peak, _resident(child.pid))
                time.sleep(PAUSE)
        if child.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            raise SpecScopeError(
                f"{command[0]} ended with {child.returncode}: {lines[-1] if lines else 'no message'}"
            )
    return peak / 2**20


def _resident(pid: int) -> int:
    try:
        first = psutil.Process(pid)
        processes = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
