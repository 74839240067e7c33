"""Print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell",
        choices=("bash", "zsh"),
        help='bash: eval "$(specscope completion bash)" in ~/.bashrc; zsh alike',
    )


def run(args: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(args.root, args.shell))
    return 0
