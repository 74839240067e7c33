"""The list of runs: what a search means, and the speed-ups and the load of the listed runs."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from statistics import fmean, median_low
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import String, case, func, or_, select, tuple_, type_coerce
from sqlalchemy.exc import DatabaseError

from specscope.engine.checkpoints.forms import model_name
from specscope.engine.trace.events import NO_DEVICES, Commit, Header, Occupancy, Round, Span, Window
from specscope.engine.trace.trace import Trace
from specscope.traces.database import schema
from specscope.traces.database.file import is_damage
from specscope.traces.database.schema import RUN
from specscope.traces.facts.comparable import comparisons, of_cores, share_of_others
from specscope.traces.facts.imported import origin
from specscope.traces.judge.race import grouped

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Table

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
BESIDE = 20
"""Runs without drafts among which the baseline of a run of no race is looked for."""
_COMPARED = RUN.c.method != "imported"
"""Runs of other engines are compared with none; a set may have thousands."""
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


class RunFacts(NamedTuple):
    """What a run's rows say."""

    tokens: int | None
    """Of all sequences; None if the file of an imported run does not tell it."""
    tokens_per_second: float | None
    """Of decoding; None without a token, or if unknown."""
    speedup: float | None = None
    """Over plain decoding, see `_speedups`; None without one, and for a run that is not done."""
    load: str = ""
    """The warning that other programs used the machine; empty for a quiet one."""


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


def fits(search: Search, found: RunFacts) -> bool:
    known = {"tokens": found.tokens, "speedup": found.speedup}
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
) -> dict[int, RunFacts]:
    """Return the facts of runs, by key; `headers` returns None for a damaged run."""
    try:
        return _facts(connection, keys, headers)
    except _DAMAGE as error:
        if isinstance(error, DatabaseError) and not is_damage(error):
            raise
        if len(keys) == 1:
            return {keys[0]: RunFacts(0, None)}
        return {key: found for one in keys for key, found in facts(connection, [one], headers).items()}


def _facts(
    connection: Connection, keys: Sequence[int], headers: Callable[[int], Header | None]
) -> dict[int, RunFacts]:
    names = dict(_select(connection, RUN.c.id, keys, RUN.c.group))
    races, alone = _races(connection, {*names.values()} - {""}), [k for k in keys if not names[k]]
    fields = [*races, *_beside(connection, alone)]
    known = _speeds(connection, [*dict.fromkeys([*keys, *(k for field in fields for k in field)])])
    known |= _counted(connection, [key for key in keys if not known[key].tokens], headers)
    faster = dict[int, float]()
    for i, field in enumerate(fields):
        found = {key: header for key in field if (header := headers(key)) is not None}
        with suppress(*_DAMAGE):  # a damaged run leaves its race without speed-ups
            faster |= _speedups(connection, found, known, passes=i < len(races))
    loads = _loads(connection, keys)
    return {key: known[key]._replace(speedup=faster.get(key), load=loads.get(key, "")) for key in keys}


def _races(connection: Connection, names: Collection[str]) -> list[list[int]]:
    races = dict[str, list[int]]()
    rows = select(RUN.c.group, RUN.c.id).where(RUN.c.group.in_(names), _COMPARED).order_by(RUN.c.id)
    for name, key in connection.execute(rows).all():
        races.setdefault(name, []).append(key)
    return [*races.values()]


def _beside(connection: Connection, keys: Collection[int]) -> list[list[int]]:
    """Return runs of no race, each list with those without drafts of the same prompts and target.

    Of these, at most the newest `BESIDE` are looked at.
    """
    if not keys:
        return []
    same = func.dense_rank().over(order_by=(RUN.c.prompt_ids, RUN.c.target_path))
    where = select(RUN.c.id, same).where(RUN.c.group == "", _COMPARED)
    places = {row.id: row[1] for row in connection.execute(where)}
    rounds, asked = schema.ROWS[Round], dict[int, list[int]]()
    for key in filter(places.__contains__, keys):
        asked.setdefault(places[key], []).append(key)
    around = [key for key, n in places.items() if n in asked]
    drafted = select(rounds.c.run).where(rounds.c.run.in_(around), rounds.c.drafted > 0)
    some, found = {*connection.scalars(drafted.distinct()).all()}, list[list[int]]()
    for n, mine in asked.items():
        plain = sorted(key for key in around if places[key] == n and key not in some)[-BESIDE:]
        found.append(sorted({*mine, *plain}))
    return found


