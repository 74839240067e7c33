"""Requests under load, of `specscope load` and the Load tab: what is served, and its figures."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specscope.app.render.html import STYLES, badge, figure, run_address, text
from specscope.app.render.html import line as curve_of
from specscope.app.render.table import Column, Table
from specscope.engine.bounds import MOST_SEQUENCES
from specscope.engine.errors import UsageError, shown
from specscope.engine.files import parse_json, read_text
from specscope.engine.methods import BASELINE, METHODS
from specscope.engine.run.policies import FIXED, POLICIES
from specscope.engine.run.serving import CHUNK, Load
from specscope.engine.trace.trace import Trace
from specscope.engine.types import check_range
from specscope.traces.facts.requests import figures, load_of, stops_paying
from specscope.traces.facts.settings import models_text

COLUMNS = tuple(
    Column(name, title, form, width=11)
    for title, name, form in (
        ("tokens/s", "tokens_per_second", ".1f"),
        ("busy tok/s", "busy_tokens_per_second", ".1f"),
        ("TTFT ms", "ttft_ms", ".1f"),
        ("p95", "ttft_p95_ms", ".1f"),
        ("TPOT ms", "tpot_ms", ".2f"),
        ("p95", "tpot_p95_ms", ".2f"),
        ("ITL ms", "itl_ms", ".2f"),
        ("p95", "itl_p95_ms", ".2f"),
        ("good", "good_share", ".0%"),
        ("goodput/s", "goodput", ".3g"),
    )
)
TITLES = (
    ("busy_tokens_per_second", "tokens/s while busy, {clock}"),
    ("goodput", "goodput, requests/s"),
    ("ttft_p95_ms", "time to first token, p95 ms"),
    ("tpot_p95_ms", "time per output token, p95 ms"),
)
"""Figure and title of each chart."""


def batch_sizes(text: str, name: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"{name} is {shown(text)}; it must be whole numbers, as in 1,2,4") from None
    check_range(name, sizes[0], 1, MOST_SEQUENCES)
    check_range(name, sizes[-1], 1, MOST_SEQUENCES)
    return sizes


class LoadLine(NamedTuple):
    """A method under a policy: one line of the charts."""

    method: str
    policy: str = FIXED

    @property
    def name(self) -> str:
        return _named(self.method, self.policy)

    @property
    def title(self) -> str:
        return _named(METHODS[self.method].title, self.policy)


def _named(method: str, policy: str) -> str:
    return method if policy == FIXED else f"{method}, {policy}"


def policies_of(text: str, name: str) -> list[str]:
    found = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if unknown := [policy for policy in found if policy not in POLICIES]:
        raise UsageError(f"{name} has {shown(unknown[0])}; choose among {', '.join(POLICIES)}")
    return found


def served_lines(
    methods: Sequence[str], policies: Sequence[str], check: Callable[[LoadLine], None]
) -> tuple[list[LoadLine], dict[str, str]]:
    """Return plain decoding and the lines that can be served; and why not the others, by name.

    `check` raises UsageError for a line that cannot be served. So does this function if a method or
    a policy has no line.
    """
    able, refused = [LoadLine(BASELINE)], dict[LoadLine, str]()
    asked = [LoadLine(method, policy) for method in methods if method != BASELINE for policy in policies]
    if not asked and [*policies] != [FIXED]:
        raise UsageError(
            f"plain decoding drafts nothing; name a method beside it, or the policy {FIXED} alone"
        )
    for line in asked:
        try:
            check(line)
            able.append(line)
        except UsageError as error:
            refused[line] = str(error)
    for line, reason in refused.items():
        served = able[1:]
        if all(line.method != one.method for one in served) or all(
            line.policy != one.policy for one in served
        ):
            raise UsageError(reason)
    return able, {line.name: reason for line, reason in refused.items()}


class LoadRun(NamedTuple):
    """One run: a line with a batch size."""

    line: LoadLine
    batch: int
    group: str
    load: Load


@dataclass(frozen=True, slots=True)
class LoadSetup:
    """What is served: every line with every batch size, and what makes a request good."""

    lines: Sequence[LoadLine]
    """Plain decoding first."""
    left_out: Mapping[str, str]
    """Why lines are not served, by name."""
    batches: Sequence[int]
    arrivals: tuple[float, ...]
    """Seconds of each request."""
    ttft_ms: float
    tpot_ms: float
    chunk: int = CHUNK

    def jobs(self) -> list[LoadRun]:
        """Return the runs in their order: all lines with the smallest batch first."""
        found = list[LoadRun]()
        for batch in self.batches:
            group = uuid.uuid4().hex[:12]
            loads = ((line, Load(self.arrivals, batch, self.chunk, line.policy)) for line in self.lines)
            found += [LoadRun(line, batch, group, load) for line, load in loads]
        return found

    def result(self, cells: Mapping[LoadLine, Mapping[int, Trace]], warning: str = "") -> dict[str, Any]:
        """Return the JSON object of `specscope load`; plain decoding has at least one run."""
        header = next(iter(cells[LoadLine(BASELINE)].values())).header
        load, methods = load_of(header), dict[str, Any]()
        assert load is not None, "every run of this command has a load"
        rows = {
            line: {b: figures(t, self.ttft_ms, self.tpot_ms) for b, t in cells[line].items()}
            for line in cells
        }
        for line, runs in ((line, runs) for line, runs in cells.items() if runs):
            first, plain = next(iter(runs.values())).header, rows[LoadLine(BASELINE)]
            methods[line.name] = {
                **line._asdict(),
                "config": first.config,
                "lossless": first.lossless,
                "stops_paying_at": None if line.method == BASELINE else stops_paying(rows[line], plain),
                "batches": {str(b): {"run": runs[b].header.run_id, **row} for b, row in rows[line].items()},
            }
        return {
            "models": models_text(header),
            "clock": header.clock,
            "virtual": header.virtual,
            "requests": len(load.arrivals),
            "arrivals": [time / 1e9 for time in load.arrivals],
            "chunk": load.chunk,
            "limits": {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms},
            "methods": methods,
            "left_out": dict(self.left_out),
            "warning": warning or None,
        }


def good_text(result: Mapping[str, Any]) -> str:
    limits = result["limits"]
    return f"good: first token within {limits['ttft_ms']:g} ms, further tokens {limits['tpot_ms']:g} ms in the mean"


def table_of(result: Mapping[str, Any], name: str = "name") -> Table:
    """Return a row for each line and batch size; `name` is `name`, or `title` for people."""
    rows = [
        {"line": getattr(line_of(method), name), "batch": batch, **row}
        for method in result["methods"].values()
        for batch, row in method["batches"].items()
    ]
    wide = max(20, 2 + max(map(len, result["methods"])))
    return Table([Column("line", "method", width=-wide), Column("batch", "batch", width=6), *COLUMNS], rows)


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `specscope load` prints."""
    table = table_of(result)
    yield f"{result['models']} · {result['requests']} requests · {result['clock']}"
    yield from table.lines()
    yield from verdicts(result)
    yield from (
        f"{table.columns[0].cell(key)}left out: {reason}" for key, reason in result["left_out"].items()
    )
    yield good_text(result)
    yield "busy tok/s: tokens by the time in which a request waits or is served"
    if result["warning"]:
        yield result["warning"]


