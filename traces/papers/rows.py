"""Rows of the comparison with the papers, and the published numbers in `assets/papers`.

A kind says how a number of ours is computed. `exact`: an algorithm or a model of ours that must
give the printed digits. `copied`: the printed number is itself an input of ours. `arithmetic`: a
ratio, product or extreme of printed numbers, without a model of ours. `closed form`: a formula with
the paper's own inputs. `simulated`: a run or a drawn sample in virtual time. `measured`: wall time
of this machine. `published only`: no number of ours.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "papers"

Kind = Literal["exact", "copied", "arithmetic", "closed form", "simulated", "measured", "published only"]
Group = Literal["exact", "repeated", "predicted", "easy", "fitted", "not printed", "published only"]
WITHIN = 0.15
"""A prediction hits if it differs from the published number by at most this share."""


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One published number and ours."""

    row: str
    published: float | None
    ours: float | None
    kind: Kind
    assumption: str = ""
    """What the number of ours assumes; behind a missed one, the reason follows."""
    reason: str = ""
    """Why the prediction may miss, kept only if it does."""
    fitted: bool = False
    """A parameter was fitted to this row, so that the row proves nothing."""
    easy: bool = False
    """The prediction can hardly miss by more than `WITHIN`: the reason is in `assumption`."""
    paper: str = ""
    item: str = ""
    method: str = ""
    """Key of the method whose number it is; empty for none of ours."""

    @property
    def difference(self) -> float | None:
        """Ours over published, less 1; the plain difference if the published number is 0."""
        if self.published is None or self.ours is None:
            return None
        return self.ours / self.published - 1 if self.published else self.ours

    @property
    def group(self) -> Group:
        match self.kind:
            case "exact" | "published only":
                return self.kind
            case "copied" | "arithmetic":
                return "repeated"
            case _ if self.fitted:
                return "fitted"
            case _ if self.published is None:
                return "not printed"
            case _:
                return "easy" if self.easy else "predicted"

    @property
    def predicted(self) -> bool:
        return self.group == "predicted"

    @property
    def hit(self) -> bool:
        return self.difference is not None and abs(self.difference) <= WITHIN

    @property
    def missed(self) -> bool:
        return self.predicted and not self.hit

    def to_dict(self) -> dict[str, Any]:
        return {
            "paper": self.paper,
            "item": self.item,
            "row": self.row,
            "published": None if self.published is None else _rounded(self.published),
            "ours": None if self.ours is None else _rounded(self.ours),
            "difference": None if self.difference is None else _rounded(self.difference),
            "kind": self.kind,
            "assumption": f"{self.assumption} Missed: {self.reason}" if self.missed else self.assumption,
            "fitted": self.fitted,
            "easy": self.easy,
        }


@dataclass(frozen=True, slots=True)
class Heat:
    """Ratios over drafter latency (first axis) and acceptance rate."""

    title: str
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class TableCell:
    """A number of a table; `part` is its table's name where an item has several."""

    part: str
    row: str
    column: str
    number: float | None
    table: Mapping[str, Any]
    line: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the file says about the row that is made of it."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.part, self.row, self.column)))

    @property
    def others(self) -> dict[str, float]:
        """The numbers of its row, by column."""
        return row_of(self.table, self.row) if self.column and self.row in self.table else {}

    def column_of(self, row: str) -> float:
        """Return the number of another row in its column."""
        return row_of(self.table, row)[self.column]


Formula = Callable[[TableCell], float | Mapping[str, Any] | None]
"""Our number for a cell, or a mapping with `ours`, words of texts, and what else differs."""


