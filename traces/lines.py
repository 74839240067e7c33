"""The output of one sequence of a stored run: ids and times of all its tokens, rows of some."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select

from engine.trace.events import Commit
from traces import schema
from traces.bins import numbers

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from traces.bins import Numbers

_TOKEN = schema.ROWS[Commit]


class Line(NamedTuple):
    """The tokens of a sequence, in the order committed."""

    ids: Numbers
    times: Numbers
    """Nanoseconds since the run's start."""


def line(connection: Connection, run: int, sequence: int) -> Line:
    """Return the ids and times of a sequence's tokens.

    Args:
        connection: A read transaction.
        run: Key of the run.
        sequence: Index of the sequence.

    Raises:
        ValueError: A number in the database is damaged.
    """
    own = (_TOKEN.c.run == run) & (_TOKEN.c.sequence == sequence)
    return Line(*numbers(connection, own, _TOKEN.c.token, _TOKEN.c.time))


def commits(
    connection: Connection, run: int, sequence: int, first: int, most: int
) -> list[tuple[int, Commit]]:
    """Return some commits of a sequence, each with the number of the run's commits before it.

    Args:
        connection: A read transaction.
        run: Key of the run.
        sequence: Index of the sequence.
        first: Number of the sequence's commits before the first one.
        most: How many, at most.
    """
    columns = [_TOKEN.c[name] for name in ("number", *schema.FIELDS[Commit])]
    own = select(*columns).where(_TOKEN.c.run == run, _TOKEN.c.sequence == sequence)
    rows = connection.execute(own.order_by(_TOKEN.c.number).offset(first).limit(most)).all()
    return [(number - 1, Commit(*values)) for number, *values in rows]
