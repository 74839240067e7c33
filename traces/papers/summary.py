"""The papers by key, the rows of a selection of them, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from specscope.engine.errors import shown
from specscope.engine.types import check_choice
from specscope.traces.papers import block, dsi, easyspec, ems, outside, parallel, parallelspec, pearl
from specscope.traces.papers.rows import WITHIN, Group, Paper, PaperRow

PAPERS = {
    module.PAPER.key: module.PAPER
    for module in (pearl, dsi, easyspec, ems, parallelspec, parallel, block, outside)
}


_LARGE = 0.25
"""Share of the predicted rows from which on a table's weight is named."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts over rows; the counts of the groups add up to all rows."""

    counts: Mapping[Group, int]
    exact_equal: int
    """Exact rows whose number is the printed one."""
    within: int
    largest: str
    """Paper and item of the table with the most predicted rows, if it has many of them."""
    most: int
    """Predicted rows of the table with the most of them."""
    rest: float
    """Share of the other predicted rows within the limit."""

    @classmethod
    def of(cls, rows: Sequence[PaperRow]) -> RowCounts:
        predicted = [row for row in rows if row.predicted]
        tables = Counter((row.paper, row.item) for row in predicted)
        name, most = max(tables.items(), key=lambda table: table[1], default=(("", ""), 0))
        others = [row.hit for row in predicted if (row.paper, row.item) != name]
        return cls(
            counts={group: sum(row.group == group for row in rows) for group in get_args(Group)},
            exact_equal=sum(row.kind == "exact" and row.ours == row.published for row in rows),
            within=sum(row.hit for row in predicted),
            largest=" ".join(name) if others and most >= _LARGE * len(predicted) else "",
            most=most,
            rest=sum(others) / len(others) if others else 1.0,
        )

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    @property
    def share(self) -> float:
        """Share of the predicted rows within the limit; 1 if nothing is predicted."""
        predicted = self.counts["predicted"]
        return self.within / predicted if predicted else 1.0

    def to_dict(self) -> dict[str, Any]:
        groups = {group.replace(" ", "_"): count for group, count in self.counts.items()}
        more = {"largest": self.largest, "share_without_largest": round(self.rest, 4)} if self.largest else {}
        return {
            "rows": self.rows,
            **groups,
            "exact_equal": self.exact_equal,
            "within": self.within,
            "share_within": round(self.share, 4),
            "limit": WITHIN,
            **more,
        }

    def tiles(self) -> list[tuple[str, str]]:
        n = self.counts
        return [
            (f"{self.rows:,}", "rows"),
            (f"{self.exact_equal} of {n['exact']}", "that must be exact equal the print"),
            (
                f"{self.within} of {n['predicted']}",
                f"predicted are within {WITHIN:.0%} ({self.share:.0%})",
            ),
            (f"{n['easy']}", f"predicted can hardly miss by {WITHIN:.0%}"),
            (f"{n['repeated']}", "repeat the print: copied inputs, arithmetic on printed numbers"),
            (f"{n['fitted']}", "are fitted"),
            (f"{n['not printed']}", "are computed where no number is printed"),
            (f"{n['published only']}", "are published only"),
        ]

    def remark(self) -> str:
        """Return how the share changes without the table that has the most predicted rows."""
        key, _, item = self.largest.partition(" ")
        return (
            f"{self.most} of the {self.counts['predicted']} predicted rows are {item} of {PAPERS[key].name}; of the other rows "
            f"{self.rest:.0%} are within {WITHIN:.0%}."
        )

    def sentence(self) -> str:
        (rows, _), *groups = self.tiles()
        return f"{rows} rows: {'; '.join(f'{n} {words}' for n, words in groups if not n.endswith('of 0') and n != '0')}"


def chosen(keys: Iterable[str]) -> list[Paper]:
    """Return the papers of the keys, each once; all papers without a key.

    UsageError for another key.
    """
    names = list(dict.fromkeys(keys)) or list(PAPERS)
    for name in names:
        check_choice(f"there is no paper {shown(name)}", name, PAPERS)
    return [PAPERS[name] for name in names]
