"""The tables of the trace database: one for runs, one for each kind of row.

Columns have the names of the events' fields. The key of a row is (run, number): the rows of a run
are stored together, in the order recorded. Times are integer nanoseconds. Texts of a closed set
(kinds, outcomes, ...) are stored as their index in a tuple below. The tuples only grow at the end,
so that old files keep their meaning, and only with a new `VERSION`, so that an older SpecScope
refuses a file with codes that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar, cast

from sqlalchemy import JSON, BigInteger, Column, Index, MetaData, SmallInteger, Table, inspect
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from specscope.engine.trace import events

APPLICATION_ID = 0x53505343
"""In the header of every SpecScope database file ("SPSC"), so that a foreign file is recognised."""
VERSION = 9
"""Number of these tables, in the header of every file (`PRAGMA user_version`)."""
NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

KINDS = (
    *("prefill", "draft", "verify", "pre-verify", "calibrate", "communicate", "sample"),
    *("glue", "branch", "other", "step"),
)
MODELS = ("target", "drafter")
SPAN_OUTCOMES = ("done", "cancelled")
PARTS = ("attention", "exchange")
MODES = ("plain", "verify", "pre-verify", "post-verify")
RULES = ("", "ratio", "match", "target", "typical")
OUTCOMES = ("accepted", "rejected", "discarded", "corrected", "bonus", "plain")
TREES = ("", "own", "finished")
STOPS = ("full", "uncertain", "end", "cancelled", "off", "load")
STATUSES = ("running", "done", "cancelled", "failed", "incomplete")


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


class Frozen(TypeDecorator[Any]):
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


def _json(nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(Frozen, nullable=nullable))


def _code(*names: str, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(Code(*names), nullable=nullable))


def _big() -> Any:
    return Field(sa_type=BigInteger)


def _count() -> Any:
    return Field(default=None, sa_column=Column(BigInteger, nullable=True))


class Base(SQLModel):
    """Base of the tables, with separate metadata."""

    # SQLModel's metaclass declares it, so pyright takes it for an instance variable.
    metadata: ClassVar[MetaData] = MetaData(naming_convention=NAMING_CONVENTION)  # pyright: ignore[reportIncompatibleVariableOverride]


class Run(Base, table=True):
    """A run: its header, and its footer once it has ended (status is null until then)."""

    __table_args__ = ({"sqlite_autoincrement": True},)
    id: int | None = Field(default=None, primary_key=True)
    run_id: str = Field(unique=True)
    created: str = Field(index=True)
    method: str
    title: str
    config: dict[str, Any] = _json()
    prompts: tuple[str, ...] = _json()
    prompt_ids: tuple[tuple[int, ...], ...] = _json()
    sampling: dict[str, Any] = _json()
    limits: dict[str, Any] = _json()
    runtime: str
    profile: str
    devices: tuple[dict[str, str], ...] = _json()
    target_path: str
    drafter_path: str
    environment: dict[str, Any] = _json()
    group: str = Field(index=True)
    lossless: bool
    version: int
    status: str | None = _code(*STATUSES, nullable=True)
    reasons: tuple[str, ...] | None = _json(nullable=True)
    texts: tuple[str, ...] | None = _json(nullable=True)
    time: int | None = Field(default=None, sa_type=BigInteger)
    error: str | None = None
    owner_pid: int | None = None
    """The process that records it; null once imported."""
    owner_start: float | None = None
    """When that process started, in seconds since 1970: process ids are reused."""


class _Row(Base):
    __table_args__: ClassVar[Any] = ({"sqlite_with_rowid": False},)
    run: int = Field(foreign_key="run.id", ondelete="CASCADE", primary_key=True)
    number: int = Field(primary_key=True)


class Span(_Row, table=True):
    """Work on a device."""

    __table_args__ = (Index(None, "run", "start"), {"sqlite_with_rowid": False})
    id: int
    device: str
    kind: str = _code(*KINDS)
    start: int = _big()
    end: int = _big()
    model: str = _code(*MODELS)
    step: int
    sequence: int
    rows: int
    context: int
    outcome: str = _code(*SPAN_OUTCOMES)
    cells: int = _big()
    rank: int


class Part(_Row, table=True):
    """A part of a fuzzy forward."""

    span: int
    kind: str = _code(*PARTS)
    layer: int
    start: int = _big()
    end: int = _big()


class Round(_Row, table=True):
    """A verification and its commit."""

    step: int
    sequence: int
    mode: str = _code(*MODES)
    drafted: int
    accepted: int
    emitted: int
    time: int = _big()
    span: int


class Decision(_Row, table=True):
    """The fate of one token."""

    __table_args__ = (
        Index(None, "run", "step"),
        Index(None, "run", "draft_span"),
        {"sqlite_with_rowid": False},
    )
    step: int
    sequence: int
    node: int
    parent: int
    position: int
    token: int
    p: float | None
    q: float | None
    u: float | None
    rule: str = _code(*RULES)
    outcome: str = _code(*OUTCOMES)
    draft_span: int
    verify_span: int
    top_p: tuple[tuple[int, float], ...] = _json()
    top_q: tuple[tuple[int, float], ...] = _json()


class Token(_Row, table=True):
    """One token of the output: `events.Commit` (COMMIT is a word of SQL)."""

    __table_args__ = (Index(None, "run", "time"), {"sqlite_with_rowid": False})
    step: int
    sequence: int
    position: int
    token: int
    origin: str = _code(*OUTCOMES)
    text: str
    time: int = _big()


class Document(_Row, table=True):
    """A reference text that drafts are copied from."""

    document: int
    tokens: tuple[int, ...] = _json()


class Copied(_Row, table=True):
    """The source of a copied draft."""

    step: int
    sequence: int
    document: int
    start: int
    match: int
    length: int


class Pooled(_Row, table=True):
    """A round's use of a pool of n-grams."""

    step: int
    sequence: int
    model: str = _code(*MODELS)
    window: tuple[tuple[int, ...], ...] = _json()
    tried: tuple[tuple[int, ...], ...] = _json()
    gained: tuple[tuple[int, ...], ...] = _json()
    size: int


