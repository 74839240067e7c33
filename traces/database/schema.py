"""The tables of the trace database: one for runs, one for each kind of row.

Tables follow from the classes in `specscope.engine.trace.events`: columns have the names of the
fields, and a text of a closed set is stored as its index in the set. The key of a row is (run,
number): the rows of a run are stored together, in the order recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, cast, get_args, get_origin

from pydantic import create_model
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    inspect,
)
from sqlalchemy.types import TypeDecorator, TypeEngine
from sqlmodel import Field, SQLModel

from specscope.engine.schema import Range
from specscope.engine.trace import events

APPLICATION_ID = 0x53505343
"""In the header of every SpecScope database file ("SPSC"), so that a foreign file is recognised."""
VERSION = 10
"""Number of these tables, in the header of every file (`PRAGMA user_version`)."""
ADDED_TO = 8
"""The oldest version to which this one only adds tables: a file of it gets those that it lacks."""
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}
NAMES: dict[type[Any], str] = {events.Commit: "token"}
"""Tables that have not the name of their row: COMMIT is a word of SQL."""
INDEXES: dict[type[Any], tuple[str, ...]] = {
    events.Decision: ("step",),
}
"""Columns with an index, for ranges of long runs: these are the widest rows."""


class Code(TypeDecorator[str]):
    """A text of a closed set, stored as its index in the set."""

    impl = SmallInteger
    cache_ok = True

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self._codes = {name: code for code, name in enumerate(names)}

    def encode(self, name: str | None) -> int | None:
        if name is None:
            return None
        if name not in self._codes:
            raise ValueError(f"{name!r} is none of {', '.join(self.names)}")
        return self._codes[name]

    def bind_processor(self, dialect: Any) -> Any:  # noqa: ARG002
        return self.encode

    def result_processor(self, dialect: Any, coltype: Any) -> Any:  # noqa: ARG002
        """Return the function index -> text: a plain look-up, as it runs for every row."""
        return {None: None, **dict(enumerate(self.names))}.__getitem__


class FrozenJson(TypeDecorator[Any]):
    """JSON whose lists are read as tuples, as events hold them; mappings stay mappings."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> Any:  # noqa: ARG002
        return _tuples(value)


def _tuples(value: Any) -> Any:
    """Return tuples for lists; a call per list, not per value, as it runs for every row."""
    if not isinstance(value, list):
        return value
    return tuple([_tuples(v) if isinstance(v, list) else v for v in cast("list[Any]", value)])


def dump(value: Any) -> str:
    """Return compact JSON without escapes, so that text searches find words in it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Base(SQLModel):
    """Base of the tables, with separate metadata."""

    # SQLModel's metaclass declares it, so pyright takes it for an instance variable.
    metadata: ClassVar[MetaData] = MetaData(naming_convention=NAMING_CONVENTION)  # pyright: ignore[reportIncompatibleVariableOverride]


class _Run(Base):
    __table_args__ = ({"sqlite_autoincrement": True},)
    id: int | None = Field(default=None, primary_key=True)


class _Row(Base):
    __table_args__ = ({"sqlite_with_rowid": False},)
    run: int = Field(foreign_key="run.id", ondelete="CASCADE", primary_key=True)
    number: int = Field(primary_key=True)


_PLAIN: dict[Any, type[TypeEngine[Any]]] = {str: String, bool: Boolean, int: Integer, float: Float}


def _column(hint: Any, *, nullable: bool = False, **options: Any) -> Any:
    """Return the column of a field with this type."""
    parts = get_args(hint)
    if NoneType in parts:
        return _column(next(part for part in parts if part is not NoneType), nullable=True)
    if get_origin(hint) is Annotated:
        kind, allowed = parts
        if not isinstance(allowed, Range):
            return _column(allowed, nullable=nullable)
        found: Any = BigInteger if allowed.big else _PLAIN[kind]
    elif get_origin(hint) is Literal:
        found = Code(*parts)
    else:
        found = _PLAIN.get(hint, FrozenJson)
    return Any, Field(default=None, sa_column=Column(found, nullable=nullable, **options))


def _table(name: str, base: type[SQLModel], columns: Mapping[str, Any]) -> Table:
    model = create_model(name, __base__=base, __cls_kwargs__={"table": True}, **columns)
    table = inspect(model).local_table
    assert isinstance(table, Table), "a mapped class has a table"
    return table


def _run() -> Table:
    """Return the table of headers, footers (null until a run has ended), and who records a run."""
    options = {"run_id": {"unique": True}, "created": {"index": True}, "group": {"index": True}}
    header = {**events.types_of(events.Header), "version": int}
    del header["schema"]
    columns = {name: _column(hint, **options.get(name, {})) for name, hint in header.items()}
    columns |= {name: _column(hint, nullable=True) for name, hint in events.types_of(events.Footer).items()}
    owner = {"owner_pid": int, "owner_start": float}
    return _table("run", _Run, columns | {name: _column(hint, nullable=True) for name, hint in owner.items()})


def _row(kind: type[events.Row]) -> Table:
    columns = {name: _column(hint) for name, hint in events.types_of(kind).items()}
    table = _table(NAMES.get(kind, kind.tag), _Row, columns)
    for name in INDEXES.get(kind, ()):
        Index(None, table.c.run, table.c[name])
    return table


RUN = _run()
"""A run. The process that records it is `owner_pid`, null once imported, and started at
`owner_start`, in seconds since 1970: process ids are reused."""
ROWS = {kind: _row(kind) for kind in events.KINDS}
"""Its columns are `run`, `number`, and the event's fields."""
COLUMNS: dict[type[Any], list[Column[Any]]] = {event: [*table.c][2:] for event, table in ROWS.items()}


def names(column: Column[Any]) -> tuple[str, ...]:
    """Return the closed set of a column's texts, by code; empty if it has none."""
    return column.type.names if isinstance(column.type, Code) else ()


def encoder(column: Column[Any]) -> Callable[[Any], Any] | None:
    if isinstance(column.type, Code):
        return column.type.encode
    return dump if isinstance(column.type, FrozenJson) else None
