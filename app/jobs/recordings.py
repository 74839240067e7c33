"""What other processes write: files, folders and addresses that may be followed, and their runs."""

from __future__ import annotations

import os
import re
import shlex
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict

from specscope.app.jobs.runs import LiveRun, RunRequest
from specscope.engine.errors import SpecScopeError, UsageError, shown
from specscope.engine.servers.address import KEY, Address
from specscope.engine.trace.trace import Trace
from specscope.traces.database.file import data_folder
from specscope.traces.database.store import Store
from specscope.traces.following.folder import ENDING, Ended, Folder
from specscope.traces.following.follow import POLL, Tail, Tally
from specscope.traces.following.growing import Counting, GrowingLog, GrowingMetrics, Growth
from specscope.traces.view.counts import line

HEADER = b'{"event":"header"'
"""How a recording begins."""
_HOST = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}(?:/|$)")
PAUSE = 0.3
"""Seconds between two looks at a log, a folder or a server that told nothing new."""
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
    """What is named on the command line or in the page's field, and the files of one folder.

    A file of the folder lies directly in it, ends in `.jsonl` and is no link. A name is looked up
    among these only, so no name leads to another file. The page's field adds names where only this
    machine reaches the page (`anywhere`).
    """

    def __init__(
        self,
        files: Sequence[str | Path] = (),
        folder: Path | None = None,
        *,
        every: float = 5.0,
        from_end: bool = False,
        remote: bool = False,
    ) -> None:
        self.folder = data_folder() / "recordings" if folder is None else folder
        self.anywhere = False
        self.tell: Callable[[str], None] = lambda _: None
        """Takes a line about each new window of counts, for a terminal beside the page."""
        self.files: dict[str, Path | Address] = {}
        self._every, self._from_end, self._remote = every, from_end, remote
        for given in files:
            name, place = self._named(str(given))
            if name in self.files:
                raise UsageError(f"two files have the name {shown(name)}; follow one of them at a time")
            self.files[name] = place
        for place in self.files.values():
            _check_folder(place)

    def add(self, text: str) -> str:
        """Add what a person typed, a path or an address; return its name.

        UsageError if others reach the page, if it is empty, or if a folder above it does not exist.
        """
        if not text.strip():
            raise UsageError("nothing is named; type a path, or the address of a server's /metrics")
        if not self.anywhere:
            raise UsageError(
                f"other machines reach this page, so it opens no path; name {shown(text.strip())} to specscope follow"
            )
        name, place = self._named(text.strip())
        if self.files.get(name, place) != place:
            name = text.strip()
        _check_folder(place)
        self.files[name] = place
        return name

    def source(self, name: str, store: Store | None) -> Tail | Counting | Folder:
        """Return the reader of a named file, folder or address. UsageError for other names."""
        place = self.files.get(name)
        if isinstance(place, Address):
            return Counting(GrowingMetrics(place, self._every), store)
        if place is not None and place.is_dir():
            return Folder(place, store, from_end=self._from_end)
        if place is not None and not is_recording(place):
            return Counting(GrowingLog(place, from_end=self._from_end), store)
        return self.tail(name)

    def _named(self, text: str) -> tuple[str, Path | Address]:
        """Return the name and the place of a path or an address."""
        if is_address(text):
            address = Address.of(text.strip().rstrip("/").removesuffix("/metrics"), os.environ.get(KEY, ""))
            why = "give --remote to specscope follow to ask it"
            return f"{address.url}/metrics", address.confirmed(why, remote=self._remote)
        path = Path(text).expanduser()
        return path.name or str(path), path

    def listed(self) -> list[Listed]:
        """Return the named files that exist, then the folder's, each group newest first."""
        paths = [(name, path) for name, path in self.files.items() if isinstance(path, Path)]
        named = [(name, status) for name, path in paths if (status := _status(path))]
        groups = (named, [(name, status) for name, status in self._inside() if name not in self.files])
        now = time.time()
        return [
            {"name": name, "size": status.st_size, "age": max(0.0, now - status.st_mtime)}
            for group in groups
            for name, status in sorted(group, key=lambda one: -one[1].st_mtime)[:MOST_LISTED]
        ]

    def tail(self, name: str) -> Tail:
        """Return the reader of a file; UsageError if its name is not of these files."""
        if isinstance(path := self.files.get(name), Path):
            return Tail(path)
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


