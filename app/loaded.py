"""Requests under load: their arrivals, and their figures by method and batch size."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from specscope.engine.bounds import MOST_SEQUENCES
from specscope.engine.errors import UsageError, shown
from specscope.engine.files import parse_json, read_text
from specscope.engine.methods import BASELINE, METHODS
from specscope.engine.run.policies import FIXED, POLICIES
from specscope.engine.trace.trace import Trace
from specscope.engine.types import check_range
from specscope.traces.requests import figures, load_of, stops_paying
from specscope.traces.view.settings import models_text

COLUMNS = (
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
"""Title, figure and form of each column."""
TITLES = (
    ("busy_tokens_per_second", "tokens/s while busy, {clock}"),
    ("goodput", "goodput, requests/s"),
    ("ttft_p95_ms", "time to first token, p95 ms"),
    ("tpot_p95_ms", "time per output token, p95 ms"),
)
"""Figure and title of each chart."""


BENCH = Path(__file__).parents[1] / "assets" / "prompts" / "bench.json"


def bench_prompts() -> list[str]:
    return json.loads(BENCH.read_text(encoding="utf-8"))["prompts"]


def batch_sizes(text: str, name: str) -> list[int]:
    try:
        sizes = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"{name} is {shown(text)}; it must be whole numbers, as in 1,2,4") from None
    check_range(name, sizes[0], 1, MOST_SEQUENCES)
    check_range(name, sizes[-1], 1, MOST_SEQUENCES)
    return sizes


class Line(NamedTuple):
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
    methods: Sequence[str], policies: Sequence[str], check: Callable[[Line], None]
) -> tuple[list[Line], dict[str, str]]:
    """Return plain decoding and the lines that can be served; and why not the others, by name.

    `check` raises UsageError for a line that cannot be served. So does this function if a method or
    a policy has no line.
    """
    able, refused = [Line(BASELINE)], dict[Line, str]()
    asked = [Line(method, policy) for method in methods if method != BASELINE for policy in policies]
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


def result_of(
    cells: Mapping[Line, Mapping[int, Trace]],
    left_out: Mapping[str, str],
    ttft_ms: float,
    tpot_ms: float,
    warning: str,
) -> dict[str, Any]:
    """Return the JSON object of `specscope load`.

    `cells` has at least the baseline's first run; `ttft_ms` and `tpot_ms` limit a good request.
    """
    baseline = cells[Line(BASELINE)]
    header = next(iter(baseline.values())).header
    load, methods = load_of(header), dict[str, Any]()
    assert load is not None, "every run of this command has a load"
    plain = {batch: figures(trace, ttft_ms, tpot_ms) for batch, trace in baseline.items()}
    for line, runs in ((line, runs) for line, runs in cells.items() if runs):
        rows = {batch: figures(trace, ttft_ms, tpot_ms) for batch, trace in runs.items()}
        first = next(iter(runs.values())).header
        methods[line.name] = {
            **line._asdict(),
            "config": first.config,
            "lossless": first.lossless,
            "stops_paying_at": None if line.method == BASELINE else stops_paying(rows, plain),
            "batches": {str(batch): {"run": runs[batch].header.run_id, **row} for batch, row in rows.items()},
        }
    return {
        "models": models_text(header),
        "clock": header.clock,
        "virtual": header.virtual,
        "requests": len(load.arrivals),
        "arrivals": [time / 1e9 for time in load.arrivals],
        "chunk": load.chunk,
        "limits": {"ttft_ms": ttft_ms, "tpot_ms": tpot_ms},
        "methods": methods,
        "left_out": dict(left_out),
        "warning": warning or None,
    }


def verdicts(result: Mapping[str, Any], name: Callable[[Line], str] = lambda line: line.name) -> list[str]:
    """Return a sentence for each line: where its throughput falls below plain decoding's."""
    sentences = list[str]()
    for method in result["methods"].values():
        line, at, batches = line_of(method), method["stops_paying_at"], list(method["batches"])
        if line.method != BASELINE and at is None:
            sentences.append(f"{name(line)} pays at every batch size measured, up to {batches[-1]}")
        elif line.method != BASELINE:
            sentences.append(
                f"{name(line)} stops paying at batch size {at}: plain decoding has more busy tok/s there"
            )
    return sentences


def line_of(method: Mapping[str, Any]) -> Line:
    """Return the line of an entry of a result's `methods`."""
    return Line(method["method"], method["policy"])


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
