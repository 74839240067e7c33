"""The queries of `Store`: functions that read the trace database through a connection."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sqlalchemy import LargeBinary, and_, cast, func, or_, select
from sqlalchemy.exc import DatabaseError

from engine.errors import SpecScopeError, StoreError, UsageError, shown
from engine.trace.checking import check_types
from engine.trace.events import Device, Footer, Header, Status
from engine.trace.trace import Trace
from traces import listing, recorder, schema, windows
from traces.checks import check
from traces.database import is_damage
from traces.schema import RUN

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import ColumnElement, Connection, Row

_HEADER = [RUN.c["version" if f.name == "schema" else f.name].label(f.name) for f in fields(Header)]
_FOOTER = [RUN.c[f.name].label(f"footer_{f.name}") for f in fields(Footer)]
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
    speedup: float | None = None
    """Over the plain decoding of its race; None without one."""
    load: str = ""
    """The warning that other programs used the machine during the run; else empty."""

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens / decode seconds, as in `traces.metrics`."""
        return self.tokens / self.decode_seconds if self.decode_seconds else None


def page(
    connection: Connection, query: str, method: str, status: str, offset: int, limit: int
) -> tuple[list[Summary], int]:
    """Return a page of the matching runs, newest first, and the number of all matching runs."""
    live = set(recorded(connection))
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
    """Return the header of a run; None if it is damaged."""
    try:
        with undamaged(str(key)):
            found = _header(connection.execute(select(*_HEADER).where(RUN.c.id == key)).one())
            check_types([found])
            return found
    except StoreError:
        return None


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
    return Header(**values)


def _footer(row: Row[Any]) -> Footer | None:
    if row.footer_status is None:
        return None
    return Footer(**{f.name: getattr(row, f"footer_{f.name}") for f in fields(Footer)})


def _summary(connection: Connection, key: int, live: bool, known: listing.Facts) -> Summary:
    run_id = _id_of(connection, key)
    try:
        with undamaged(run_id):
            return _undamaged_summary(connection, key, live, known)
    except StoreError as error:
        header = Header(run_id, "", "", "damaged run", {}, (), (), {}, {}, "", "", (), "", "")
        return Summary(header, "damaged", 0, None, None, "", str(error))


def _undamaged_summary(connection: Connection, key: int, live: bool, known: listing.Facts) -> Summary:
    columns = select(*_HEADER, *_FOOTER)
    row = connection.execute(columns.where(RUN.c.id == key)).one()
    tokens, decode = known.tokens, known.decode_seconds
    header, footer = _header(row), _footer(row)
    check_types([header])
    check_types(header.devices)
    if footer is None:
        return Summary(header, "running" if live else "incomplete", tokens, None, decode, "", "")
    check_types([footer])
    text = footer.texts[0] if footer.texts else ""
    return Summary(
        header,
        footer.status,
        tokens,
        footer.time / 1e9,
        decode,
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
