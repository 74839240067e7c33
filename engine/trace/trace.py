"""A trace in memory. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from specscope.engine.errors import UsageError, named_arguments, shown
from specscope.engine.trace.events import LISTS, Event, Footer, Header, Piece, Row, Status, TraceRows

_NOTEBOOK = "specscope.app.notebook.run"
"""Imported when a notebook asks for a picture or a data frame; see docs/decisions.md."""


@dataclass(repr=False)
class Trace(TraceRows):
    """The header of a run, its rows, and its footer once it has ended.

    Lists of rows grow; a row in them is never replaced, for figures are kept until a list grows.
    """

    header: Header
    footer: Footer | None = field(default=None, kw_only=True)

    def add(self, event: Row | Footer) -> None:
        if isinstance(event, Footer):
            self.footer = event
        elif isinstance(event, Piece):
            self.pieces[event.token] = event.text
        else:
            if type(event) not in LISTS:
                raise UsageError(f"{shown(event)} is no row of a trace")
            getattr(self, LISTS[type(event)]).append(event)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Trace:
        """Return the trace of these events; ValueError unless they begin with the only header."""
        stream = iter(events)
        first = next(stream, None)
        if not isinstance(first, Header):
            raise ValueError("a trace starts with its header")
        trace = cls(first)
        for event in stream:
            if isinstance(event, Header):
                raise ValueError("a trace has one header; this file holds a second one")
            trace.add(event)
        return trace

    def rows(self) -> Iterator[Row]:
        yield from (Piece(t, s) for t, s in self.pieces.items())
        for name in LISTS.values():
            yield from getattr(self, name)

    def events(self) -> Iterator[Event]:
        yield self.header
        yield from self.rows()
        if self.footer is not None:
            yield self.footer

    def new_footer(self, status: Status, error: str = "", reasons: tuple[str, ...] = ()) -> Footer:
        """Return a footer: the committed texts, and the end of the last span or commit.

        `reasons` are per sequence eos, stop, length or empty; all empty unless given.
        """
        parts: list[list[str]] = [[] for _ in self.header.prompts]
        for commit in self.commits:
            if 0 <= commit.sequence < len(parts):
                parts[commit.sequence].append(commit.text)
        texts = tuple(map("".join, parts))
        end = max((*(s.end for s in self.spans), *(c.time for c in self.commits)), default=0)
        return Footer(status, reasons or ("",) * len(texts), texts, end, error)

    def close_incomplete(self) -> None:
        """Add a footer to a trace without one: its run ended badly, or its file was cut."""
        if self.footer is None:
            self.footer = self.new_footer("incomplete", "the run ended without a footer")

    @property
    def status(self) -> Status:
        """The footer's status; `running` without a footer."""
        return self.footer.status if self.footer else "running"

    @property
    def text(self) -> str:
        if self.footer:
            return self.footer.texts[0] if self.footer.texts else ""
        return "".join(c.text for c in self.commits if c.sequence == 0)

    def token_ids(self, sequence: int = 0) -> list[int]:
        return [c.token for c in self.commits if c.sequence == sequence]

    def outputs(self) -> list[list[int]]:
        """Return the token ids of all sequences."""
        ids: list[list[int]] = [[] for _ in self.header.prompts]
        for commit in self.commits:
            ids[commit.sequence].append(commit.token)
        return ids

    def __repr__(self) -> str:
        header = self.header
        tokens = f"{len(self.commits)} tokens, " if self.commits else ""
        return f"Trace({header.method}, {tokens}{self.status}, {header.clock}, run {header.run_id})"

    def _repr_html_(self) -> str:
        return import_module(_NOTEBOOK).html(self)

    @named_arguments
    def frame(self, table: str = "tokens") -> Any:
        """Return one table as a pandas data frame, with the columns of the CSV export.

        The table is `tokens`, `decisions`, `rounds`, `copies`, `spans`, or `figures` (one row).
        UsageError: there is no such table, or no pandas.
        """
        return import_module(_NOTEBOOK).data_frame(self, table)
