"""Runs the unit tests of the scripts under the node that Playwright brings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import playwright

NODE = Path(playwright.__file__).parent / "driver" / "node"


def test_the_viewers_pure_functions() -> None:
    done = subprocess.run(
        [NODE, "--test", *sorted(map(str, Path(__file__).parent.glob("*.test.mjs")))],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
