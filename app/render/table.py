"""Tables of figures: declared once, shown as text, as HTML and in a notebook; data frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.app.render.html import table, text
from specscope.engine.errors import UsageError

if TYPE_CHECKING:
    import pandas


class Column(NamedTuple):
    """A figure of each row."""

    name: str
    title: str
    form: str = ""
    unit: str = ""
    width: int = 0
    """Of the column in plain text, right-aligned; negative: left-aligned."""

    def text(self, value: Any, missing: str = "–") -> str:
        return missing if value is None else format(value, self.form) + self.unit

    def cell(self, text: str) -> str:
        return f"{text:<{-self.width}}" if self.width < 0 else f"{text:>{self.width}}"


class Table(NamedTuple):
    """Rows of figures by the names of the columns; None is a figure that a row does not have."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]

    @property
    def titles(self) -> list[str]:
        return [column.title for column in self.columns]

    def texts(self, missing: str = "–") -> list[list[str]]:
        return [[column.text(row[column.name], missing) for column in self.columns] for row in self.rows]

    def lines(self) -> Iterator[str]:
        """Yield the head and a line for each row."""
        for texts in (self.titles, *self.texts("-")):
            yield "".join(column.cell(one) for column, one in zip(self.columns, texts, strict=True))

    def html(self, label: str, links: Sequence[str] = ()) -> str:
        """Return a table of the playground; `links` has the first cell of each row as HTML."""
        cells = [[text(one) for one in row] for row in self.texts()]
        for row, link in zip(cells, links, strict=False):
            row[0] = link
        return table(self.titles, cells, label)

    def notebook(self) -> str:
        return figures_table(self.titles, self.texts())


def frame(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> pandas.DataFrame:
    """Return rows as a data frame; UsageError without pandas."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError:
        raise UsageError(
            "a frame needs pandas, which is not installed; install it: pip install pandas"
        ) from None
    return DataFrame([dict(zip(columns, row, strict=True)) for row in rows], columns=[*columns])


def figures_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts: the first column names its row, the others are figures."""
    top = _row("th", head)
    return f'<table style="margin-bottom: 10px"><thead>{top}</thead><tbody>{"".join(_row("td", row) for row in rows)}</tbody></table>'


def _row(cell: str, texts: Sequence[str]) -> str:
    sides = ["left", *["right"] * len(texts)]
    cells = (
        f'<{cell} style="{_CELL}; text-align: {s}">{text(t)}</{cell}>'
        for s, t in zip(sides, texts, strict=False)
    )
    return f"<tr>{''.join(cells)}</tr>"


_CELL = "padding: 2px 10px"