class Forked(_Row, table=True):
    """A branch that was drafted for one outcome of a verification."""

    step: int
    sequence: int
    place: int
    token: int
    q: float
    length: int
    taken: bool


class Forecast(_Row, table=True):
    """What a round's draft from suffix trees was expected to bring."""

    step: int
    sequence: int
    tree: str = _code(*TREES)
    match: int
    occurrences: int
    score: float
    drafter: float | None


class Chain(_Row, table=True):
    """A draft: the length asked for, and its end."""

    step: int
    sequence: int
    position: int
    asked: int
    drafted: int
    stop: str = _code(*STOPS)
    span: int


class Piece(_Row, table=True):
    """The text of a token id."""

    token: int
    text: str


class Occupancy(_Row, table=True):
    """A measured sample of a device's load."""

    device: str
    time: int = _big()
    busy: float
    memory: int = _big()
    power: float | None


class Window(_Row, table=True):
    """What an engine counted in a stretch of time."""

    start: int = _big()
    end: int = _big()
    drafter: str
    label: str
    steps: int | None = _count()
    drafts: int | None = _count()
    drafted: int | None = _count()
    accepted: int | None = _count()
    places: tuple[int, ...] = _json()
    tokens: int | None = _count()
    busy: int | None = _count()
    drafting: int | None = _count()
    running: float | None


def _table(model: type[SQLModel]) -> Table:
    table = inspect(model).local_table
    assert isinstance(table, Table), "a mapped class has a table"
    return table


RUN = _table(Run)
ROWS: dict[type[Any], Table] = {
    events.Piece: _table(Piece),
    events.Span: _table(Span),
    events.Part: _table(Part),
    events.Round: _table(Round),
    events.Decision: _table(Decision),
    events.Commit: _table(Token),
    events.Document: _table(Document),
    events.Copied: _table(Copied),
    events.Pooled: _table(Pooled),
    events.Forked: _table(Forked),
    events.Forecast: _table(Forecast),
    events.Chain: _table(Chain),
    events.Occupancy: _table(Occupancy),
    events.Window: _table(Window),
}
"""Its columns are `run`, `number`, and the event's fields."""
COLUMNS: dict[type[Any], list[Column[Any]]] = {event: [*table.c][2:] for event, table in ROWS.items()}


def encoder(column: Column[Any]) -> Callable[[Any], Any] | None:
    if isinstance(column.type, Code):
        return column.type.encode
    return dump if isinstance(column.type, Frozen) else None
