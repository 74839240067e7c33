"""The trace database: an SQLite file that one thread of this process writes and anybody may read meanwhile."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import delete

from engine.errors import StoreError, UsageError
from traces import database, queries
from traces.database import default_path
from traces.queries import SpanBin, SpanWindow, Summary
from traces.recorder import Recorder, Writer, insert_rows, insert_run
from traces.schema import RUN

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from sqlalchemy import Connection

    from engine.trace.events import Header
    from engine.trace.trace import Trace

__all__ = ["Recorder", "SpanBin", "SpanWindow", "Store", "Summary", "default_path"]


class Store:
    """A trace database, open. A context manager; any thread may use it."""

    def __init__(self, path: str | Path | None = None, *, readonly: bool = False) -> None:
        """Open the file, or create it with its folder.

        Args:
            path: The database file; `default_path()` unless given.
            readonly: Open an existing file and never write to it.

        Raises:
            StoreError: It is missing, locked, read-only, not a SpecScope database, or of a newer version.
        """
        self.path = Path(path) if path is not None else default_path()
        self._engine = database.open_engine(self.path, readonly=readonly)
        self._writer = None if readonly else Writer(self._engine, self.path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store what is queued and close the file."""
        if self._writer is not None:
            self._writer.close()
        self._engine.dispose()

    def record(self, header: Header) -> Recorder:
        """Store a header now and return the recorder for the events that follow.

        Raises:
            StoreError: The database cannot be written, or holds a run of this id.
        """
        return self._writing().record(header)

    def insert(self, trace: Trace) -> None:
        """Store a whole trace, all of it or nothing. Its id stays, and a stored run is never replaced.

        Raises:
            StoreError: The database cannot be written, or holds a run of this id.
        """

        def work(connection: Connection) -> None:
            rows = [*trace.rows(), *([trace.footer] if trace.footer else [])]
            insert_rows(connection, insert_run(connection, trace.header), rows, {})

        self._writing().call(work)

    def delete(self, run_ids: Iterable[str]) -> int:
        """Delete runs with all their rows; return how many there were.

        Raises:
            UsageError: One of them is still being recorded; then none is deleted.
            StoreError: The database cannot be written.
        """
        wanted = set(run_ids)

        def work(connection: Connection) -> int:
            if running := wanted & set(queries.recorded(connection).values()):
                raise UsageError(
                    f"run {', '.join(sorted(running))} is still running; stop it before deleting it"
                )
            gone = [connection.execute(delete(RUN).where(RUN.c.run_id == run_id)) for run_id in wanted]
            return sum(result.rowcount for result in gone)

        return self._writing().call(work)

    def runs(
        self, query: str = "", method: str = "", status: str = "", offset: int = 0, limit: int = 50
    ) -> tuple[list[Summary], int]:
        """Return a page of the stored runs, newest first, and how many match in all.

        Args:
            query: What the id, the title, the method, a prompt or the output must contain, in upper or lower case.
            method: A method's key.
            status: running, done, cancelled, failed or incomplete.
            offset: Runs to skip.
            limit: Runs to return at most.
        """
        with self._reading() as connection:
            return queries.page(connection, query, method, status, offset, limit)

    def load(self, run_id: str) -> Trace:
        """Return the trace of a run; of one that still runs, what is stored of it so far.

        A run that ended without a footer gets one with the status `incomplete`.

        Raises:
            UsageError: There is no such run.
            StoreError: The database cannot be read.
        """
        with self._reading() as connection:
            return queries.load(connection, run_id)

    def group(self, run_id: str) -> list[str]:
        """Return the ids of the runs compared with this one, in the order they were made; at least its own.

        Raises:
            UsageError: There is no such run.
        """
        with self._reading() as connection:
            return queries.group(connection, run_id)

    def spans_window(self, run_id: str, start: int, end: int, bins: int = 1500) -> SpanWindow:
        """Return the spans that overlap [start, end) ns, or their sums in equal bins when they are more than `bins`.

        Raises:
            UsageError: There is no such run, or the window is empty.
        """
        if end <= start or bins < 1:
            raise UsageError(
                f"the window is {start} to {end} ns in {bins} bins; it needs an end after its start"
            )
        with self._reading() as connection:
            return queries.spans_window(connection, run_id, start, end, bins)

    def _writing(self) -> Writer:
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading only; open it without readonly")
        return self._writer

    @contextmanager
    def _reading(self) -> Generator[Connection]:
        """Give a connection that sees one state of the file throughout, whatever is written meanwhile."""
        with database.explained(self.path), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            yield connection