class Paper:
    """A paper's file, and the formulas by which its rows are computed.

    The file's `compare` has a list of lines for each table and figure. A line makes a row of each
    cell whose name `of` matches (all by default): `name` is that of the row, `ours` the formula,
    none if the number is published only, `how` and `why` its texts. Lines in one list are applied
    to a cell together. The cells are those of the item's table or of `table`, all combinations of
    `over`, which are not printed, or the one number `published`. Other keys are for formulas.
    `how` has, by name, what rows share: `kind`, `text` (the assumption), `reason`, `fitted` and
    `easy`; `why` has reasons of some rows only. `methods` says whose number a row is.
    """

    def __init__(
        self,
        key: str,
        formulas: Mapping[str, Formula],
        maps: Mapping[str, Callable[[], Sequence[Heat]]] | None = None,
    ) -> None:
        self.key, self.formulas, self.maps = key, formulas, maps or {}
        self.numbers = numbers(key)

    @property
    def title(self) -> str:
        return str(self.numbers["title"])

    @property
    def name(self) -> str:
        """The title's beginning, as in `PEARL`."""
        return self.title.partition(":")[0]

    @property
    def inconsistencies(self) -> Sequence[str]:
        """Numbers of the paper that contradict each other, a sentence each."""
        return self.numbers["inconsistencies"]

    @property
    def items(self) -> list[str]:
        """The tables and figures."""
        return list(self.numbers["compare"])

    def rows(self) -> Iterator[PaperRow]:
        for item in self.items:
            yield from self.rows_of(item)

    def rows_of(self, item: str) -> Iterator[PaperRow]:
        groups = [group if isinstance(group, list) else [group] for group in self.numbers["compare"][item]]
        for source, block in groupby(groups, lambda group: _source(group[0], item)):
            lines = list(block)
            for part, table in parts(self.numbers[source]) if source else [("", {})]:
                for group in lines:
                    found = cells(table, part=part) if source else _own_cells(group[0])
                    yield from (
                        self._row(item, replace(cell, line=line))
                        for cell in found
                        for line in group
                        if re.fullmatch(line.get("of", ".*"), cell.name)
                    )

    def _row(self, item: str, cell: TableCell) -> PaperRow:
        line = cell.line
        found = self.formulas[line["ours"]](cell) if "ours" in line else None
        told = found if isinstance(found, Mapping) else {"ours": found}
        place = {"part": cell.part, "row": cell.row, "column": cell.column, "number": cell.number}
        words: dict[str, Any] = {**cell.others, **place, **line, **told}
        name = words.get("name", "{row}, {column}" if cell.column else "{row}").format(**words)
        how, why = self.numbers["how"][words["how"]], words.get("why")
        return PaperRow(
            name,
            told.get("published", cell.number) if words.get("printed", True) else None,
            told.get("ours"),
            kind=how["kind"],
            assumption=how["text"].format(**words),
            reason=self.numbers["why"][why] if why else how.get("reason", ""),
            fitted=words.get("fitted", False) or how.get("fitted", False),
            easy=how.get("easy", False),
            paper=self.key,
            item=item,
            method=self.method_of(f"{item}: {name}"),
        )

    def method_of(self, name: str) -> str:
        """Return the method whose number a row is, named as `Table 1: row`."""
        found = (key for pattern, key in self.numbers["methods"] if re.search(pattern, name))
        return next(found, self.numbers["method"])


def anchor(paper: str, item: str) -> str:
    """Return the id of a table or figure in the page; a link to it unfolds its rows."""
    return f"papers-{paper}-{re.sub('[^a-z0-9]+', '-', item.lower()).strip('-')}"


@cache
def numbers(key: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{key}.toml").read_text(encoding="utf-8"))


def row_of(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the numbers of a table's row by column."""
    return dict(zip(map(str, table["columns"]), table[name], strict=True))


def cells(table: Mapping[str, Any], *names: str, part: str = "") -> Iterator[TableCell]:
    """Yield the numbers of a table's rows, by default of all. Empty cells are nan."""
    for name in names or table:
        values = table[name]
        if isinstance(values, (int, float)):
            yield TableCell(part, name, "", values, table)
        elif name != "columns" and isinstance(values, list) and isinstance(values[0], (int, float)):
            for column, number in row_of(table, name).items():
                if not math.isnan(number):
                    yield TableCell(part, name, column, number, table)


def _source(line: Mapping[str, Any], item: str) -> str:
    """Return the name of a line's table; empty if it has cells of its own."""
    return "" if line.keys() & {"over", "published"} else line.get("table", item)


def parts(table: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tables of a table, with its columns if they have none; itself if it has rows."""
    shared = {"columns": table["columns"]} if "columns" in table else {}
    return [(name, shared | part) for name, part in table.items() if isinstance(part, dict)] or [("", table)]


def _own_cells(line: Mapping[str, Any]) -> Iterator[TableCell]:
    if "published" in line:
        yield TableCell("", "", "", line["published"], {})
    else:
        for place in product(*line["over"]):
            *part, row, column = [*map(str, place), *[""] * (len(place) == 1)]
            yield TableCell("".join(part), row, column, None, {})


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")
