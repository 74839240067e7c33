"""Run a command in this process."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from specscope.app.cli import bench
from specscope.app.cli.options import add_options
from specscope.app.main import main

VIRTUAL = ["--profile", "pearl-4xA100", "--max-new-tokens", "8"]
IMPORTED = Path(__file__).parents[1] / "traces" / "imported"
"""Files of other engines."""


def call(capsys, *argv: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `specscope` with these arguments."""
    capsys.readouterr()
    try:
        code = main(list(argv))
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def printed(capsys, *argv: str) -> str:
    """Return what a command prints, which succeeds."""
    code, out, err = call(capsys, *argv)
    assert code == 0, err
    return out


def answer(capsys, *argv: str) -> Any:
    """Return the JSON that a command prints, which succeeds."""
    return json.loads(printed(capsys, *argv))


def refused(capsys, *argv: str, code: int = 2) -> str:
    """Return the one line with which a command is refused."""
    found, out, err = call(capsys, *argv)
    assert (found, out, err.count("\n")) == (code, "", 1), err
    return err


def prompt_file(path: Path, *texts: str) -> str:
    """Write a file of prompts; return its path."""
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return str(path)


def run_bench(*argv: str) -> int:
    """Run `specscope bench`, whose errors are raised."""
    parser = argparse.ArgumentParser()
    add_options(parser, *bench.OPTIONS)
    return bench.run(parser.parse_args(argv))
