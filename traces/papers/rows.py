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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
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
class Row:
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

    def to_dict(self) -> dict[str, Any]:
        missed = self.predicted and not self.hit
        return {
            "paper": self.paper,
            "item": self.item,
            "row": self.row,
            "published": None if self.published is None else _rounded(self.published),
            "ours": None if self.ours is None else _rounded(self.ours),
            "difference": None if self.difference is None else _rounded(self.difference),
            "kind": self.kind,
            "assumption": f"{self.assumption} Missed: {self.reason}" if missed else self.assumption,
            "fitted": self.fitted,
            "easy": self.easy,
        }


@dataclass(frozen=True, slots=True)
class Heat:
    """Ratios over drafter latency (first axis) and acceptance rate."""

    title: str
    values: np.ndarray


Item = Callable[[], Iterable[Row]]
Entry = tuple[str, float | None, float | None]
"""(name, published number, ours) of a row."""


class Paper:
    """A paper's numbers (its TOML file), and the functions that compute its tables and figures.

    The file's `how` has, by name, what rows share: `kind`, `text` (the assumption), `reason`,
    `fitted` and `easy`; `why` has reasons of some rows only. `methods` says whose number a row is.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.numbers = numbers(key)
        self.maps: dict[str, Callable[[], Sequence[Heat]]] = {}
        self._known: dict[str, Item] = {}

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
    def items(self) -> Mapping[str, Item]:
        """The tables and figures, in the order of the file's `items`."""
        return {name: self._known[name] for name in self.numbers["items"]}

    def item(self, *names: str) -> Callable[[Callable[..., Iterable[Row]]], Callable[..., Iterable[Row]]]:
        """Register a function as that of a table or figure; one of several items gets the name."""

        def register(compute: Callable[..., Iterable[Row]]) -> Callable[..., Iterable[Row]]:
            self._known |= {name: partial(compute, name) if len(names) > 1 else compute for name in names}
            return compute

        return register

    def row(
        self,
        name: str,
        published: float | None,
        ours: float | None,
        how: str,
        why: str = "",
        *,
        fitted: bool = False,
        **words: object,
    ) -> Row:
        """Return a row; `words` fill the braces of the text in `how`."""
        shared = self.numbers["how"][how]
        return Row(
            name,
            published,
            ours,
            kind=shared["kind"],
            assumption=shared["text"].format(**words),
            reason=self.numbers["why"][why] if why else shared.get("reason", ""),
            fitted=fitted or shared.get("fitted", False),
            easy=shared.get("easy", False),
        )

    def rows_of(
        self, entries: Iterable[Entry], how: str, *, fitted: bool = False, **words: object
    ) -> Iterator[Row]:
        for entry in entries:
            yield self.row(*entry, how, "", fitted=fitted, **words)

    def rows(self) -> Iterator[Row]:
        for item, compute in self.items.items():
            for row in compute():
                method = self.method_of(f"{item}: {row.row}")
                yield replace(row, paper=self.key, item=item, method=method)

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


def cells(table: Mapping[str, Any], *names: str) -> Iterator[tuple[str, str, float]]:
    """Yield (row, column, number) of a table; by default of all its rows. Empty cells are nan."""
    for name in names or [name for name, value in table.items() if _is_row(name, value)]:
        for column, number in zip(table["columns"], table[name], strict=True):
            if not math.isnan(number):
                yield name, str(column), number


def per_cell(
    table: Mapping[str, Any],
    *names: str,
    ours: Callable[[str, str], float] | None = None,
    label: str = "{}, {}",
) -> Iterator[Entry]:
    """Yield an entry for each number of a table; `ours` and `label` get its row and column."""
    for name, column, number in cells(table, *names):
        yield label.format(name, column), number, ours(name, column) if ours else None


def bisect(function: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return where an increasing function has a value; a bound if the value is outside."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return low


def _is_row(name: str, value: object) -> bool:
    return isinstance(value, list) and name != "columns"


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")
