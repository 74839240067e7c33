"""List, download, locate and remove models with short names."""

from __future__ import annotations

import argparse
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from app.cli.common import add_json, print_json
from app.cli.status import DownloadBar
from engine.errors import ModelError, RunCancelled
from engine.types import check_range

if TYPE_CHECKING:
    from pathlib import Path

    from engine.pairs.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def fetch(name: str, patience: float = math.inf, limit: float = math.inf) -> Path:
    """Return the directory of a model after downloading it if necessary.

    The download fails after `patience` seconds without a byte, or `limit` seconds in all; the
    conversion that follows has no limit.
    """
    from engine.pairs import catalog

    with DownloadBar() as bar, _Watch(patience, limit) as watch:

        def show(progress: Progress) -> None:
            watch.see(progress)
            bar.show(progress)

        try:
            return catalog.get(name, show, watch.cancel)
        except RunCancelled:
            raise ModelError(f"{name} cannot be downloaded: {watch.reason}; check the network") from None


class _Watch:
    """Sets `cancel` when a download has been without a new byte, or has taken, for too long."""

    def __init__(self, patience: float, limit: float) -> None:
        self.cancel = threading.Event()
        self.reason = ""
        self._patience, self._limit = patience, limit
        self._done, self._since = 0, time.monotonic()
        self._begun = self._since
        self._over = threading.Event()
        """Set when all bytes are here, or when the download has ended."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def see(self, progress: Progress) -> None:
        if progress.work != "Downloading" or 0 < progress.total <= progress.done:
            self._over.set()
        elif progress.done > self._done:
            self._done, self._since = progress.done, time.monotonic()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            now = time.monotonic()
            if now - self._since > self._patience:
                self.reason = f"no byte arrived in {self._patience:g} s"
            elif now - self._begun > self._limit:
                self.reason = f"it was not complete after {self._limit:g} s"
            if self.reason:
                self.cancel.set()
                return
