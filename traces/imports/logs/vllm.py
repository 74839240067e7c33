"""The log of vLLM: `SpecDecoding metrics` lines, one for each interval of its statistics.

Each line is a window. Its length follows from a count and its printed throughput, the number of
drafts from the mean acceptance length, and accepted tokens by place from the printed rates; all of
them are rounded. Source: `vllm/v1/spec_decode/metrics.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specscope.engine.trace.events import Window
from specscope.traces.imports.logs.windows import Printed, drafts_of, places_of, whole, window

_LINE = re.compile(
    r"SpecDecoding metrics: Mean acceptance length: ([\d.]+|nan), Accepted throughput: ([\d.]+) tokens/s, Drafted throughput: "
    r"([\d.]+) tokens/s, Accepted: (\d+) tokens, Drafted: (\d+) tokens, Per-position acceptance rate: ([\d., nan]*?), "
    r"Avg Draft acceptance rate: "
)
_ENGINE = re.compile(
    r"Engine (\d+): Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput: ([\d.]+) tokens/s, Running: (\d+) reqs"
)
_TIME = re.compile(r"^(.*?)(?:INFO|WARNING|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
_NAME = re.compile(r"^\s*([\w./:-]+?)\s*(?:\||:(?=\())")
NOTE = "Numbers of drafts and accepted tokens by place follow from rounded averages of the log"
_MONTH, _DAY = 31 * 86400, 86400


def read(lines: Sequence[str], so_far: dict[str, Any] | None = None) -> list[Printed]:
    """Return the servers whose lines are in a log, told apart by a name before the line.

    `so_far` keeps what earlier lines told, of a log that grows.
    """
    known = {} if so_far is None else so_far
    found: dict[str, list[Window]] = known.setdefault("found", {})
    beside: dict[str, tuple[float, float]] = known.setdefault("beside", {})
    for line in lines:
        if "SpecDecoding metrics" not in line and "generation throughput" not in line:
            continue
        name = match[1] if (match := _NAME.match(line)) else ""
        if match := _ENGINE.search(line):
            beside[name] = float(match[2]), float(match[3])
        elif match := _LINE.search(line):
            rows = found.setdefault(name, [])
            rows.append(_window(match, _time(line), rows[-1].end if rows else 0, beside.pop(name, None)))
    return [Printed("vLLM", name, rows, note=NOTE) for name, rows in found.items()]


def _time(line: str) -> tuple[float, str] | None:
    """Return the seconds of a line's time since the year's start, and the time of day."""
    if (match := _TIME.match(line)) is None:
        return None
    month, day, hour, minute, second = map(int, match.groups()[1:])
    seconds = month * _MONTH + day * _DAY + 3600 * hour + 60 * minute + second
    return float(seconds), f"{match[4]}:{match[5]}:{match[6]}"


def _window(
    match: re.Match[str], time: tuple[float, str] | None, before: int, beside: tuple[float, float] | None
) -> Window:
    accepted, drafted = whole(match[4]), whole(match[5])
    throughputs = (accepted, float(match[2])), (drafted, float(match[3]))
    seconds = max((count / speed for count, speed in throughputs if speed), default=0.0)
    rates = re.findall(r"[\d.]+", match[6])
    mean = None if match[1] == "nan" else float(match[1])
    drafts = drafts_of(drafted, accepted, len(rates), mean)
    end, label = time or (before / 1e9 + seconds, "")
    row = window(
        end - seconds,
        end,
        label=label,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        places=places_of(map(float, rates), drafts),
    )
    if beside is None:
        return row
    return replace(row, tokens=round(beside[0] * seconds), running=beside[1])
