"""The `specscope` command: the playground without a word, everything else with one."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from app.cli import COMMANDS
from app.signals import terminable
from engine.errors import SpecScopeError, UsageError


class _Parser(argparse.ArgumentParser):
    """Argparse whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"specscope: {message}; see {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(prog="specscope", description=__doc__, allow_abbrev=False)
    parser.set_defaults(command=COMMANDS["play"].run)
    COMMANDS["play"].add_arguments(parser)
    words = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, module in COMMANDS.items():
        doc = (module.__doc__ or "").strip().splitlines()[0]
        sub = words.add_parser(name, help=doc, description=doc, allow_abbrev=False)
        module.add_arguments(sub)
        sub.set_defaults(command=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are one line on stderr.

    The exit code is 0, 1 for a failed run, 2 for bad usage, 130 after SIGINT, 143 after SIGTERM.
    """
    args = build_parser().parse_args(argv)
    with terminable() as signals:
        return _carry_out(args, signals)


def _carry_out(args: argparse.Namespace, signals: Sequence[int]) -> int:
    try:
        return args.command(args)
    except UsageError as error:
        print(f"specscope: {error}", file=sys.stderr)
        return 2
    except SpecScopeError as error:
        print(f"specscope: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would print a traceback at exit
        print("specscope: stopped", file=sys.stderr)
        return 128 + (signals[-1] if signals else signal.SIGINT)
    except BrokenPipeError:
        return 1
    except OSError as error:
        print(f"specscope: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
