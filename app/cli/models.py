"""List, download, locate and remove models with short names."""

from __future__ import annotations

import argparse
import math
from typing import Any

from app.cli.common import add_json, print_json
from app.cli.fetching import fetch
from engine.types import check_range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_json(parser)
    parser.add_argument(
        "action", nargs="?", choices=("list", "get", "path", "remove"), default="list", help="(list)"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="short name of a model")
    parser.add_argument(
        "--patience",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="get: give up when no new byte arrives for this long",
    )


def run(args: argparse.Namespace) -> int:
    """Carry out the action."""
    from engine.pairs import catalog
    from engine.pairs.progress import megabytes

    if args.action == "list":
        return _list(args)
    entry = catalog.find(args.name or "")
    if args.action == "remove":
        size = catalog.remove(entry.name)
        return _answer(args, f"{entry.name} removed, {megabytes(size)}", {"name": entry.name, "bytes": size})
    if args.action == "get":
        check_range("--patience", args.patience, 0)
        folder = fetch(entry.name, args.patience)
    elif (folder := catalog.installed(entry.name)) is None:
        raise catalog.missing(entry.name)
    return _answer(args, str(folder), {"name": entry.name, "path": str(folder)})


def _list(args: argparse.Namespace) -> int:
    from engine.pairs import catalog
    from engine.pairs.progress import megabytes

    rows: list[dict[str, Any]] = []
    for entry in catalog.CATALOG.values():
        folder = catalog.installed(entry.name)
        row = {"name": entry.name, "title": entry.title, "licence": entry.licence}
        row |= {"download_bytes": entry.wheel.size, "disk_bytes": entry.disk}
        row |= {"path": str(folder) if folder else None}
        rows.append(row)
    if args.json:
        print_json({"models": rows})
    for row in () if args.json else rows:
        where = (
            row["path"]
            or f"not downloaded ({megabytes(row['download_bytes'])}): specscope models get {row['name']}"
        )
        print(f"{row['name']:12} {row['title']}, {row['licence']}: {where}")
    if not args.json:
        print(f"{'bundled':12} a toy pair for tests and machines without a network: part of SpecScope")
    return 0


def _answer(args: argparse.Namespace, line: str, value: dict[str, Any]) -> int:
    if args.json:
        print_json(value)
    else:
        print(line)
    return 0