def verdicts(result: Mapping[str, Any], name: str = "name") -> list[str]:
    """Return a sentence for each line: where its throughput falls below plain decoding's."""
    sentences = list[str]()
    for method in result["methods"].values():
        line, at, batches = line_of(method), method["stops_paying_at"], list(method["batches"])
        if line.method != BASELINE and at is None:
            sentences.append(f"{getattr(line, name)} pays at every batch size measured, up to {batches[-1]}")
        elif line.method != BASELINE:
            sentences.append(
                f"{getattr(line, name)} stops paying at batch size {at}: plain decoding has more busy tok/s there"
            )
    return sentences


def line_of(method: Mapping[str, Any]) -> LoadLine:
    """Return the line of an entry of a result's `methods`."""
    return LoadLine(method["method"], method["policy"])


def html(result: Mapping[str, Any], *, links: bool = True) -> str:
    """Return verdicts, charts and table of the runs that are done."""
    facts = f"{result['requests']} requests · {good_text(result)}"
    left_out = [f"{name} is left out: {reason}" for name, reason in result["left_out"].items()]
    said = "".join(f"<li>{text(sentence)}</li>" for sentence in [*verdicts(result, "title"), *left_out])
    warning = f'<p class="app-note app-warning">{text(result["warning"])}</p>' if result["warning"] else ""
    table = table_of(result, "title")
    opened = [
        f'<a href="{run_address([row["run"]])}" title="open this run\'s timeline">{text(row["line"])}</a>'
        for row in table.rows
        if links
    ]
    return (
        f'<p class="app-note">{badge(result["clock"])} {text(facts)}</p>{warning}'
        f"{said and f'<ul class=app-verdicts>{said}</ul>'}{_charts(result)}"
        f"{table.html('Figures by batch size', opened)}"
    )


