"""The papers by key, the rows of a selection of them, and their summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import UsageError, shown
from traces.papers import dsi, easyspec, ems, outside, parallelspec, pearl
from traces.papers.rows import WITHIN, Paper, Row

PAPERS = {module.PAPER.key: module.PAPER for module in (pearl, dsi, easyspec, ems, parallelspec, outside)}
"""Papers by key."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts over rows."""

    rows: int
    exact: int
    exact_equal: int
    """Exact rows whose number is the printed one."""
    predicted: int
    """Rows of predictions to which nothing was fitted."""
    within: int
    """Those of them that differ by at most `WITHIN`."""
    fitted: int
    published_only: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Summary:
        """Count the rows."""
        exact = [row for row in rows if row.kind == "exact"]
        predicted = [row for row in rows if row.predicted]
        return cls(
            rows=len(rows),
            exact=len(exact),
            exact_equal=sum(row.ours == row.published for row in exact),
            predicted=len(predicted),
            within=sum(row.hit for row in predicted),
            fitted=sum(row.fitted for row in rows),
            published_only=sum(row.kind == "published only" for row in rows),
        )

    @property
    def share(self) -> float:
        """Share of the predicted rows within the limit; 1 if nothing is predicted."""
        return self.within / self.predicted if self.predicted else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "rows": self.rows,
            "exact": self.exact,
            "exact_equal": self.exact_equal,
            "predicted": self.predicted,
            "within": self.within,
            "share_within": round(self.share, 4),
            "limit": WITHIN,
            "fitted": self.fitted,
            "published_only": self.published_only,
        }

    def sentence(self) -> str:
        """Return the counts as one line."""
        return (
            f"{self.rows} rows: {self.exact_equal} of {self.exact} exact ones equal the print; "
            f"{self.within} of {self.predicted} predicted ones ({self.share:.0%}) are within {WITHIN:.0%}; "
            f"{self.fitted} fitted and {self.published_only} published only are not judged"
        )


def chosen(keys: Iterable[str]) -> list[Paper]:
    """Return the papers of the keys, each once; all papers without a key.

    Raises:
        UsageError: A key is unknown; the message lists the keys.
    """
    names = list(dict.fromkeys(keys)) or list(PAPERS)
    for name in names:
        if name not in PAPERS:
            raise UsageError(f"there is no paper {shown(name)}; choose one of {', '.join(PAPERS)}")
    return [PAPERS[name] for name in names]