def _select(connection: Connection, column: Any, keys: Iterable[int], *more: Any) -> list[tuple[Any, ...]]:
    rows = connection.execute(select(column, *more).where(column.in_(list(keys)))).all()
    return [tuple(row) for row in rows]


def _speeds(connection: Connection, keys: Sequence[int]) -> dict[int, RunFacts]:
    """Return tokens and tokens/s of runs, as `specscope.traces.facts.metrics` defines them."""
    token, span, one = schema.ROWS[Commit], schema.ROWS[Span], schema.ROWS[Round]
    prefills = (span.c.run.in_(keys), span.c.kind == "prefill", span.c.step == 0)
    ended = _by_run(connection, token, keys, func.count(), func.max(token.c.time))
    begun = _by_run(connection, span, keys, func.max(span.c.end), where=prefills)
    late = tuple_(one.c.run, one.c.span).not_in(select(span.c.run, span.c.id).where(*prefills))
    decoded = _by_run(connection, one, keys, func.sum(one.c.emitted), where=(late,))
    found = dict[int, RunFacts]()
    for key in keys:
        (count, last), (first,), (after,) = (
            ended.get(key, (0, None)),
            begun.get(key, (0,)),
            decoded.get(key, (0,)),
        )
        whole = all(isinstance(value, int) for value in (last, first, after))  # SQLite does not check types
        speed = after / (last - first) * 1e9 if whole and after and last > first else None
        found[key] = RunFacts(count, speed)
    return found


def _counted(
    connection: Connection, keys: Sequence[int], headers: Callable[[int], Header | None]
) -> dict[int, RunFacts]:
    """Return the facts of runs without tokens of their own: windows of counts, and totals."""
    table = schema.ROWS[Window]
    time = func.coalesce(table.c.busy, table.c.end - table.c.start)
    count, c = func.count, table.c
    made = func.coalesce(
        case((c.busy.is_not(None), func.min(c.tokens, c.steps + c.accepted))), c.tokens
    )  # `counted.decoded`
    sums = count(), count(c.tokens), func.sum(c.tokens), func.sum(made), func.sum(time), func.min(time)
    found = dict[int, RunFacts]()
    for key, (rows, known, tokens, pace, nanoseconds, least) in _by_run(
        connection, table, keys, *sums, where=(table.c.drafter == "",)
    ).items():
        whole = rows == known and all(isinstance(one, int) for one in (tokens, pace, nanoseconds, least))
        speed = pace / nanoseconds * 1e9 if whole and least > 0 else None
        found[key] = RunFacts(tokens if whole else None, speed)
    for key in keys:
        imported = origin(header) if key not in found and (header := headers(key)) is not None else None
        if imported is not None and ("number of tokens" in imported.unknown or imported.counts):
            found[key] = RunFacts(imported.counts.tokens if imported.counts else None, None)
    return found


def _by_run(
    connection: Connection, table: Table, keys: Sequence[int], *sums: Any, where: Iterable[Any] = ()
) -> dict[int, Sequence[Any]]:
    """Return sums over the rows of each run that has some."""
    rows = select(table.c.run, *sums).where(table.c.run.in_(keys), *where).group_by(table.c.run)
    return {key: values for key, *values in connection.execute(rows).all()}


def _speedups(
    connection: Connection, headers: Mapping[int, Header], known: Mapping[int, RunFacts], *, passes: bool
) -> dict[int, float]:
    """Return the speed-ups of runs as the page and the report of all of them show them.

    In a race, runs with the same settings are `passes` of one method.
    """
    done = {key for key, status in _select(connection, RUN.c.id, headers, RUN.c.status) if status == "done"}
    runs = {headers[key].run_id: key for key in headers if key in done and known[key].tokens_per_second}
    some = [headers[key] for key in runs.values()]
    groups = [[runs[h.run_id] for h in group] for group in (grouped(some) if passes else [[h] for h in some])]
    outlines = [_outline(connection, group[0], headers[group[0]]) for group in groups]
    faster = dict[int, float]()
    for group, (baseline, _) in zip(groups, comparisons([[one] for one in outlines]), strict=True):
        if baseline is not None:
            plain = [known[key].tokens_per_second or 0.0 for key in groups[baseline]]
            over = fmean(plain) if len(plain) == 2 else median_low(plain)
            faster |= {key: (known[key].tokens_per_second or 0.0) / over for key in group}
    return faster


def _outline(connection: Connection, key: int, header: Header) -> Trace:
    """Return as much of a trace as `comparable` reads: its rounds, a draft and a token."""
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
