"""Print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOW = (
    'bash: eval "$(specscope completion bash)" in ~/.bashrc; zsh alike; '
    "fish: specscope completion fish | source in config.fish"
)
OPTIONS = ({"shell": ({"choices": ("bash", "zsh", "fish")}, "", HOW)},)


def run(args: argparse.Namespace) -> int:
    import shtab

    for action in _actions(args.root):
        if action.type is Path or action.metavar == "PATH":  # a text that may name a file
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(args.root, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the actions of a parser and of its commands, whose parsers are choices."""
    for action in parser._actions:  # argparse has no other list of them
        yield action
        if action.nargs == argparse.PARSER:
            commands: Any = action.choices
            for sub in commands.values():
                yield from _actions(sub)
