"""`make` where no package index answers."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