def series(result: Mapping[str, Any], name: str) -> Iterator[tuple[LoadLine, list[tuple[int, float]]]]:
    """Yield the points of a figure over the batch size, by line."""
    for method in result["methods"].values():
        batches = method["batches"].items()
        yield line_of(method), [(int(b), row[name]) for b, row in batches if row[name] is not None]


def _charts(result: Mapping[str, Any]) -> str:
    sizes = sorted({int(batch) for method in result["methods"].values() for batch in method["batches"]})
    if len(sizes) < 2:
        return ""
    ticks = {"type": "log", "tickvals": sizes, "ticktext": list(map(str, sizes))}
    axes = {"xaxis": {"title": {"text": "batch size"}, **ticks}, "yaxis": {"rangemode": "tozero"}}
    found = list[str]()
    for name, title in TITLES:
        lines = list[Any]()
        for i, (one, points) in enumerate(series(result, name)):
            x, y = [b for b, _ in points], [value for _, value in points]
            lines.append(curve_of(STYLES[i % len(STYLES)], one.title, x, y, mode="lines+markers"))
        heading = title.format(clock="virtual" if result["virtual"] else "measured")
        drawn = figure(lines, f"{heading} by batch size", 230, showlegend=not found, **axes)
        found.append(f"<figure><figcaption>{text(heading)}</figcaption>{drawn}</figure>")
    return f'<div class="app-load-charts">{"".join(found)}</div>'


LEAST_RATE = 1e-6
"""Lowest rate in requests/s: one in eleven days."""


class Arrival(NamedTuple):
    """One request of a file."""

    seconds: float
    """After the first moment of the file's clock."""
    prompt: str | None
    """None where the file has times only."""


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Return the seconds of a Poisson process: the first request at 0, then exponential gaps."""
    if not (math.isfinite(rate) and rate >= LEAST_RATE):
        raise UsageError(f"the rate is {rate:g}; it must be at least {LEAST_RATE:g} requests/s, and finite")
    draws, now = random.Random(seed), 0.0
    times = list[float]()
    for _ in range(count):
        times.append(now)
        now += draws.expovariate(rate)
    return times


def read_arrivals(path: Path, most: int) -> list[Arrival]:
    return parse_arrivals(read_text(path, most), path, rows=path.suffix == ".jsonl")


def parse_arrivals(content: str, path: object, *, rows: bool = False) -> list[Arrival]:
    """Return the requests of a text: a time a line, or JSON with `arrival` and perhaps `prompt`.

    Errors name the line.
    """
    parse = _row if rows else _time
    lines = enumerate(content.split("\n"), 1)
    found = [parse(line, f"{path} line {n}") for n, line in lines if line.strip()]
    if not found:
        raise UsageError(f"{path} has no arrival; write one time in seconds in each line")
    prompted = sum(one.prompt is not None for one in found)
    if 0 < prompted < len(found):
        raise UsageError(
            f"{path} has a prompt in {prompted} of {len(found)} rows; give one in all or in none"
        )
    return found


def _time(line: str, where: str) -> Arrival:
    try:
        seconds = float(line)
    except ValueError:
        raise UsageError(f"{where} is {shown(line.strip())}; it must be a time in seconds") from None
    return Arrival(_checked(seconds, where), None)


def _row(line: str, where: str) -> Arrival:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where} is {shown(row)}; it must be an object with arrival and prompt")
    seconds, prompt = row.get("arrival"), row.get("prompt")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"{where} has arrival {shown(seconds)}; it must be a time in seconds")
    if prompt is not None and (not isinstance(prompt, str) or not prompt):
        raise UsageError(f"{where} has prompt {shown(prompt)}; it must be a text")
    return Arrival(_checked(float(seconds), where), prompt)


def _checked(seconds: float, where: str) -> float:
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"{where} has the time {seconds:g}; it must be at least 0, and finite")
    return seconds
