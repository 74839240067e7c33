"""Recording of runs in progress: a run queues its events, and one thread writes them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from dataclasses import asdict
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psutil
from sqlalchemy import Connection, insert, update

from specscope.engine.errors import SpecScopeError, StoreError, UsageError, shown
from specscope.engine.trace.events import Footer, Header, Row
from specscope.engine.trace.header import check_header
from specscope.traces.database import schema
from specscope.traces.database.file import check_stays, explain, identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from sqlalchemy import Engine

T = TypeVar("T")
BATCH = 1000
"""Most rows in one transaction."""
PAUSE = 0.05
"""Seconds in which rows are collected, so that the thread wakes 20 times a second at most."""

_recording: set[str] = set()
"""Ids of the runs that this process records."""


class RunRecorder:
    """Records the events of one run. `add` only queues; a later call raises its error."""

    def __init__(self, writer: BatchWriter, key: int, run_id: str) -> None:
        self.run_id = run_id
        self.key = key
        self.error: StoreError | None = None
        self.numbers: dict[type[Any], int] = {}
        self._writer = writer
        self._put = writer.queue.put
        self._closed = False

    def add(self, event: Row | Footer) -> None:
        """Queue an event; about a microsecond. StoreError if an earlier one could not be stored."""
        if self.error is not None:
            raise StoreError(str(self.error))
        if self._closed:
            raise StoreError(f"the recording of run {self.run_id} is closed; nothing can be added")
        self._put((self, event))

    def close(self) -> None:
        """Wait until every event is stored. A run without a footer is incomplete from now on."""
        if not self._closed:
            self._closed = True
            self._writer.finish(self)
        if self.error is not None:
            raise StoreError(str(self.error))

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except StoreError:
            if kind is None:  # else the exception that ended the run matters more
                raise


class _Job:
    """A change other than events, and its future result."""

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self.work = work
        self.result: Future[Any] = Future()


_Item: TypeAlias = "tuple[RunRecorder, Row | Footer] | _Job | None"


class BatchWriter:
    """The thread that writes batches of events and other changes, each in a transaction."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.queue: SimpleQueue[_Item] = SimpleQueue()
        self._engine = engine
        self._path = path
        self._file = identity(path)
        self._soon = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._recorders: set[RunRecorder] = set()
        self._thread = threading.Thread(target=self._loop, name="trace-writer", daemon=True)
        self._thread.start()

    def record(self, header: Header) -> RunRecorder:
        owner = {"owner_pid": os.getpid(), "owner_start": psutil.Process().create_time()}

        added = list[str]()

        def work(connection: Connection) -> int:
            key = insert_run(connection, header, **owner)
            added.append(header.run_id)
            _recording.add(header.run_id)  # before the transaction ends and others can read the run
            return key

        try:
            key = self.call(work)
        except StoreError:
            _recording.difference_update(added)
            raise
        recorder = RunRecorder(self, key, header.run_id)
        self._recorders.add(recorder)
        return recorder

    def finish(self, recorder: RunRecorder) -> None:
        if recorder in self._recorders:
            try:
                self.call(lambda _: None)
            finally:
                self._recorders.discard(recorder)
                _recording.discard(recorder.run_id)

    def call(self, work: Callable[[Connection], T]) -> T:
        """Make a change after all events queued so far, and return its result."""
        job = _Job(work)
        with self._ending:
            if self._ended:
                raise StoreError(f"{self._path} is closed")
            self.queue.put(job)
        self._soon.set()
        return job.result.result()

    def close(self) -> None:
        """Write all queued events and end the thread; open recorders fail from now on."""
        with self._ending:
            self._ended = True
            self.queue.put(None)
        self._soon.set()
        self._thread.join()
        for recorder in self._recorders:
            recorder.error = recorder.error or StoreError(
                f"{self._path} was closed during run {recorder.run_id}"
            )
            _recording.discard(recorder.run_id)
        self._recorders.clear()

    def _loop(self) -> None:
        while True:
            items = self._gather()
            last = items[-1]
            rows: dict[RunRecorder, list[Row | Footer]] = {}
            for item in items:
                if isinstance(item, tuple):
                    rows.setdefault(item[0], []).append(item[1])
            for recorder, events in rows.items():
                if recorder.error is None:
                    self._write(recorder, events)
            if isinstance(last, _Job):
                self._work(last)
            if last is None:
                return

    def _gather(self) -> list[_Item]:
        """Return the next items, at most BATCH; a job or the end (None) is the last of them."""
        items: list[_Item] = [self.queue.get()]
        if isinstance(items[0], tuple) and self.queue.qsize() < BATCH:
            self._soon.wait(PAUSE)
        try:
            while isinstance(items[-1], tuple) and len(items) < BATCH:
                items.append(self.queue.get_nowait())
        except Empty:
            self._soon.clear()
        return items

    def _write(self, recorder: RunRecorder, events: list[Row | Footer]) -> None:
        try:
            self._change(lambda connection: insert_rows(connection, recorder.key, events, recorder.numbers))
        except SpecScopeError as error:  # the next `add` or `close` raises it
            recorder.error = StoreError(str(error))

    def _work(self, job: _Job) -> None:
        try:
            job.result.set_result(self._change(job.work))
        except SpecScopeError as error:
            job.result.set_exception(error)

    def _change(self, work: Callable[[Connection], T]) -> T:
        """Return the result of a transaction in the file that was opened.

        Raises:
            SpecScopeError: It failed; an error of the database is a StoreError.
        """
        try:
            check_stays(self._path, self._file)
            with self._engine.begin() as connection:
                result = work(connection)
            check_stays(self._path, self._file)
        except SpecScopeError:
            raise
        except Exception as error:
            raise explain(error, self._path) from error
        return result


