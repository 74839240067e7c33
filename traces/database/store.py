"""The trace database: an SQLite file, written by one thread, read by any."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import LargeBinary, and_, cast, delete, func, or_, select
from sqlalchemy.exc import DatabaseError

from specscope.engine.errors import SpecScopeError, StoreError, UsageError, shown
from specscope.engine.trace.events import Device, Footer, Header, Round, Span, Status, Window
from specscope.engine.trace.header import check_header
from specscope.engine.trace.jsonl import check_types
from specscope.engine.trace.trace import Trace
from specscope.traces.database import file, listing, long, recorder, schema
from specscope.traces.database.file import default_path, is_damage
from specscope.traces.database.recorder import BatchWriter, RunRecorder, insert_rows, insert_run
from specscope.traces.database.schema import RUN
from specscope.traces.facts.checks import check

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Row

    from specscope.engine.trace.events import Event
    from specscope.engine.trace.events import Row as AnyRow
    from specscope.traces.database.long import Extent, Numbers, RangeRows, SpanTable, StoredOutput

__all__ = ["RunRecorder", "Store", "Summary", "default_path"]
OUTLINED = 500
"""Runs whose outlines are read at once."""
_HEADER = [RUN.c["version" if f.name == "schema" else f.name].label(f.name) for f in fields(Header)]
_FOOTER = [RUN.c[f.name].label(f"footer_{f.name}") for f in fields(Footer)]
_RAW_ID = cast(RUN.c.run_id, LargeBinary)
"""A run's id as bytes, which can be read even if they are not UTF-8."""


class Summary(NamedTuple):
    """A stored run without its rows."""

    header: Header
    """Of a damaged run it has the id only."""
    status: Status | Literal["damaged"]
    tokens: int | None
    """None if the file of an imported run does not tell it."""
    seconds: float | None
    tokens_per_second: float | None
    """Of decoding, see `specscope.traces.facts.metrics`; None without a token, or if unknown."""
    text: str
    """Of the first sequence; empty while the run is in progress."""
    error: str
    speedup: float | None = None
    """Over plain decoding, as the page and a report show it; None without one."""
    load: str = ""


