"""Train models: `train pair` makes the bundled pair from text, `train card` measures one."""

from __future__ import annotations

import argparse

from engine.training import cli


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    cli.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train."""
    return cli.run(args)
