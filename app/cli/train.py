"""Train and measure models: a pair from text, a drafter, drafting heads for a target."""

from __future__ import annotations

import argparse

from engine.training import cli


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    cli.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the training command."""
    return cli.run(args)
