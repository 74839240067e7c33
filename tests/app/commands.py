"""Run a command in this process."""

from __future__ import annotations

import argparse
import json
from typing import Any

from specscope.app.cli import bench
from specscope.app.main import main

VIRTUAL = ["--profile", "pearl-4xA100", "--max-new-tokens", "8"]


def call(capsys, *argv: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of `specscope` with these arguments."""
    capsys.readouterr()
    try:
        code = main(list(argv))
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys, *argv: str) -> Any:
    """Return the JSON that a command prints, which succeeds."""
    code, out, err = call(capsys, *argv)
    assert code == 0, err
    return json.loads(out)


def run_bench(*argv: str) -> int:
    """Run `specscope bench`, whose errors are raised."""
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(argv))