class Store:
    """An open trace database; a context manager, safe to use from several threads.

    All methods raise StoreError if the database cannot be read or written.
    """

    def __init__(self, path: str | Path | None = None, *, readonly: bool = False) -> None:
        self.path = Path(path) if path is not None else default_path()
        self._engine = file.open_engine(self.path, readonly=readonly)
        self._file = file.identity(self.path)
        self._writer = None if readonly else BatchWriter(self._engine, self.path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._engine.dispose()

    def record(self, header: Header) -> RunRecorder:
        """Store a header now and return the recorder for the run's events."""
        return self._writing().record(header)

    @contextmanager
    def listening(self) -> Generator[Callable[[Event], None]]:
        """Yield a listener that records one run, from its header on."""
        with ExitStack() as stack:
            recorder: RunRecorder | None = None

            def listen(event: Event) -> None:
                nonlocal recorder
                if isinstance(event, Header):
                    recorder = stack.enter_context(self.record(event))
                elif recorder is not None:
                    recorder.add(event)

            yield listen

    def insert(self, *traces: Trace) -> None:
        """Store whole traces in one transaction, under their ids.

        A stored run is never replaced.
        """
        self._writing().call(lambda connection: _insert(connection, traces))

    def insert_missing(self, *traces: Trace) -> None:
        """Store the traces whose ids are not stored, in one transaction."""

        def work(connection: Connection) -> None:
            ids = [trace.header.run_id for trace in traces]
            stored = set(connection.scalars(select(RUN.c.run_id).where(RUN.c.run_id.in_(ids))))
            _insert(connection, [trace for trace in traces if trace.header.run_id not in stored])

        self._writing().call(work)

    def replace(self, trace: Trace) -> None:
        """Store a run in place of the rows that were recorded of it, in one transaction."""

        def work(connection: Connection) -> None:
            connection.execute(delete(RUN).where(RUN.c.run_id == trace.header.run_id))
            _insert(connection, [trace])

        self._writing().call(work)

    def delete(self, run_ids: Iterable[str]) -> int:
        """Delete runs with all their rows, none if one is being recorded; return how many."""
        wanted = set(run_ids)

        def work(connection: Connection) -> int:
            if running := wanted & set(_recorded(connection).values()):
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

        All words of the query (in the id, the title, the method, a model's name, the race, a prompt
        or the output) and all its terms (`tokens:>50`, see `listing.parse`) must match.
        """
        with self._reading() as connection:
            return _page(connection, query, method, status, offset, limit)

    def load(self, run_id: str) -> Trace:
        """Return the trace of a run; of a run in progress, the rows stored so far.

        A run that ended without a footer gets one with status `incomplete`.
        """
        with self._reading() as connection, _undamaged(run_id):
            trace = _read(connection, run_id)
            check(trace)
        return trace

    def named(self, names: Iterable[str]) -> list[str]:
        """Return the ids of runs; a name is an id or that of a set, the group of a file's runs."""
        with self._reading() as connection:
            return list(dict.fromkeys(run_id for name in names for run_id in _named(connection, name)))

    def outlines(self, names: Iterable[str]) -> Generator[Trace]:
        """Yield runs with header, prefill before decoding, rounds, windows and footer only.

        Names are those of `named`.
        """
        ids = self.named(names)
        for first in range(0, len(ids), OUTLINED):
            with self._reading() as connection:
                yield from _outlines(connection, ids[first : first + OUTLINED])

    def header(self, run_id: str) -> Header:
        with self._reading() as connection, _undamaged(run_id):
            return _header(_find(connection, run_id, *_HEADER))

    def has(self, run_id: str) -> bool:
        """Return whether there is a run of this id, which may be damaged."""
        with self._reading() as connection:
            return connection.scalar(select(RUN.c.id).where(RUN.c.run_id == run_id)) is not None

    def extent(self, run_id: str) -> Extent | None:
        with self._reading() as connection, _undamaged(run_id):
            return long.extent(connection, run_id)

    def columns(self, run_id: str, size: Extent) -> tuple[SpanTable, dict[str, Numbers]]:
        """Return the spans and the rounds of a run."""
        with self._reading() as connection, _undamaged(run_id):
            header = _header(_find(connection, run_id, *_HEADER))
            return long.spans(connection, size.key, header), long.rounds(connection, size.key)

    def opening(self, run_id: str, size: Extent, rounds: int) -> RangeRows:
        """Return the rows of the run's first rounds."""
        with self._reading() as connection, _undamaged(run_id):
            last = long.first_steps(connection, size.key, rounds)
            return long.rows_of(connection, size.key, _outline(connection, run_id), 0, last)

    def steps(self, run_id: str, first: int, last: int, most: int) -> RangeRows | None:
        """Return the rows of a range of steps; None if it has more than `most` rounds."""
        with self._reading() as connection, _undamaged(run_id):
            key = _find(connection, run_id).id
            if long.are_many(connection, key, first, last, most):
                return None
            return long.rows_of(connection, key, _outline(connection, run_id), first, last)

    def spans_and_rounds(self, run_id: str) -> Trace:
        """Return a run without its tokens and decisions."""
        with self._reading() as connection, _undamaged(run_id):
            key = _find(connection, run_id).id
            return long.spans_and_rounds(connection, key, _outline(connection, run_id))

    def output(self, run_id: str, size: Extent) -> StoredOutput:
        with self._reading() as connection, _undamaged(run_id):
            return long.output(connection, size.key, _header(_find(connection, run_id, *_HEADER)))

    def group(self, run_id: str) -> list[str]:
        """Return the ids of the runs compared with this one, its own included, oldest first.

        The group of an imported run is a set, whose runs are not compared.
        """
        with self._reading() as connection:
            found = _find(connection, run_id, RUN.c.group, RUN.c.method)
            raced = found.group and found.method != "imported"
            same = RUN.c.group == found.group if raced else RUN.c.run_id == run_id
            return list(connection.scalars(select(RUN.c.run_id).where(same).order_by(RUN.c.id)))

    def _writing(self) -> BatchWriter:
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading only; open it without readonly")
        return self._writer

    @contextmanager
    def _reading(self) -> Generator[Connection]:
        """Return a connection in one read transaction: it sees one state of the file."""
        file.check_stays(self.path, self._file)
        with file.explained(self.path), self._engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            yield connection


def _insert(connection: Connection, traces: Iterable[Trace]) -> None:
    for trace in traces:
        rows = [*trace.rows(), *([trace.footer] if trace.footer else [])]
        insert_rows(connection, insert_run(connection, trace.header), rows, {})


def _page(
    connection: Connection, query: str, method: str, status: str, offset: int, limit: int
) -> tuple[list[Summary], int]:
    live = set(_recorded(connection))
    search = listing.parse(query)
    where = _filter(connection, search, method, status, live)
    keys = connection.scalars(
        select(RUN.c.id).where(where).order_by(RUN.c.created.desc(), RUN.c.id.desc())
    ).all()
    if listing.needs_facts(search):
        known = listing.facts(connection, keys, lambda key: _header_of(connection, key))
        keys = [key for key in keys if listing.fits(search, known[key])]
    shown_keys = keys[offset : offset + limit]
    known = listing.facts(connection, shown_keys, lambda key: _header_of(connection, key))
    return [_summary(connection, key, key in live, known[key]) for key in shown_keys], len(keys)


def _header_of(connection: Connection, key: int) -> Header | None:
    try:
        with _undamaged(str(key)):
            return _header(connection.execute(select(*_HEADER).where(RUN.c.id == key)).one())
    except StoreError:
        return None


@contextmanager
def _undamaged(run_id: str) -> Generator[None]:
    """Turn the errors that a damaged value raises into a StoreError that names the run."""
    try:
        yield
    except SpecScopeError:
        raise
    except DatabaseError as error:
        if not is_damage(error):
            raise
        raise _damaged(run_id, error.orig or error) from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise _damaged(run_id, error) from error


def _damaged(run_id: str, error: BaseException) -> StoreError:
    text = " ".join(str(error).split()) or type(error).__name__
    cut = text if len(text) <= 100 else f"{text[:100]}…"
    return StoreError(f"run {run_id} is damaged ({cut}); delete it, or restore a copy of the database")


def _read(connection: Connection, run_id: str) -> Trace:
    trace, key = _outline(connection, run_id), _find(connection, run_id).id
    for kind in schema.ROWS:
        long.read(connection, key, trace, kind)
    if trace.footer is None and key not in _recorded(connection):
        trace.close_incomplete()
    return trace


def _named(connection: Connection, name: str) -> list[str]:
    """Return the ids of the runs of a set, or of one run."""
    if connection.execute(select(RUN.c.id).where(RUN.c.run_id == name)).first() is None and name:
        query = select(RUN.c.run_id).where(RUN.c.group == name).order_by(RUN.c.id)
        if found := list(connection.scalars(query)):
            return found
    _find(connection, name)
    return [name]


def _outlines(connection: Connection, ids: Sequence[str]) -> Iterator[Trace]:
    columns = (RUN.c.id, *_HEADER, *_FOOTER)
    stored = {row.run_id: row for row in connection.execute(select(*columns).where(RUN.c.run_id.in_(ids)))}
    rows, span = dict[int, "list[AnyRow]"](), schema.ROWS[Span].c
    for kind, *where in ((Span, span.kind == "prefill", span.step == 0), (Round,), (Window,)):
        table = schema.ROWS[kind]
        mine = table.c.run.in_([row.id for row in stored.values()])
        query = select(table.c.run, *schema.COLUMNS[kind]).where(mine, *where)
        for key, *values in connection.execute(query.order_by(table.c.run, table.c.number)):
            rows.setdefault(key, []).append(kind(*values))
    for run_id in ids:
        if (row := stored.get(run_id)) is not None:
            with _undamaged(run_id):
                trace = Trace(_header(row))
                for one in rows.get(row.id, ()):
                    trace.add(one)
                trace.footer = _footer(row)
                check(trace)
            yield trace


def _outline(connection: Connection, run_id: str) -> Trace:
    """Return a run without its rows."""
    row = _find(connection, run_id, *_HEADER, *_FOOTER)
    return Trace(_header(row), footer=_footer(row))


def _recorded(connection: Connection) -> dict[int, str]:
    """Return {key: id} of the runs that a living process is recording."""
    columns = (RUN.c.id, _RAW_ID, RUN.c.owner_pid, RUN.c.owner_start)
    owned = (func.typeof(RUN.c.owner_pid) == "integer", func.typeof(RUN.c.owner_start) == "real")
    unfinished = connection.execute(select(*columns).where(RUN.c.status.is_(None), *owned))
    named = [(key, _text(raw), owner) for key, raw, *owner in unfinished]
    return {key: run_id for key, run_id, owner in named if recorder.is_recording(run_id, *owner)}


def _find(connection: Connection, run_id: str, *columns: ColumnElement[Any]) -> Row[Any]:
    row = connection.execute(select(RUN.c.id, *columns).where(RUN.c.run_id == run_id)).first()
    if row is None:
        raise UsageError(f"there is no run {shown(run_id)} in the trace database; the history lists its runs")
    return row


def _filter(
    connection: Connection, search: listing.Search, method: str, status: str, live: set[int]
) -> ColumnElement[bool]:
    parts: list[ColumnElement[bool]] = [RUN.c.id > 0, *listing.matches(connection, search)]
    if method:
        parts.append(RUN.c.method == method)
    if status == "running":
        parts.append(and_(RUN.c.status.is_(None), RUN.c.id.in_(live)))
    elif status == "incomplete":
        parts.append(or_(RUN.c.status == status, and_(RUN.c.status.is_(None), RUN.c.id.not_in(live))))
    elif status:
        parts.append(RUN.c.status == status)
    return and_(*parts)


def _header(row: Row[Any]) -> Header:
    values: dict[str, Any] = {f.name: getattr(row, f.name) for f in fields(Header)}
    values["devices"] = tuple(Device(**d) for d in values["devices"])
    header = Header(**values)
    check_header(header)
    return header


def _footer(row: Row[Any]) -> Footer | None:
    if row.footer_status is None:
        return None
    return Footer(**{f.name: getattr(row, f"footer_{f.name}") for f in fields(Footer)})


def _summary(connection: Connection, key: int, live: bool, known: listing.RunFacts) -> Summary:
    run_id = _id_of(connection, key)
    try:
        with _undamaged(run_id):
            return _undamaged_summary(connection, key, live, known)
    except StoreError as error:
        header = Header(run_id, "", "", "damaged run", {}, (), (), {}, {}, "", "", (), "", "")
        return Summary(header, "damaged", 0, None, None, "", str(error))


def _undamaged_summary(connection: Connection, key: int, live: bool, known: listing.RunFacts) -> Summary:
    columns = select(*_HEADER, *_FOOTER)
    row = connection.execute(columns.where(RUN.c.id == key)).one()
    tokens, speed = known.tokens, known.tokens_per_second
    header, footer = _header(row), _footer(row)
    if footer is None:
        return Summary(header, "running" if live else "incomplete", tokens, None, speed, "", "")
    check_types([footer])
    text = footer.texts[0] if footer.texts else ""
    return Summary(
        header,
        footer.status,
        tokens,
        footer.time / 1e9,
        speed,
        text,
        footer.error,
        known.speedup,
        known.load,
    )


def _id_of(connection: Connection, key: int) -> str:
    """Return a run's id, with invalid bytes replaced; its key if the id cannot be read."""
    try:
        return _text(connection.scalar(select(_RAW_ID).where(RUN.c.id == key)))
    except DatabaseError as error:
        if not is_damage(error):
            raise
        return f"row {key}"


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
