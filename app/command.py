"""The `specscope` command: one subcommand per task; without one it opens the playground."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from specscope.app.cli import COMMANDS
from specscope.app.cli.options import add_options
from specscope.engine.errors import SpecScopeError, UsageError, shown
from specscope.engine.types import check_text

MAX_ERROR_CHARACTERS = 2000


class _Parser(argparse.ArgumentParser):
    """Argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"specscope: {_one_line(message)}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Print the version; only this option needs the package's metadata."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"specscope {version('specscope')}")
        parser.exit()


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Refuse options before a command: they are the page's, and the command would not see them."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        given = [name for name, value in vars(namespace).items() if value != parser.get_default(name)]
        if given:
            flag = f"--{given[0].replace('_', '-')}"
            parser.error(f"{flag} is given before the command {values[0]}; give its options after its name")
        super().__call__(parser, namespace, values)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="specscope", description=__doc__, allow_abbrev=False)
    parser.set_defaults(command=COMMANDS["play"].run, root=parser)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    add_options(parser, *COMMANDS["play"].OPTIONS)
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", parser_class=_Parser, action=_Commands
    )
    for name, module in COMMANDS.items():
        doc = (module.__doc__ or "").strip().splitlines()[0]
        sub = commands.add_parser(name, help=doc, description=doc, allow_abbrev=False)
        add_options(sub, *module.OPTIONS)
        sub.set_defaults(command=module.run)
    return parser


def carry_out(argv: Sequence[str] | None, signals: Sequence[int]) -> int:
    """Run one command and return its exit code; `signals` are those that arrive meanwhile."""
    try:
        _use_utf8()
        _check_folder()
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would print a traceback
        return _fail(error, str(error) or "stopped", 128 + (signals[-1] if signals else signal.SIGINT))
    except BrokenPipeError:  # the program that reads the output has exited
        _drop_output()
        return 1
    except OSError as error:
        return _fail(error, f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    except ModuleNotFoundError as error:
        return _fail(error, f"{error}; install SpecScope again", 1)
    except ImportError as error:
        what = f"a library cannot be loaded ({error}); free memory or raise its limit (ulimit -v), or install SpecScope again"
        return _fail(error, what, 1)
    except Exception as error:  # noqa: BLE001 - the user gets one line, not a traceback
        return _fail(error, f"internal error: {type(error).__name__}: {error}; please report it", 1)


def _use_utf8() -> None:
    """Print UTF-8 in every locale, and escape characters that UTF-8 cannot encode."""
    if sys.stdout is None:  # the caller closed it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def _check_folder() -> None:
    """Refuse a deleted working folder: libraries and workers would fail without a reason."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(f"the working folder cannot be used ({error.strerror}); change to another") from None


def _check_arguments(args: argparse.Namespace) -> None:
    """Refuse arguments that are not valid Unicode, such as bytes of another encoding."""
    for value in vars(args).values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                check_text(f"the argument {shown(text)}", text)


def _drop_output() -> None:
    """Discard unprinted output; Python would otherwise flush it at exit and print an error."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _fail(error: BaseException, message: str, code: int) -> int:
    """Print an error as one line and return `code`; SPECSCOPE_DEBUG=1 adds its traceback."""
    _drop_output()
    if os.environ.get("SPECSCOPE_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"specscope: {_one_line(message)}", file=sys.stderr)
    return code


def _one_line(message: str) -> str:
    """Return a message as one printable line of bounded length, with very long words shortened."""
    line = re.sub(r"\S{300,}", lambda word: f"{word[0][:200]}…", " ".join(message.split()))
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)  # no terminal escapes
    return line if len(line) <= MAX_ERROR_CHARACTERS else f"{line[:MAX_ERROR_CHARACTERS]}…"
