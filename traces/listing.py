"""The list of runs: what a search means, and the speed-ups and the load of the listed runs."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from statistics import fmean, median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import String, case, func, or_, select, type_coerce
from sqlalchemy.exc import DatabaseError

from specscope.engine.checkpoints.forms import model_name
from specscope.engine.trace.events import NO_DEVICES, Commit, Header, Occupancy, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.traces import schema
from specscope.traces.comparable import comparisons, of_cores, share_of_others
from specscope.traces.database import is_damage
from specscope.traces.race import grouped
from specscope.traces.schema import RUN

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection

_TERM = re.compile(r"(?P<name>[a-z-]+):(?P<sign>[<>]=?|=?)(?P<value>\S+)$")
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
TEXTS = ("id", "model", "race")
NUMBERS = ("temperature", "tokens", "speedup")
_DAMAGE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError),
    DatabaseError,
)
BUSY = "load:busy"
"""The search for the runs whose times may be wrong."""


class Search(NamedTuple):
    """A search: all of it must match."""

    words: tuple[str, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    """(one of TEXTS, part of its value)."""
    numbers: tuple[tuple[str, str, float], ...] = ()
    """(one of NUMBERS, sign, number)."""
    busy: bool = False


class Facts(NamedTuple):
    """What a run's rows say."""

    tokens: int
    decode_seconds: float | None
    """From the end of prefill to the last committed token; None without a token."""
    speedup: float | None = None
    """Over the plain decoding of its race; None without one, and for a run that is not done."""
    load: str = ""
    """The warning that other programs used the machine; empty for a quiet one."""

    @property
    def speed(self) -> float:
        return self.tokens / self.decode_seconds if self.decode_seconds else 0.0


def parse(query: str) -> Search:
    """Return a search from words and NAME:VALUE terms, such as `pearl tokens:>50 load:busy`.

    A term of an unknown name, or with a value that is no number, is a word.
    """
    words, texts, numbers, busy = list[str](), list[tuple[str, str]](), list[tuple[str, str, float]](), False
    for word in query.split():
        found = _TERM.match(word)
        name, sign, value = found.group("name", "sign", "value") if found else ("", "", "")
        if word == BUSY:
            busy = True
        elif name in TEXTS:
            texts.append((name, value))
        elif name in NUMBERS and (number := re.fullmatch(r"(\d+(?:\.\d+)?)[x×]?", value)):
            numbers.append((name, sign, float(number[1])))
        else:
            words.append(word)
    return Search(tuple(words), tuple(texts), tuple(numbers), busy)


def matches(connection: Connection, search: Search) -> list[ColumnElement[bool]]:
    """Return the conditions of a search that SQL can check; `fits` checks the others."""
    parts = [_has_word(connection, word) for word in search.words]
    columns = {"id": RUN.c.run_id, "race": RUN.c.group}
    for name, value in search.texts:
        found = columns.get(name)
        parts.append(
            _has_model(connection, value) if found is None else found.icontains(value, autoescape=True)
        )
    heat = _json(RUN.c.sampling, "$.temperature")
    for name, sign, number in search.numbers:
        if name == "temperature":
            parts.append(heat == number if sign in ("", "=") else heat.op(sign)(number))
    return parts


def _has_word(connection: Connection, word: str) -> ColumnElement[bool]:
    # Prompts and texts are stored as JSON, so the word is compared as JSON writes it.
    escaped = schema.dump(word)[1:-1]
    plain = [
        c.icontains(word, autoescape=True) for c in (RUN.c.run_id, RUN.c.title, RUN.c.method, RUN.c.group)
    ]
    coded = (type_coerce(RUN.c.prompts, String), type_coerce(RUN.c.texts, String))
    return or_(*plain, *(c.icontains(escaped, autoescape=True) for c in coded), _has_model(connection, word))


def _has_model(connection: Connection, part: str) -> ColumnElement[bool]:
    """Return whether a model's name has a part; its path is not searched."""
    columns = (RUN.c.target_path, RUN.c.drafter_path)

    def named(path: object) -> bool:
        return isinstance(path, str) and part.lower() in model_name(path).lower()

    return or_(*(c.in_(filter(named, connection.scalars(select(c).distinct()).all())) for c in columns))


def fits(search: Search, found: Facts) -> bool:
    known = {"tokens": float(found.tokens), "speedup": found.speedup}
    for name, sign, number in search.numbers:
        if name in known:
            value = known[name]
            if value is None or not _SIGNS[sign](round(value, 2), number):
                return False
    return bool(found.load) or not search.busy


def needs_facts(search: Search) -> bool:
    return search.busy or any(name != "temperature" for name, _, _ in search.numbers)


def _json(column: Any, path: str) -> Any:
    """Return a value in a JSON column; null for damaged JSON."""
    return case((func.json_valid(column) == 1, func.json_extract(column, path)), else_=None)


