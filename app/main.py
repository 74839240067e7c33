"""The `specscope` command: the playground without a word, everything else with one."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from app.cli import COMMANDS
from app.signals import terminable
from engine.errors import SpecScopeError, UsageError, shown
from engine.types import check_text

MOST = 2000
"""Characters of an error's line at most."""


class _Parser(argparse.ArgumentParser):
    """Argparse whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"specscope: {_one_line(message)}; see {self.prog} --help\n")


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
    with terminable() as signals:
        return _carry_out(argv, signals)


def _carry_out(argv: Sequence[str] | None, signals: Sequence[int]) -> int:
    try:
        _use_utf8()
        args = build_parser().parse_args(argv)
        _check_arguments(args)
        code = args.command(args)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _fail(error, str(error), 2)
    except SpecScopeError as error:
        return _fail(error, str(error), 1)
    except KeyboardInterrupt as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one would print a traceback at exit
        return _fail(error, "stopped", 128 + (signals[-1] if signals else signal.SIGINT))
    except BrokenPipeError:  # the reader of the output has left
        _drop_output()
        return 1
    except OSError as error:
        return _fail(error, f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    except Exception as error:  # noqa: BLE001 - the last resort: a traceback helps nobody at the keyboard
        return _fail(error, f"internal error: {type(error).__name__}: {error}; please report it", 1)


def _use_utf8() -> None:
    """Print UTF-8 whatever the locale is, as files are written; what UTF-8 cannot hold is escaped."""
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def _check_arguments(args: argparse.Namespace) -> None:
    """Check that the texts are valid Unicode: bytes of another encoding arrive as halves of characters."""
    for value in vars(args).values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                check_text(f"the argument {shown(text)}", text)


def _drop_output() -> None:
    """Forget what cannot be printed: Python would try again at its end, and fail with an error of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _fail(error: BaseException, message: str, code: int) -> int:
    """Print an error as one line, after its traceback where SPECSCOPE_DEBUG is 1; return the exit code."""
    _drop_output()
    if os.environ.get("SPECSCOPE_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"specscope: {_one_line(message)}", file=sys.stderr)
    return code


def _one_line(message: str) -> str:
    """Return a message as one line of bounded length, with very long words cut."""
    line = re.sub(r"\S{300,}", lambda word: f"{word[0][:200]}…", " ".join(message.split()))
    return line if len(line) <= MOST else f"{line[:MOST]}…"


if __name__ == "__main__":
    sys.exit(main())
