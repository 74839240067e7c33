"""The `specscope` command: the playground without a word, everything else with one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from app.cli import COMMANDS
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
    """Run one command; exit code 0, 1 for a failed run, 2 for bad usage. Errors are one line on stderr."""
    args = build_parser().parse_args(argv)
    try:
        return args.command(args)
    except UsageError as error:
        print(f"specscope: {error}", file=sys.stderr)
        return 2
    except SpecScopeError as error:
        print(f"specscope: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("specscope: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    except OSError as error:
        print(f"specscope: {error.strerror or error}: {error.filename or ''}".rstrip(": "), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