def facts(
    connection: Connection, keys: Sequence[int], headers: Callable[[int], Header | None]
) -> dict[int, Facts]:
    """Return the facts of runs, by key; `headers` returns None for a damaged run."""
    try:
        return _facts(connection, keys, headers)
    except _DAMAGE as error:
        if isinstance(error, DatabaseError) and not is_damage(error):
            raise
        if len(keys) == 1:
            return {keys[0]: Facts(0, None)}
        return {key: found for one in keys for key, found in facts(connection, [one], headers).items()}


def _facts(
    connection: Connection, keys: Sequence[int], headers: Callable[[int], Header | None]
) -> dict[int, Facts]:
    races = {k: name for k, name in _select(connection, RUN.c.id, keys, RUN.c.group) if name}
    members = dict[str, list[int]]()
    for key, name in connection.execute(
        select(RUN.c.id, RUN.c.group).where(RUN.c.group.in_(set(races.values()))).order_by(RUN.c.id)
    ).all():
        members.setdefault(name, []).append(key)
    everyone = [*dict.fromkeys([*keys, *(k for race in members.values() for k in race)])]
    known = _speeds(connection, everyone)
    faster = dict[int, float]()
    for race in members.values():
        found = {key: header for key in race if (header := headers(key)) is not None}
        with suppress(*_DAMAGE):  # a damaged run leaves its race without speed-ups
            faster |= _speedups(connection, found, known)
    loads = _loads(connection, keys)
    return {key: known[key]._replace(speedup=faster.get(key), load=loads.get(key, "")) for key in keys}


def _select(connection: Connection, column: Any, keys: Iterable[int], *more: Any) -> list[tuple[Any, ...]]:
    rows = connection.execute(select(column, *more).where(column.in_(list(keys)))).all()
    return [tuple(row) for row in rows]


def _speeds(connection: Connection, keys: Sequence[int]) -> dict[int, Facts]:
    """Return tokens and decode seconds of runs, as `specscope.traces.metrics` defines them."""
    token, span = schema.ROWS[Commit], schema.ROWS[Span]
    ended = {
        key: (count, last)
        for key, count, last in connection.execute(
            select(token.c.run, func.count(), func.max(token.c.time))
            .where(token.c.run.in_(keys))
            .group_by(token.c.run)
        ).all()
    }
    begun = dict(
        connection.execute(
            select(span.c.run, func.max(span.c.end))
            .where(span.c.run.in_(keys), span.c.kind == "prefill", span.c.step == 0)
            .group_by(span.c.run)
        ).all()
    )
    found = dict[int, Facts]()
    for key in keys:
        (count, last), first = ended.get(key, (0, None)), begun.get(key) or 0
        whole = isinstance(last, int) and isinstance(first, int)  # SQLite does not check types
        found[key] = Facts(count, max(0, last - first) / 1e9 if whole else None)
    return found


def _speedups(
    connection: Connection, headers: Mapping[int, Header], known: Mapping[int, Facts]
) -> dict[int, float]:
    done = {key for key, status in _select(connection, RUN.c.id, headers, RUN.c.status) if status == "done"}
    runs = {headers[key].run_id: key for key in headers if key in done and known[key].speed}
    groups = [[runs[h.run_id] for h in group] for group in grouped([headers[key] for key in runs.values()])]
    outlines = [_outline(connection, group[0], headers[group[0]]) for group in groups]
    faster = dict[int, float]()
    for group, (baseline, _) in zip(groups, comparisons([[one] for one in outlines]), strict=True):
        if baseline is not None:
            plain = [known[key].speed for key in groups[baseline]]
            over = fmean(plain) if len(plain) == 2 else median_low(plain)
            faster |= {key: known[key].speed / over for key in group}
    return faster


def _outline(connection: Connection, key: int, header: Header) -> Trace:
    """Return as much of a trace as `traces.comparable` reads: its rounds, a draft and a token."""
    trace = Trace(header)
    for kind, *where in ((Round,), (Span, schema.ROWS[Span].c.model == "drafter"), (Commit,)):
        table = schema.ROWS[kind]
        rows = select(*schema.COLUMNS[kind]).where(table.c.run == key, *where).order_by(table.c.number)
        if kind is not Round:
            rows = rows.where(table.c.step > 0).limit(1)
        for values in connection.execute(rows).all():
            trace.add(kind(*values))
    return trace


def _loads(connection: Connection, keys: Sequence[int]) -> dict[int, str]:
    table, cores = schema.ROWS[Occupancy], _json(RUN.c.environment, "$.cores")
    rows = connection.execute(
        select(table.c.run, cores, table.c.device, table.c.busy, table.c.time)
        .join(RUN, RUN.c.id == table.c.run)
        .where(table.c.run.in_(keys), table.c.device.in_(NO_DEVICES))
    ).all()
    known = dict[tuple[int, Any], list[tuple[str, float, int]]]()
    for key, count, *row in rows:
        known.setdefault((key, count), []).append((row[0], row[1], row[2]))
    loads = {key: of_cores(share_of_others(found), count) for (key, count), found in known.items()}
    return {key: load.warning for key, load in loads.items() if load is not None}
