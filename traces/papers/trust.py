"""What may be trusted of each method: a line per method, computed from the rows of the papers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specscope.engine.methods import METHODS
from specscope.traces.papers.rows import WITHIN, PaperRow


@dataclass(frozen=True, slots=True)
class Trust:
    """A method's rows: predictions within the limit, and those that miss, with their reasons."""

    method: str
    rows: tuple[PaperRow, ...]

    @property
    def title(self) -> str:
        return METHODS[self.method].title

    @property
    def predicted(self) -> list[PaperRow]:
        return [row for row in self.rows if row.predicted]

    @property
    def missed(self) -> list[PaperRow]:
        return [row for row in self.rows if row.missed]

    @property
    def share(self) -> float:
        return 1 - len(self.missed) / len(self.predicted)

    @property
    def exact(self) -> int:
        return sum(row.kind == "exact" for row in self.rows)

    def trusted(self) -> str:
        within = f"{len(self.predicted) - len(self.missed)} of {len(self.predicted)} within {WITHIN:.0%}"
        return f"{within}, {self.exact} exact" if self.exact else within

    def places(self) -> Counter[tuple[str, str]]:
        """Return (paper, item) of the misses with their number."""
        return Counter((row.paper, row.item) for row in self.missed)

    def reasons(self) -> list[str]:
        """Return the reasons of the misses, the most frequent first."""
        return [reason for reason, _ in Counter(row.reason for row in self.missed).most_common()]

    def span(self) -> str:
        """Return the differences of the misses, as in -24 to +18%; empty if there are none."""
        found = sorted(row.difference or 0.0 for row in self.missed)
        if not found:
            return ""
        low, high = f"{found[0]:+.0%}", f"{found[-1]:+.0%}"
        return low if low == high else f"{low.removesuffix('%')} to {high}"

    def line(self) -> str:
        """Return the line of a terminal; what is missed has a second one with the reason."""
        if not self.missed:
            return f"{self.method:20} {self.trusted()}; nothing missed"
        places = ", ".join(
            f"{paper} {item}" + (f" ({n})" if n > 1 else "") for (paper, item), n in self.places().items()
        )
        first, *others = self.reasons()
        more = f" (and {len(others)} more)" if others else ""
        return (
            f"{self.method:20} {self.trusted()}; missed by {self.span()}: {places}\n{'':23}why: {first}{more}"
        )


def trusts(rows: Iterable[PaperRow]) -> list[Trust]:
    """Return a line for each method with predictions, the largest share within the limit first."""
    by_method = dict[str, list[PaperRow]]()
    for row in rows:
        if row.method:
            by_method.setdefault(row.method, []).append(row)
    found = [Trust(key, tuple(own)) for key, own in by_method.items()]
    judged = [trust for trust in found if trust.predicted]
    return sorted(judged, key=lambda trust: (-trust.share, -len(trust.predicted), trust.method))


def unjudged(rows: Sequence[PaperRow]) -> list[str]:
    """Return the methods without a predicted number: of those of one paper, or of all methods."""
    judged = {trust.method for trust in trusts(rows)}
    several = len({row.paper for row in rows}) > 1
    return [key for key in METHODS if key not in judged and (several or key in {row.method for row in rows})]
