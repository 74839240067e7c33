"""The trace files that other processes write: which of them may be followed, and their runs."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypedDict

from specscope.app.runs import LiveRun, RunRequest
from specscope.engine.errors import SpecScopeError, UsageError, shown
from specscope.traces.database import data_folder
from specscope.traces.follow import POLL, Tail, Tally
from specscope.traces.store import Store

ENDING = ".jsonl"
MOST_LISTED = 100
MOST_FOLLOWED = 16
"""Most files that are followed at once; the one that began first is stopped for another one."""
LEFT = "No longer followed; the file has no footer yet, so the run is not stored."


class Listed(TypedDict):
    """A file that may be followed."""

    name: str
    size: int
    age: float
    """Seconds since something was written."""


class Recordings:
    """The files named on the command line, and those of one folder, by their names.

    A file of the folder lies directly in it, ends in `.jsonl` and is no link. A name is looked up
    among these files only, so no name leads to another file.
    """

    def __init__(self, files: Sequence[Path] = (), folder: Path | None = None) -> None:
        self.folder = data_folder() / "recordings" if folder is None else folder
        self.files: dict[str, Path] = {}
        for path in files:
            if path.name in self.files:
                raise UsageError(f"two files have the name {shown(path.name)}; follow one of them at a time")
            self.files[path.name] = path

    def listed(self) -> list[Listed]:
        """Return the named files that exist, then the folder's, each group newest first."""
        named = [(name, status) for name, path in self.files.items() if (status := _status(path))]
        groups = (named, [(name, status) for name, status in self._inside() if name not in self.files])
        now = time.time()
        return [
            {"name": name, "size": status.st_size, "age": max(0.0, now - status.st_mtime)}
            for group in groups
            for name, status in sorted(group, key=lambda one: -one[1].st_mtime)[:MOST_LISTED]
        ]

    def tail(self, name: str) -> Tail:
        """Return the reader of a file; UsageError if its name is not of these files."""
        if name in self.files:
            return Tail(self.files[name])
        if any(name == known for known, _ in self._inside()):
            return Tail(self.folder / name, links=False)
        raise UsageError(f"there is no file {shown(name)} to follow; choose one of the list")

    def _inside(self) -> list[tuple[str, os.stat_result]]:
        try:
            names = [name for name in os.listdir(self.folder) if name.endswith(ENDING)]
        except OSError:  # the folder does not exist
            return []
        found = ((name, _status(self.folder / name, links=False)) for name in names)
        return [(name, status) for name, status in found if status is not None]


def _status(path: Path, *, links: bool = True) -> os.stat_result | None:
    """Return the status of a regular file; None for anything else, or if it is gone."""
    try:
        status = path.stat(follow_symlinks=links)
    except OSError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


class Followed(NamedTuple):
    """A file that is or was followed."""

    run: LiveRun
    tail: Tail
    tally: Tally
    thread: threading.Thread


class Follower:
    """Follows files: a thread for each reads its events into a run, as a listener would."""

    def __init__(self, recordings: Recordings, store: Store | None, admit: Callable[[LiveRun], None]) -> None:
        self.recordings = recordings
        self._store = store
        self._admit = admit
        self._followed: dict[str, Followed] = {}
        self._lock = threading.Lock()

    def start(self, name: str) -> Followed:
        """Return the file that is followed already, else begin; UsageError for an unknown name."""
        with self._lock:
            found = self._followed.get(name)
            if found is not None and not found.run.ended:
                return found
            tail = self.recordings.tail(name)
            active = [other for other in self._followed.values() if not other.run.ended]
            for other in active[: max(0, len(active) - MOST_FOLLOWED + 1)]:
                other.run.cancel()
            run = LiveRun(RunRequest(method="", prompt="", pair=""), lambda _: None, name)
            thread = threading.Thread(
                target=self._follow, args=(run, tail, tally := Tally()), name=f"follow-{name}", daemon=True
            )
            self._followed = {other.run.name: other for other in active}
            self._followed[name] = found = Followed(run, tail, tally, thread)
            run.enter("running")
            self._admit(run)
            thread.start()
            return found

    def stop(self, name: str) -> None:
        if (found := self._followed.get(name)) is not None:
            found.run.cancel()

    def keep(self, name: str) -> str:
        """Store what a file holds so far; return the result as a sentence."""
        with closing(self.recordings.tail(name)) as tail:
            tail.read()
            return stored(self._store, tail)

    def close(self) -> None:
        """Stop following, and print how to store the runs that have no footer yet."""
        with self._lock:
            followed = list(self._followed.values())
        for one in followed:
            one.run.cancel()
        for one in followed:
            one.thread.join()
            if one.tail.header is not None and one.tail.footer is None:
                sys.stderr.write(f"specscope: {unfinished(one.tail)}\n")

    def _follow(self, run: LiveRun, tail: Tail, tally: Tally) -> None:
        try:
            while tail.footer is None and not run.stopped.is_set():
                events = tail.read()
                run.note = f"Waiting: {tail.waiting}." if tail.waiting else ""
                for event in events:
                    run.append(event)
                tally.add(events)
                if not events:
                    run.stopped.wait(POLL)
            self._end(run, tail)
        except Exception as error:  # noqa: BLE001 - the page shows it, and the run ends
            run.end("failed", error)
        finally:
            tail.close()

    def _end(self, run: LiveRun, tail: Tail) -> None:
        """End a run as its footer says; without one it is incomplete."""
        if tail.footer is None:
            run.note = LEFT
            if (trace := run.trace()) is not None:
                run.append(trace.new_footer("incomplete", "the run was followed up to here"))
            run.end("cancelled")
            return
        run.note = stored(self._store, tail)
        status, error = tail.footer.status, tail.footer.error
        cause = SpecScopeError(error) if error else None
        run.end(status if status in ("cancelled", "failed") else "done", cause)


def unfinished(tail: Tail) -> str:
    path = shlex.quote(str(tail.path))
    return f"{tail.path.name} has no footer yet, so it is not stored; `specscope import {path}` stores what is there"


def stored(store: Store | None, tail: Tail) -> str:
    """Store the run of a file, as an import does; return the result as a sentence."""
    if store is None:
        return "Not stored: SpecScope was started without a database."
    try:
        trace = tail.trace()
        store.insert(trace)
    except SpecScopeError as error:
        return f"Not stored: {error}."
    return f"Run {trace.header.run_id} is stored."
