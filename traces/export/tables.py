"""The tables of a trace: as CSV for a spreadsheet, and as data frames."""

from __future__ import annotations

import csv
from dataclasses import fields
from typing import IO, TYPE_CHECKING, Any, Literal

from specscope.engine.trace.events import Commit, Copied, Decision, Round, Span, Top, Window
from specscope.engine.types import check_choice
from specscope.traces.facts.imported import NO_TOKEN, origin
from specscope.traces.facts.joined import decisions_of_output, joined
from specscope.traces.facts.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specscope.engine.trace.trace import Trace

Table = Literal["tokens", "decisions", "rounds", "copies", "spans", "windows", "figures"]
_DECISION = ("p", "q", "u", "rule")
"""Fields of the decision that are added to each token."""


def usual_table(trace: Trace) -> Table:
    """Return the table of a run that is exported unless another is named."""
    return "windows" if trace.windows and not trace.commits else "tokens"


def write_csv(trace: Trace, table: Table, file: IO[str]) -> None:
    """Write one table with a header line, times in ns; open the file with `newline=""`.

    A time or a token id that the file of an imported run did not hold is an empty cell. A text that
    a spreadsheet would run as a formula gets an apostrophe in front. UsageError: no such table.
    """
    rows = rows_of(trace, table)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([_harmless(v) for v in row] for row in rows)


def rows_of(trace: Trace, table: Table) -> Iterator[list[Any]]:
    """Return the names of a table's columns, then its rows; UsageError: no such table."""
    makers = {
        "tokens": _tokens,
        "decisions": _decisions,
        "rounds": _rounds,
        "copies": _copies,
        "spans": _spans,
        "windows": _windows,
        "figures": _figures,
    }
    check_choice(f"there is no table {table!r}", table, makers)
    return makers[table](trace)


def _names(kind: type[Any]) -> list[str]:
    return [f.name for f in fields(kind)]


def _values(row: Any) -> list[Any]:
    return [getattr(row, name) for name in _names(type(row))]


def _known(trace: Trace, row: Commit | Decision | Round) -> list[Any]:
    """Return the values of a row, None for a time or a token id that is unknown."""
    names, imported = _names(type(row)), origin(trace.header)
    if imported is None:
        return _values(row)
    lost = {"token"} if getattr(row, "token", None) == NO_TOKEN else set[str]()
    lost |= set() if imported.timed else {"time"}
    return [None if name in lost else getattr(row, name) for name in names]


def _spans(trace: Trace) -> Iterator[list[Any]]:
    yield [*_names(Span), "nanoseconds"]
    for span in trace.spans:
        yield [*_values(span), span.end - span.start]


def _windows(trace: Trace) -> Iterator[list[Any]]:
    yield _names(Window)
    for row in trace.windows:
        *values, places, tokens, busy, drafting, running = _values(row)
        yield [*values, " ".join(map(str, places)), tokens, busy, drafting, running]


def _tokens(trace: Trace) -> Iterator[list[Any]]:
    yield [*_names(Commit), *_DECISION]
    decided = decisions_of_output(trace)
    for commit in trace.commits:
        decision = decided.get((commit.sequence, commit.position))
        yield [*_known(trace, commit), *(getattr(decision, name, None) for name in _DECISION)]


def _decisions(trace: Trace) -> Iterator[list[Any]]:
    yield [*_names(Decision), "text"]
    for decision in trace.decisions:
        *values, top_p, top_q = _known(trace, decision)
        yield [*values, _top(top_p), _top(top_q), trace.pieces.get(decision.token, "")]


def _rounds(trace: Trace) -> Iterator[list[Any]]:
    yield _names(Round)
    for row in trace.rounds:
        yield _known(trace, row)


def _figures(trace: Trace) -> Iterator[list[Any]]:
    """Yield one row: the metrics that are numbers, without lists and shares of devices."""
    known = measure(trace).to_dict()
    numbers = {name: value for name, value in known.items() if not isinstance(value, dict | tuple | list)}
    yield [*numbers]
    yield [*numbers.values()]


def _copies(trace: Trace) -> Iterator[list[Any]]:
    yield [*_names(Copied), "accepted", "text"]
    for copy in trace.copies:
        copied = joined(trace).of(copy).nodes.values()
        accepted = sum(d.outcome == "accepted" for d in copied)
        yield [*_values(copy), accepted, "".join(trace.pieces.get(d.token, "") for d in copied)]


def _top(top: Top) -> str:
    return " ".join(f"{token}:{probability:.6g}" for token, probability in top)


def _harmless(value: Any) -> Any:
    return (
        "'" + value
        if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        else value
    )
