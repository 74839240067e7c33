"""The trace database: an SQLite file, written by one thread, read by any."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import delete

from engine.errors import StoreError, UsageError
from engine.trace.events import Header
from traces import bins, database, lines, queries, windows
from traces.database import default_path
from traces.queries import Summary
from traces.recorder import Recorder, Writer, insert_rows, insert_run
from traces.schema import RUN

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from sqlalchemy import Connection

    from engine.trace.events import Commit, Event
    from engine.trace.trace import Trace
    from traces.bins import Bins, Columns
    from traces.lines import Line
    from traces.windows import Extent, Part

__all__ = ["Recorder", "Store", "Summary", "default_path"]
KEPT = 8
"""Runs whose columns are kept in memory, each with about 2 MB per 100,000 spans."""


class Store:
    """An open trace database; a context manager, safe to use from several threads."""

    def __init__(self, path: str | Path | None = None, *, readonly: bool = False) -> None:
        """Open the file, or make it and its folder.

        Args:
            path: The database file; `default_path()` unless given.
            readonly: Open an existing file and never write to it.

        Raises:
            StoreError: It is missing, locked, read-only, not a SpecScope database, or of another
                version.
        """
        self.path = Path(path) if path is not None else default_path()
        self._engine = database.open_engine(self.path, readonly=readonly)
        self._file = database.identity(self.path)
        self._extents: dict[int, Extent] = {}
        self._columns: dict[tuple[int, tuple[int, ...]], Columns] = {}
        self._lock = threading.Lock()
        self._writer = None if readonly else Writer(self._engine, self.path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store all queued events and close the file."""
        if self._writer is not None:
            self._writer.close()
        self._engine.dispose()

    def record(self, header: Header) -> Recorder:
        """Store a header now and return the recorder for the run's events.

        Raises:
            StoreError: The database cannot be written, or holds a run of this id.
        """
        return self._writing().record(header)

    @contextmanager
    def listening(self) -> Generator[Callable[[Event], None]]:
        """Yield a listener that records one run, from its header on."""
        with ExitStack() as stack:
            recorder: Recorder | None = None

            def listen(event: Event) -> None:
                nonlocal recorder
                if isinstance(event, Header):
                    recorder = stack.enter_context(self.record(event))
                elif recorder is not None:
                    recorder.add(event)

            yield listen

    def insert(self, *traces: Trace) -> None:
        """Store whole traces in one transaction, under their ids. A stored run is never replaced.

        Raises:
            StoreError: The database cannot be written, or holds a run of one of these ids; then
                none is stored.
        """

        def work(connection: Connection) -> None:
            for trace in traces:
                rows = [*trace.rows(), *([trace.footer] if trace.footer else [])]
                insert_rows(connection, insert_run(connection, trace.header), rows, {})

        self._writing().call(work)

    def delete(self, run_ids: Iterable[str]) -> int:
        """Delete runs with all their rows; return the number of deleted runs.

        Raises:
            UsageError: One of them is being recorded; then none is deleted.
            StoreError: The database cannot be written.
        """
        wanted = set(run_ids)

        def work(connection: Connection) -> int:
            if running := wanted & set(queries.recorded(connection).values()):
                raise UsageError(
                    f"run {', '.join(sorted(running))} is still running; stop it before deleting it"
                )
            results = [connection.execute(delete(RUN).where(RUN.c.run_id == run_id)) for run_id in wanted]
            return sum(result.rowcount for result in results)

        return self._writing().call(work)

    def runs(
        self, query: str = "", method: str = "", status: str = "", offset: int = 0, limit: int = 50
    ) -> tuple[list[Summary], int]:
        """Return a page of the stored runs, newest first, and the number of all matching runs.

        Args:
            query: Words in the id, the title, the method, a model's name, the race, a prompt or the
                output, in upper or lower case, and terms such as `tokens:>50`; see
                `traces.listing.parse`. All of them must match.
            method: A method's key.
            status: running, done, cancelled, failed or incomplete.
            offset: Runs to skip.
            limit: Most runs to return.
        """
        with self._reading() as connection:
            return queries.page(connection, query, method, status, offset, limit)

    def load(self, run_id: str) -> Trace:
        """Return the trace of a run; of a run in progress, the rows stored so far.

        A run that ended without a footer gets one with status `incomplete`.

        Raises:
            UsageError: There is no such run.
            StoreError: The database cannot be read.
        """
        with self._reading() as connection:
            return queries.load(connection, run_id)

    def header(self, run_id: str) -> Header:
        """Return the header of a run.

        Raises:
            UsageError: There is no such run.
            StoreError: The database cannot be read.
        """
        with self._reading() as connection:
            return queries.header(connection, run_id)

    def extent(self, run_id: str) -> Extent | None:
        """Return the size of a run; None if it is not stored, or has no end yet.

        Raises:
            StoreError: The database cannot be read.
        """
        with self._reading() as connection, queries.undamaged(run_id):
            return windows.extent(connection, run_id, self._extents)

    def opening(self, run_id: str, size: Extent, most: int) -> Part:
        """Return the beginning of a run, with about `most` spans.

        Raises:
            StoreError: The database cannot be read.
        """
        with self._reading() as connection:
            high = windows.time_of(connection, size, most)
            return queries.part(connection, run_id, size, size.start, high)

    def part(self, run_id: str, size: Extent, low: int, high: int, most: int) -> Part | None:
        """Return the rows of a window; None if it has more than `most` spans.

        Args:
            run_id: The run.
            size: Its `extent`.
            low: Start of the window, in ns since the run's start.
            high: Its end.
            most: Most spans that are read.

        Raises:
            StoreError: The database cannot be read.
        """
        with self._reading() as connection:
            if not windows.is_few(connection, size, low, high, most):
                return None
            return queries.part(connection, run_id, size, low, high)

    def bins(self, run_id: str, size: Extent, low: int, high: int, number: int) -> Bins:
        """Return a window of a run as this number of bins.

        Raises:
            StoreError: The database cannot be read.
        """
        known = self._columns.get((size.key, size.rows))
        if known is None:
            with self._reading() as connection, queries.undamaged(run_id):
                known = bins.columns(connection, size.key, size.devices)
            with self._lock:
                self._columns[size.key, size.rows] = known
                while len(self._columns) > KEPT:
                    del self._columns[next(iter(self._columns))]
        return bins.bins(known, size, low, high, number)

    def line(self, run_id: str, size: Extent, sequence: int) -> Line:
        """Return the ids and times of all tokens of a sequence.

        Raises:
            StoreError: The database cannot be read.
        """
        with self._reading() as connection, queries.undamaged(run_id):
            return lines.line(connection, size.key, sequence)

    def commits(
        self, run_id: str, size: Extent, sequence: int, first: int, most: int
    ) -> list[tuple[int, Commit]]:
        """Return at most `most` commits of a sequence from its commit `first` on.

        Each is a tuple: the number of the run's commits before it, and the commit.

        Raises:
            StoreError: The database cannot be read.
        """
        with self._reading() as connection, queries.undamaged(run_id):
            return lines.commits(connection, size.key, sequence, first, most)

    def group(self, run_id: str) -> list[str]:
        """Return the ids of the runs compared with this one, its own included, oldest first.

        Raises:
            UsageError: There is no such run.
        """
        with self._reading() as connection:
            return queries.group(connection, run_id)

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading only; open it without readonly")
        return self._writer

    @contextmanager
    def _reading(self) -> Generator[Connection]:
        """Return a connection in one read transaction: it sees one state of the file.

        Raises:
            StoreError: The file cannot be read, or has lost its name.
        """
        database.check_stays(self.path, self._file)
        with database.explained(self.path), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            yield connection
