"""Open the playground in the browser."""

from __future__ import annotations

import argparse
import os

from app.cli.common import add_database


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
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
    add_database(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the playground until it is stopped."""
    from app.server import AUTH, serve

    auth = args.auth if args.auth is not None else os.environ.get(AUTH)
    return serve(host=args.host, port=args.port, auth=auth, unsafe=args.unsafe, database=args.db)
