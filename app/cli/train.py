"""Train models: a pair from text, a better drafter, drafting heads for a target; and measure them."""

from __future__ import annotations

import argparse

from engine.training import cli


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    cli.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train."""
    return cli.run(args)
