"""Does `advise` name the winners of published clusters, and are their speed-ups in its ranges?

Nothing is fitted to a row. A row is a pair on a cluster with a data set and a batch size, and asks
only for methods that its source compares. A published number counts also where the roofline is no
model of its engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from specscope.engine.methods import BASELINE
from specscope.traces.advise.answer import Answer, advise
from specscope.traces.advise.option import Likely, Option
from specscope.traces.advise.places import Estimate
from specscope.traces.advise.question import Question
from specscope.traces.papers.clusters import PublishedSpeeds, published
from specscope.traces.papers.rows import numbers


class WinnerRow(NamedTuple):
    """Published speed-ups and those of `advise`, by method."""

    name: str
    published: Mapping[str, float]
    advised: Mapping[str, Likely]
    best: str
    """The method that `advise` names."""
    plain: float | None
    """Tokens per second of plain decoding, advised over published."""

    @property
    def winner(self) -> str:
        found = {BASELINE: 1.0, **self.published}
        return max(found, key=lambda key: found[key])

    @property
    def outside(self) -> list[str]:
        """The methods whose published speed-up is not in the range."""
        inside = {key: r.low <= self.published[key] <= r.high for key, r in self.advised.items()}
        return [key for key in self.published if not inside.get(key)]

    def reason(self) -> str:
        """Return what is off in a row that fails: plain decoding's speed, or the method's."""
        words = [] if self.best == self.winner else [f"{self.best} is named, not {self.winner}"]
        for key in self.outside:
            if key not in self.advised:
                words.append(f"{key} has no place")
                continue
            off = self.advised[key].mid / self.published[key]
            words.append(f"{key} {off - 1:+.0%}")
            if self.plain is not None:
                own, plain = off * self.plain - 1, self.plain - 1
                words[-1] += f": its tokens/s {own:+.0%}, plain decoding's {plain:+.0%}"
        return "; ".join(words)

    def to_dict(self) -> dict[str, Any]:
        return {
            "row": self.name,
            "published": {key: round(x, 4) for key, x in self.published.items()},
            "advised": {key: [round(x, 4) for x in found] for key, found in self.advised.items()},
            "winner": self.winner,
            "named": self.best,
            "reason": self.reason(),
        }


@dataclass(frozen=True, slots=True)
class WinnerTable:
    """The rows of a source, or of all."""

    title: str
    why: str
    rows: tuple[WinnerRow, ...]

    @property
    def named(self) -> int:
        return sum(row.best == row.winner for row in self.rows)

    @property
    def speedups(self) -> int:
        return sum(len(row.published) for row in self.rows)

    @property
    def inside(self) -> int:
        return self.speedups - sum(len(row.outside) for row in self.rows)

    @property
    def width(self) -> float:
        """The median of the highest over the lowest number of a range."""
        return median(found.width for row in self.rows for found in row.advised.values())

    @property
    def error(self) -> float:
        """The median of the absolute errors of the numbers in the middle."""
        return median(
            abs(found.mid / row.published[key] - 1) for row in self.rows for key, found in row.advised.items()
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.title,
            "named": self.named,
            "speedups": self.speedups,
            "inside": self.inside,
            "width": round(self.width, 4),
            "error": round(self.error, 4),
            "why": self.why,
            "rows": [row.to_dict() for row in self.rows],
        }

    def line(self) -> str:
        named, inside = f"{self.named} of {len(self.rows)}", f"{self.inside} of {self.speedups}"
        return f"{self.title:76}{named:>12}{inside:>13}{self.width:>8.2f}{self.error:>8.0%}"


def winner_tables() -> Iterator[WinnerTable]:
    """Yield the sources with their rows, each as soon as it is computed."""
    for source in numbers("winners")["sources"]:
        rows = (row for one in published(source) for row in compared(source, one))
        yield WinnerTable(source["title"], source["why"], tuple(rows))


def compared(source: Mapping[str, Any], one: PublishedSpeeds) -> Iterator[WinnerRow]:
    """Yield a row for each batch size of a pair with a data set."""
    methods = tuple(dict.fromkeys(key for found in one.speedups.values() for key in found))
    asked = {**source["question"], **one.asked}
    answer = advise(Question(**asked, batches=tuple(one.speedups), methods=methods))
    for batch in one.speedups:
        name = one.name if len(one.speedups) == 1 else f"{one.name}, batch {batch}"
        yield _row(name, answer, batch, one)


def _row(name: str, answer: Answer, batch: int, one: PublishedSpeeds) -> WinnerRow:
    best = {option.key: option for option in reversed(answer.at(batch))}
    speedups, plain = one.speedups[batch], one.plain.get(batch)
    share = _prefill(answer, best[BASELINE]) if batch in one.longer else 0.0
    advised = {
        key: Likely(*(_with_prefill(end, share, one.longer.get(batch, 1.0)) for end in best[key].speed))
        for key in speedups
        if key in best
    }
    ratio = best[BASELINE].tokens_per_second / plain / (1 + share) if plain else None
    return WinnerRow(name, speedups, advised, answer.best(batch).key, ratio)


def _prefill(answer: Answer, plain: Option) -> float:
    """Return the time of all prompts over that of plain decoding after them."""
    question, one = answer.question, Estimate(answer.question, plain.way, plain.batch)
    prompts = one.latency("target", one.each * question.context, 0, one.each)
    return prompts * plain.tokens_per_second / (1e6 * question.tokens * plain.batch)


def _with_prefill(speedup: float, share: float, longer: float) -> float:
    """Return a speed-up of whole runs, prefill included, of which the method's has more tokens."""
    return (1 + share) / (share / longer + 1 / speedup)


def table_lines(tables: Sequence[WinnerTable], *, rows: bool) -> Iterator[str]:
    """Yield a line for each source, and with `rows` each row with its numbers."""
    yield "Published clusters beside the answers of advise; nothing is fitted to these rows"
    yield f"{'source':76}{'named':>12}{'in the range':>13}{'width':>8}{'error':>8}"
    for table in tables:
        yield table.line()
        if table.inside < table.speedups or table.named < len(table.rows):
            yield f"    {table.why}"
        for row in table.rows if rows else ():
            yield f"    {row.name}"
            for key, number in row.published.items():
                ours = (
                    f"{row.advised[key].mid:.2f} ({row.advised[key]})" if key in row.advised else "no place"
                )
                yield f"        {key:14}{number:>8.2f}   advised {ours}"
            yield from [f"        {row.reason()}"] if row.reason() else []
    yield WinnerTable("all", "", tuple(row for table in tables for row in table.rows)).line()
