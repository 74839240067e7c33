"""The trace file that another process writes: its new events, and the figures so far."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from specscope.engine.errors import UsageError
from specscope.engine.files import open_growing, read_growing
from specscope.engine.trace.events import Commit, Decision, Footer, Forked, Round, Span
from specscope.engine.trace.header import check_header
from specscope.engine.trace.jsonl import MOST_LINE, MOST_TRACE_BYTES, RECORDING, from_json, whole_part
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.checks import check_rows
from specscope.traces.facts.counted import figures, total, whole_windows
from specscope.traces.facts.places import FATES
from specscope.traces.imports.reading import read_traces

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specscope.engine.trace.events import Event, Header

POLL = 0.1
"""Seconds between two reads of a file that has nothing new."""
MOST_READ = 2**20
"""Most bytes of one read; a long file is read in several."""


class Tail:
    """The events of a trace file that grows, each of them once.

    The file may not exist yet. A line counts when its end is written.
    """

    def __init__(self, path: Path, *, links: bool = True) -> None:
        self.path = path
        self.header: Header | None = None
        self.footer: Footer | None = None
        self.lines = 0
        """Complete lines that were read."""
        self.behind = False
        """Whether the last read had bytes, so that more may be there."""
        self._links = links
        self._file = -1
        self._size = 0
        """Bytes that were read."""
        self._fault: UsageError | None = None
        """Of a line whose earlier lines were returned by the last read."""
        self._cut = b""
        """The beginning of a line whose end is not written yet."""
        self._shared = False
        """Whether several processes may write the file, a recording."""
        self._spans: set[int] = set()
        self._documents: set[int] = set()

    @property
    def unfinished(self) -> bool:
        """Whether there is a run that is not stored yet, as its footer is missing."""
        return self.header is not None and self.footer is None

    @property
    def waiting(self) -> str:
        """What is missing before the run can be shown; empty once the header is here."""
        if self.header is not None:
            return ""
        if self._file < 0:
            return f"{self.path.name} does not exist yet"
        return f"the header of {self.path.name} is not {'complete' if self._cut else 'written'} yet"

    def read(self) -> list[Event]:
        """Return the events since the last read, of at most MOST_READ bytes; none after the footer.

        UsageError if a line is no event, contradicts earlier ones or is too long; if the file was
        shortened, replaced or removed; if it is too large or cannot be read.
        """
        if self._fault is not None:
            raise self._fault
        if self._file < 0:
            self._file = open_growing(self.path, links=self._links)
        if self.footer is not None or self._file < 0:
            return []
        fresh = read_growing(self.path, self._file, MOST_READ)
        self.behind = bool(fresh)
        if not fresh:
            self._check_same()
        self._size += len(fresh)
        *lines, self._cut = (self._cut + fresh).split(b"\n")
        if self._size > MOST_TRACE_BYTES:
            raise UsageError(f"{self.path.name} has more than {MOST_TRACE_BYTES} bytes, which is the limit")
        if len(self._cut) > MOST_LINE:
            raise UsageError(f"{self.path.name}: line {self.lines + 1} has no end within {MOST_LINE} bytes")
        return self._events(lines) if lines else []

    def trace(self) -> Trace:
        """Return the run of the open file's complete lines; errors and limits are an import's."""
        path = f"/dev/fd/{self._file}"  # the name may be another file's now
        try:
            return read_traces(path).traces[0]
        except UsageError as error:
            raise UsageError(str(error).replace(path, self.path.name)) from None

    @property
    def mark(self) -> tuple[int, int, int] | None:
        """Inode, size and time of the open file; None if it has bytes that were not read."""
        if self._file < 0:
            return None
        mine = os.fstat(self._file)
        return (mine.st_ino, mine.st_size, mine.st_mtime_ns) if mine.st_size == self._size else None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _check_same(self) -> None:
        """Raise UsageError unless the path still names the file, with all bytes that were read."""
        mine = os.fstat(self._file)
        try:
            named = os.stat(self.path, follow_symlinks=self._links)
        except OSError:
            raise UsageError(f"{self.path.name} was removed before its footer") from None
        if (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
            raise UsageError(f"{self.path.name} was replaced before its footer; follow the new file")
        if mine.st_size < self._size:
            raise UsageError(
                f"{self.path.name} was shortened to {mine.st_size} bytes after {self._size} were read; follow it again"
            )

    def _events(self, lines: Sequence[bytes]) -> list[Event]:
        """Return the events of lines, up to the footer or the first line that is none."""
        first = self.lines + 1
        events: list[Event] = []
        for line in lines:
            self.lines += 1
            self._shared |= self.lines == 1 and RECORDING in line
            row = whole_part(line) if self._shared and self.lines > 1 else line
            try:
                events += [self._event(row)] if row.strip() else []
            except UsageError as fault:
                self._fault = fault
                break
            if events and isinstance(events[-1], Footer):
                break
        if events:
            try:
                self._take(events)
            except ValueError as error:
                where = f"line {first}" if first == self.lines else f"lines {first} to {self.lines}"
                raise UsageError(f"{self.path.name}: {where}: {error}") from None
        elif self._fault is not None:
            raise self._fault
        return events

    def _event(self, line: bytes) -> Event:
        try:
            return from_json(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            problem = f"byte {error.start} is not UTF-8"
        except ValueError as error:
            problem = str(error)
        raise UsageError(f"{self.path.name}: line {self.lines}: {problem}")

    def _take(self, events: Sequence[Event]) -> None:
        """Check new events against each other and the earlier ones; ValueError names a fault."""
        begun = self.header is not None
        trace = Trace.of([self.header, *events] if self.header else events)
        if not begun:
            check_header(trace.header)
        check_rows(trace, self._spans, self._documents)
        self.header, self.footer = trace.header, trace.footer
        self._spans.update(span.id for span in trace.spans)
        self._documents.update(row.document for row in trace.documents)


@dataclass(slots=True)
class Tally:
    """The figures of a run so far, as `specscope.traces.facts.metrics` defines them."""

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    decoded: int = 0
    """Tokens but those that a prefill decided."""
    prefills: set[int] = field(default_factory=set[int])
    """Ids of the prefill's spans."""
    begin: int = 0
    """When prefill ended, in ns."""
    last: int = 0
    """When the last token was committed, in ns."""

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Commit):
                self.tokens += 1
                self.last = max(self.last, event.time)
            elif isinstance(event, Decision) and event.outcome in FATES:
                self.drafted += 1
                self.accepted += event.outcome == "accepted"
            elif isinstance(event, Forked) and not event.taken:
                self.drafted += event.length
            elif isinstance(event, Round):
                self.rounds += 1
                self.decoded += 0 if event.span in self.prefills else event.emitted
            elif isinstance(event, Span) and event.kind == "prefill" and event.step == 0:
                self.prefills.add(event.id)
                self.begin = max(self.begin, event.end)

    def take(self, trace: Trace) -> None:
        """Take the figures of a whole trace in place of those so far; unknown counts as 0."""
        whole = Tally()
        whole.add(trace.events())
        if trace.windows:
            found = figures(trace.windows)
            whole.rounds = total(whole_windows(trace.windows), "drafts") or 0
            whole.drafted, whole.accepted = found["drafted"] or 0, found["accepted"] or 0
            whole.tokens = whole.decoded = found["tokens"] or 0
            whole.last = round(1e9 * (found["decode_seconds"] or 0))
        for one in fields(self):
            setattr(self, one.name, getattr(whole, one.name))

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_second(self) -> float | None:
        seconds = (self.last - self.begin) / 1e9
        return self.decoded / seconds if self.decoded and seconds > 0 else None