def _check_folder(place: Path | Address) -> None:
    """Raise UsageError for a path that can never exist."""
    if isinstance(place, Path) and not place.absolute().parent.is_dir():
        raise UsageError(f"{place.absolute().parent} is no folder; make it first")


def is_recording(path: Path) -> bool:
    """Return whether a file is a recording, by its beginning, else by its name; not a log."""
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if begin := os.read(file, len(HEADER)) if stat.S_ISREG(os.fstat(file).st_mode) else b"":
                return begin == HEADER[: len(begin)]
        finally:
            os.close(file)
    return path.name.endswith(ENDING)


def is_address(text: str) -> bool:
    """Return whether a text is an address: a scheme, or host and port that name no file."""
    return "://" in text or (bool(_HOST.match(text)) and not Path(text).exists())


class Followed(NamedTuple):
    """What is or was followed."""

    run: LiveRun
    source: Tail | Counting | Folder
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
            source = self.recordings.source(name, self._store)
            active = [other for other in self._followed.values() if not other.run.ended]
            for other in active[: max(0, len(active) - MOST_FOLLOWED + 1)]:
                other.run.cancel()
            run = LiveRun(RunRequest(method="", prompt="", pair=""), lambda _: None, name)
            work, tally = (self._follow if isinstance(source, Tail) else self._watch), Tally()
            thread = threading.Thread(
                target=work, args=(run, source, tally), name=f"follow-{name}", daemon=True
            )
            self._followed = {other.run.name: other for other in active}
            self._followed[name] = found = Followed(run, source, tally, thread)
            run.enter("running")
            self._admit(run)
            thread.start()
            return found

    def begin(self) -> None:
        """Follow what the command line names, whether or not a page is open."""
        for name in [*self.recordings.files][:MOST_FOLLOWED]:
            self.start(name)

    def stop(self, name: str) -> None:
        if (found := self._followed.get(name)) is not None:
            found.run.cancel()

    def show(self, name: str, run: str) -> None:
        """Show the run of another server of a source."""
        if (found := self._followed.get(name)) is not None and isinstance(found.source, Counting):
            found.source.chosen = run

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
            if isinstance(one.source, Tail) and one.source.unfinished:
                sys.stderr.write(f"specscope: {unfinished(one.source)}\n")

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

    def _watch(self, run: LiveRun, source: Counting | Folder, tally: Tally) -> None:
        """Show a run that grows: of several servers the chosen one, of a folder the newest run."""
        try:
            going, shown, traces = True, None, dict[str, Trace]()
            while going:
                going = not run.stopped.is_set()
                grown = source.step(last=not going)
                for one in grown or ():
                    self._keep(run, one, traces)
                chosen = source.chosen if isinstance(source, Counting) else ""
                first = next(iter(traces.values()), None)
                if (trace := traces.get(chosen, first)) is not None and trace is not shown:
                    tally.take(trace)
                    run.settle(replace(trace, footer=None) if trace.windows else trace)
                    shown = trace
                run.note = source.note
                if grown is None:
                    run.stopped.wait(PAUSE)
            if shown is not None:
                run.settle(shown)
            run.end("done")
        except Exception as error:  # noqa: BLE001 - the page shows it, and the run ends
            run.end("failed", error)
        finally:
            source.close()

    def _keep(self, run: LiveRun, grown: Growth | Ended, traces: dict[str, Trace]) -> None:
        """Keep the newest trace of each server; of a folder the last one."""
        for row in grown.fresh if isinstance(grown, Growth) else ():
            self.recordings.tell(f"{run.name}: {line(row)}")
        if isinstance(grown, Ended) and grown.trace is not None:
            traces.clear()
        if grown.trace is not None:
            traces[grown.trace.header.run_id] = grown.trace

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
