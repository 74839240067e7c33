"""Counts that grow: the log of a server while it is written, and the counters of its `/metrics`.

The readers are those of imports. Each server in a source is one run, stored anew when it has new
windows: it is a whole run at any time, whatever ends this process.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from specscope.engine.errors import UsageError
from specscope.engine.files import open_growing, read_growing
from specscope.engine.servers.address import Address, ServerError
from specscope.engine.servers.counters import Counters, read_counters
from specscope.traces.following.follow import MOST_READ
from specscope.traces.imports.logs.printed import counted
from specscope.traces.imports.logs.windows import (
    MOST_SERVERS,
    Printed,
    lines_of,
    nanoseconds,
    shifted,
    source_of,
    trace_of,
)
from specscope.traces.imports.reading import LOGS, checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.events import Window
    from specscope.engine.trace.trace import Trace
    from specscope.traces.database.store import Store

MOST_CUT = 2**16
"""Bytes kept of a line without an end; more of a line is never read."""
SHARE = 20
"""A run is made and stored again after that many times the seconds that it took last time."""


class CountSource(Protocol):
    """What tells counts."""

    waiting: str
    """Why there is nothing yet, or what went wrong; may be empty."""
    identity: str
    """What tells its runs from those of other sources."""
    calm: bool
    """Whether the last windows of the servers are complete."""

    def read(self) -> list[Printed] | None:
        """Return all that was told so far; None if nothing was since the last call."""
        ...

    def close(self) -> None: ...


class GrowingLog:
    """The log of llama.cpp, vLLM or SGLang, which may be cut, rotated, or not exist yet."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.calm, self.waiting = False, ""
        self.identity = str(path.absolute())
        self._path, self._file, self._size, self._cut = path, -1, 0, b""
        self._readers: list[tuple[Any, dict[str, Any]]] = [(log, {}) for log in LOGS]
        self._found: list[Printed] = []
        self._names = set[str]()
        self._told: dict[str, int] | None = {} if from_end else None
        """Windows by server that were there already, and are left out."""

    def read(self) -> list[Printed] | None:
        """Read on, at most MOST_READ bytes. UsageError for what is no regular file."""
        if self._file < 0 and not self._open():
            return None
        fresh = read_growing(self._path, self._file, MOST_READ)
        if not fresh:
            self._check_same()
            return self._rest()
        self._size += len(fresh)
        self.calm = False
        whole, end, self._cut = (self._cut + fresh).rpartition(b"\n")
        self._cut = self._cut[:MOST_CUT]
        if end:
            self._take(lines_of(whole.decode("utf-8", "replace")))
        return self._fresh() or []

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self, lines: Sequence[str]) -> None:
        try:
            self._found = [
                one._replace(form=form.name)
                for form, so_far in self._readers
                for one in form.read(lines, so_far, self._source)
            ]
        except ValueError as error:
            raise UsageError(f"{self._path.name}: {error}") from None

    def _source(self, before: str) -> str:
        """Return who wrote a line; of more names than servers would have, the others are one."""
        name = source_of(before)
        if len(self._names) < MOST_SERVERS:
            self._names.add(name)
        return name if name in self._names else ""

    def _rest(self) -> list[Printed] | None:
        """Return what is known if the end of the file has just been reached."""
        if self.calm:
            return None
        self.calm = True
        if self._told is not None and not self._told:
            self._told = {one.title: len(one.windows) for one in self._found} or {"": 0}
        if not self._found:
            self.waiting = f"{self._path.name} has no lines about drafts yet"
        return self._fresh()

    def _fresh(self) -> list[Printed] | None:
        """Return what was found, but for what was there before with `from_end`."""
        if not self._found or self._told == {}:
            return None
        self.waiting, told = "", self._told or {}
        parts = [one._replace(windows=one.windows[told.get(one.title, 0) :]) for one in self._found]
        return [one for one in parts if one.windows]

    def _open(self) -> bool:
        """Open the file; return False if it does not exist."""
        self._file, self._size, self._cut = open_growing(self._path), 0, b""
        if self._file < 0:
            self.waiting = f"{self._path.name} does not exist yet"
            self._told = self._told or None
        return self._file >= 0

    def _check_same(self) -> None:
        """Begin again if the path names another file now, or the file was cut."""
        mine = os.fstat(self._file)
        try:
            named = os.stat(self._path)
        except OSError:
            self.waiting = f"{self._path.name} is gone; a new one is awaited"
            return
        if (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
            self.close()
            self.calm = False
        elif mine.st_size < self._size:
            os.lseek(self._file, 0, os.SEEK_SET)
            self._size, self._cut, self.calm = 0, b"", False


class GrowingMetrics:
    """The counters of a server, asked every few seconds: what was counted between is a window."""

    def __init__(self, address: Address, every: float) -> None:
        self.calm, self.waiting = True, ""
        self.identity = uuid.uuid4().hex
        self._address, self._every = address, every
        self._due = self._begun = self._asked = 0.0
        self._last: Counters | None = None
        self._rows: list[Window] = []

    def read(self) -> list[Printed] | None:
        if time.monotonic() < self._due:
            return None
        self.waiting = ""
        try:
            now = self._counters()
        except (ServerError, ValueError) as error:
            self.waiting = str(error)
            now = None
        asked = time.monotonic()
        self._due = asked + self._every
        if now is None:
            return None
        last, before, self._last, self._asked = self._last, self._asked, now, asked
        if last is None:
            self._begun = asked
        if last is None or now.drafts == last.drafts:
            self.waiting = "no drafts yet" if not self._rows else ""
            return None
        found = now.since(last)
        if found is None:
            self.waiting = "the counters fell: the server was started anew, and is counted from here on"
            return None
        self._rows.append(self._window(found, before, asked))
        note = f"Differences of /metrics, asked every {self._every:g} s; tokens/s of vLLM with its pauses"
        return [Printed(found.engine, "", [*self._rows], note=note, form="counters of /metrics")]

    def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _counters(self) -> Counters | None:
        content = self._address.get("/metrics")
        if content is None:
            self.waiting = f"{self._address.url} has no /metrics; llama-server has it with --metrics"
            return None
        found = read_counters(content.decode("utf-8", "replace"))
        if found is None:
            self.waiting = f"{self._address.url} counts no drafts (no spec_decode counters): start the server with a drafter"
        return found

    def _window(self, found: Counters, start: float, end: float) -> Window:
        busy = None if found.busy is None else nanoseconds(found.busy)
        label, begun = time.strftime("%H:%M:%S"), self._begun
        return counted(found, start - begun, end - begun, label=label, tokens=found.tokens, busy=busy)


class Growth(NamedTuple):
    """A run that has grown."""

    run_id: str
    title: str
    fresh: list[Window]
    """Its new windows, in the order in which they were told."""
    trace: Trace | None
    """The whole run, when it was made and stored again."""


class _Run:
    """The run of one server of a source."""

    def __init__(self, source: CountSource, printed: Printed) -> None:
        self.title = printed.title
        told = f"{source.identity}\n{printed.key}\n{printed.windows[0]}"
        self.id = hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        self.told, self.created = 0, ""
        """Windows that were returned, and the date of the first trace."""
        self.stored: list[Window] = []

    def trace(self, printed: Printed) -> Trace:
        try:
            trace = checked(trace_of(printed, printed.form))
        except ValueError as error:
            raise UsageError(f"{printed.form}: {error}") from None
        self.created = self.created or trace.header.created
        trace.header = replace(trace.header, run_id=self.id, created=self.created)
        self.stored = printed.windows
        return trace


class Counting:
    """The runs of a source, each stored when it has grown."""

    unfinished = False

    def __init__(self, source: CountSource, store: Store | None) -> None:
        self.source = source
        self._store = store
        self._runs: dict[str, _Run] = {}
        self._due = 0.0
        self._told: list[Printed] = []
        """All that the source told by now."""
        self.chosen = ""
        """Id of the run that the page shows; the first one until another is chosen."""

    @property
    def titles(self) -> dict[str, str]:
        """The titles of the runs by their ids, the run that the page shows first."""
        runs = sorted(self._runs.values(), key=lambda run: run.id != self.chosen)
        return {run.id: run.title for run in runs}

    @property
    def note(self) -> str:
        runs = ", ".join(run.id for run in self._runs.values())
        grows = f"Run{'s' * (len(self._runs) > 1)} {runs}." if runs else ""
        waits = f"Waiting: {self.source.waiting}." if self.source.waiting else ""
        return " ".join(filter(None, [grows, waits]))

    def step(self, *, last: bool = False) -> list[Growth] | None:
        """Read on; return the runs with new windows, None if there is nothing new to read.

        What is not complete waits, unless this is the `last` step.
        """
        found = self.source.read()
        self._told = self._told if found is None else found
        begun = time.monotonic()
        due = last or begun >= self._due
        grown = [one for printed in self._told if (one := self._grown(printed, due=due, last=last))]
        if any(one.trace for one in grown):
            end = time.monotonic()
            self._due = end + SHARE * (end - begun)
        return None if found is None and not grown else grown

    def close(self) -> None:
        self.source.close()

    def _grown(self, printed: Printed, *, due: bool, last: bool) -> Growth | None:
        run = self._runs.get(printed.title)
        count = len(printed.windows) if last or self.source.calm else _complete(printed.windows)
        count = max(count, run.told if run else 0)
        if not count:
            return None
        windows = printed.windows[:count]
        whole = printed._replace(windows=windows)
        if run is None:
            run = self._runs[printed.title] = _Run(self.source, whole)
        trace = run.trace(whole) if due and windows != run.stored else None
        if trace is not None and self._store is not None:
            self._store.replace(trace)
        fresh, run.told = windows[run.told :], count
        if not fresh and trace is None:
            return None
        begin = min(one.start for one in windows)
        return Growth(run.id, run.title, [shifted(one, -begin) for one in fresh], trace)


def _complete(windows: Sequence[Window]) -> int:
    """Return the number of windows without those of the last request, which may get more lines."""
    count = len(windows)
    while count and windows[count - 1].end == windows[-1].end:
        count -= 1
    return count