def insert_run(connection: Connection, header: Header, **owner: Any) -> int:
    """Add a run and return its key; UsageError for a header that could not be read again."""
    try:
        check_header(header)
    except ValueError as error:
        raise UsageError(f"run {shown(header.run_id)} cannot be stored: {error}") from None
    values = {**asdict(header), **owner}
    values["version"] = values.pop("schema")
    key = connection.execute(insert(schema.RUN).values(values)).inserted_primary_key
    assert key is not None, "SQLite returns the key of an inserted row"
    return key[0]


class _Insert:
    """The INSERT statement of one kind of row: three times as fast as SQLAlchemy's own."""

    def __init__(self, kind: type[Any]) -> None:
        table = schema.ROWS[kind]
        columns = ", ".join(f'"{column.name}"' for column in table.c)
        self.sql = f'INSERT INTO "{table.name}" ({columns}) VALUES ({", ".join("?" * len(table.c))})'
        self._values = attrgetter(*(column.name for column in schema.COLUMNS[kind]))
        self._encoders = [(i, encode) for i, c in enumerate(table.c) if (encode := schema.encoder(c))]

    def row(self, run: int, number: int, event: Row) -> tuple[Any, ...]:
        values = [run, number, *self._values(event)]
        for column, encode in self._encoders:
            values[column] = encode(values[column])
        return tuple(values)


_INSERTS = {kind: _Insert(kind) for kind in schema.ROWS}


def insert_rows(
    connection: Connection, run: int, events: Iterable[Row | Footer], numbers: dict[type[Any], int]
) -> None:
    rows: dict[type[Any], list[Any]] = {}
    for event in events:
        if isinstance(event, Footer):
            connection.execute(update(schema.RUN).where(schema.RUN.c.id == run).values(asdict(event)))
            continue
        kind = type(event)
        number = numbers[kind] = numbers.get(kind, 0) + 1
        rows.setdefault(kind, []).append(_INSERTS[kind].row(run, number, event))
    for kind, values in rows.items():
        connection.exec_driver_sql(_INSERTS[kind].sql, values)


def is_recording(run_id: str, owner_pid: int | None, owner_start: float | None) -> bool:
    if owner_pid is None or owner_start is None:
        return False
    if owner_pid == os.getpid():
        return run_id in _recording
    try:
        started = psutil.Process(owner_pid).create_time()
    except (psutil.Error, ValueError, OverflowError):  # ended, or not a process id
        return False
    # A clock is corrected by seconds at most; a process id is reused much later.
    return abs(started - owner_start) < 10
