"""The queries of `Store`: functions that read the trace database through a connection."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import LargeBinary, String, and_, cast, func, or_, select, type_coerce
from sqlalchemy.exc import DatabaseError

from engine.errors import SpecScopeError, StoreError, UsageError, shown
from engine.trace.checking import check_types
from engine.trace.events import Commit, Device, Footer, Header, Span, Status
from engine.trace.trace import Trace
from traces import recorder, schema, windows
from traces.checks import check
from traces.database import is_damage
from traces.schema import RUN

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import ColumnElement, Connection, Row

_HEADER = [RUN.c["version" if f.name == "schema" else f.name].label(f.name) for f in fields(Header)]
_FOOTER = [RUN.c[f.name].label(f"footer_{f.name}") for f in fields(Footer)]
_TOKEN = schema.ROWS[Commit]
_SPAN = schema.ROWS[Span]
_RAW_ID = cast(RUN.c.run_id, LargeBinary)
"""A run's id as bytes, which can be read even if they are not UTF-8."""


class Summary(NamedTuple):
    """A stored run without its rows."""

    header: Header
    """Of a damaged run it has the id only."""
    status: Status | Literal["damaged"]
    tokens: int
    seconds: float | None
    """From the run's start to its end; None while it is in progress."""
    decode_seconds: float | None
    """From the end of prefill to the last committed token; None without a token."""
    text: str
    """Of the first sequence; empty while the run is in progress."""
    error: str

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens / decode seconds, as in `traces.metrics`."""
        return self.tokens / self.decode_seconds if self.decode_seconds else None


def page(
    connection: Connection, query: str, method: str, status: str, offset: int, limit: int
) -> tuple[list[Summary], int]:
    """Return a page of the matching runs, newest first, and the number of all matching runs."""
    live = set(recorded(connection))
    where = _filter(query, method, status, live)
    total = connection.scalar(select(func.count()).select_from(RUN).where(where)) or 0
    newest = select(RUN.c.id).where(where).order_by(RUN.c.created.desc(), RUN.c.id.desc())
    keys = connection.scalars(newest.offset(offset).limit(limit)).all()
    return [_summary(connection, key, key in live) for key in keys], total


def load(connection: Connection, run_id: str) -> Trace:
    """Return the trace of a run; see `Store.load`."""
    with undamaged(run_id):
        trace = _read(connection, run_id)
        check(trace)
    return trace


@contextmanager
def undamaged(run_id: str) -> Generator[None]:
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
    row = find(connection, run_id, *_HEADER, *_FOOTER)
    trace = Trace(_header(row))
    for kind, table in schema.ROWS.items():
        columns = [table.c[name] for name in schema.FIELDS[kind]]
        rows = select(*columns).where(table.c.run == row.id).order_by(table.c.number)
        for values in connection.execute(rows).all():
            trace.add(kind(*values))
    trace.footer = _footer(row)
    if trace.footer is None and row.id not in recorded(connection):
        trace.close_incomplete()
    return trace


def header(connection: Connection, run_id: str) -> Header:
    """Return the header of a run; see `Store.header`."""
    with undamaged(run_id):
        return _header(find(connection, run_id, *_HEADER))


def part(connection: Connection, run_id: str, size: windows.Extent, low: int, high: int) -> windows.Part:
    """Return the rows of a window of a run that has ended; see `Store.part`."""
    with undamaged(run_id):
        row = find(connection, run_id, *_HEADER, *_FOOTER)
        return windows.part(connection, size, low, high, _header(row), _footer(row))


def group(connection: Connection, run_id: str) -> list[str]:
    """Return the ids of the runs of the same comparison, in the order they were stored."""
    name = find(connection, run_id, RUN.c.group).group
    same = RUN.c.group == name if name else RUN.c.run_id == run_id
    return list(connection.scalars(select(RUN.c.run_id).where(same).order_by(RUN.c.id)))


def recorded(connection: Connection) -> dict[int, str]:
    """Return {key: id} of the runs that a living process is recording."""
    columns = (RUN.c.id, _RAW_ID, RUN.c.owner_pid, RUN.c.owner_start)
    owned = (func.typeof(RUN.c.owner_pid) == "integer", func.typeof(RUN.c.owner_start) == "real")
    unfinished = connection.execute(select(*columns).where(RUN.c.status.is_(None), *owned))
    named = [(key, _text(raw), owner) for key, raw, *owner in unfinished]
    return {key: run_id for key, run_id, owner in named if recorder.is_recording(run_id, *owner)}


def find(connection: Connection, run_id: str, *columns: ColumnElement[Any]) -> Row[Any]:
    """Return the key (`id`) of a run, and the columns; raise UsageError for an unknown run."""
    row = connection.execute(select(RUN.c.id, *columns).where(RUN.c.run_id == run_id)).first()
    if row is None:
        raise UsageError(f"there is no run {shown(run_id)} in the trace database; the history lists its runs")
    return row


def _filter(query: str, method: str, status: str, live: set[int]) -> ColumnElement[bool]:
    parts: list[ColumnElement[bool]] = [RUN.c.id > 0]
    if query:
        # Prompts and texts are stored as JSON, so the query is compared as JSON writes it.
        escaped = schema.dump(query)[1:-1]
        plain = [c.icontains(query, autoescape=True) for c in (RUN.c.run_id, RUN.c.title, RUN.c.method)]
        coded = (type_coerce(RUN.c.prompts, String), type_coerce(RUN.c.texts, String))
        parts.append(or_(*plain, *(c.icontains(escaped, autoescape=True) for c in coded)))
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
    return Header(**values)


def _footer(row: Row[Any]) -> Footer | None:
    if row.footer_status is None:
        return None
    return Footer(**{f.name: getattr(row, f"footer_{f.name}") for f in fields(Footer)})


def _summary(connection: Connection, key: int, live: bool) -> Summary:
    run_id = _id_of(connection, key)
    try:
        with undamaged(run_id):
            return _undamaged_summary(connection, key, live)
    except StoreError as error:
        header = Header(run_id, "", "", "damaged run", {}, (), (), {}, {}, "", "", (), "", "")
        return Summary(header, "damaged", 0, None, None, "", str(error))


def _undamaged_summary(connection: Connection, key: int, live: bool) -> Summary:
    columns = select(*_HEADER, *_FOOTER)
    row = connection.execute(columns.where(RUN.c.id == key)).one()
    tokens, decode = _speed(connection, key)
    header, footer = _header(row), _footer(row)
    check_types([header])
    check_types(header.devices)
    if footer is None:
        return Summary(header, "running" if live else "incomplete", tokens, None, decode, "", "")
    check_types([footer])
    text = footer.texts[0] if footer.texts else ""
    return Summary(header, footer.status, tokens, footer.time / 1e9, decode, text, footer.error)


def _speed(connection: Connection, key: int) -> tuple[int, float | None]:
    """Return a run's number of tokens and its decode seconds, as `traces.metrics` defines them."""
    tokens, last = connection.execute(
        select(func.count(), func.max(_TOKEN.c.time)).where(_TOKEN.c.run == key)
    ).one()
    prefill = (_SPAN.c.kind == "prefill", _SPAN.c.step == 0)
    begun = connection.scalar(select(func.max(_SPAN.c.end)).where(_SPAN.c.run == key, *prefill))
    return tokens, None if last is None else max(0, last - (begun or 0)) / 1e9


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
