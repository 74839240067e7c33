"""The log of SGLang: `Decode batch` lines with `accept len` and `accept rate`.

A line is printed after a fixed number of steps (`--decode-log-interval`, usually 40) and tells
averages only: tokens = steps x accept len x running requests, and the window lasts as long as these
take at the printed throughput. `accept len` has the target's own token. `accept rate` is accepted /
drafted, but (accepted + own) / (drafted + own) in versions until the spring of 2026: so how many
tokens were drafted is known where only one whole number of them fits all lines. Source:
`scheduler_metrics_mixin.py`, later `scheduler_metrics_reporter.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from specscope.engine.trace.events import Window
from specscope.traces.imports.logs.windows import Printed, source_of, window

STEPS = 40
NOTE = "Counts follow from the log's averages over {steps} steps{why}"
_LONGEST = 256
_FIELDS = {
    "running": re.compile(r"#running-req: (\d{1,6})\b"),
    "length": re.compile(r"accept len: (\d{1,6}(?:\.\d{1,9})?),"),
    "rate": re.compile(r"accept rate: (\d{1,6}(?:\.\d{1,9})?),"),
    "speed": re.compile(r"gen throughput \(token/s\): (\d{1,9}(?:\.\d{1,9})?)"),
}
_INTERVAL = re.compile(r"\bdecode_log_interval=(\d{1,6})\b")
_DRAFTS = re.compile(r"\bspeculative_num_draft_tokens=(\d{1,4})\b")
_ALGORITHM = re.compile(r"\bspeculative_algorithm='([\w-]{1,40})'")
_TIME = re.compile(r"^(.*?)\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)( [^\]]*)?\]")


@dataclass
class _Server:
    """What one server printed."""

    rows: list[Window] = field(default_factory=list[Window])
    averages: list[tuple[float, float | None]] = field(default_factory=list[tuple[float, float | None]])
    """(accept len, accept rate) of each row."""


def read(lines: Sequence[str], so_far: dict[str, Any], source: Callable[[str], str]) -> list[Printed]:
    """Return the servers whose lines are in a log, told apart by what is before or in the time."""
    found: dict[str, _Server] = so_far.setdefault("found", {})
    steps: dict[str, int] = so_far.setdefault("steps", {})
    width: dict[str, int] = so_far.setdefault("width", {})
    algorithms: dict[str, str] = so_far.setdefault("algorithms", {})
    for line in lines:
        if "Decode batch" not in line and "server_args" not in line:
            continue
        time = _TIME.match(line)
        name = source(time[1]) if time else ""
        for setting, values in ((_INTERVAL, steps), (_DRAFTS, width)):
            if match := setting.search(line):
                values[name] = int(match[1])
        if match := _ALGORITHM.search(line):
            algorithms[name] = match[1]
        told = {key: match[1] for key, form in _FIELDS.items() if (match := form.search(line))}
        if "Decode batch" not in line or not told.keys() >= {"running", "length", "speed"}:
            continue
        rank = source_of(f"{name}{time[3] or ''}") if time else ""
        server = found.setdefault(rank, _Server())
        before = server.rows[-1].end / 1e9 if server.rows else 0.0
        server.rows.append(_window(told, time[2] if time else "", before, steps.get(name, STEPS)))
        server.averages.append((float(told["length"]), float(told["rate"]) if "rate" in told else None))
    return [_printed(name, one, steps, width, algorithms) for name, one in found.items()]


def _printed(
    name: str, server: _Server, steps: dict[str, int], width: dict[str, int], algorithms: dict[str, str]
) -> Printed:
    source = max((one for one in steps if not one or f"{name} ".startswith(f"{one} ")), key=len, default=None)
    drafted = width[source] - 1 if source in width else _drafted(server.averages)
    rows = [
        row if drafted is None else replace(row, drafted=max(row.accepted or 0, drafted * (row.steps or 0)))
        for row in server.rows
    ]
    why = "" if source is not None else ", as --decode-log-interval has it by default"
    note = NOTE.format(steps=steps.get(source or "", STEPS), why=why)
    return Printed("SGLang", name, rows, note=note, drafter=algorithms.get(source or "", ""))


def _drafted(averages: Sequence[tuple[float, float | None]]) -> int | None:
    """Return the tokens drafted for a step, if one number alone fits the averages of all lines."""
    told = {(length, rate) for length, rate in averages if rate is not None}
    if not told:
        return None
    fitting = {
        drafted
        for drafted in range(1, _LONGEST)
        for own in (0, 1)
        if all(
            abs((length - 1 + own) / (drafted + own) - rate) < 0.0051 + 0.005 / drafted
            for length, rate in told
        )
    }
    return fitting.pop() if len(fitting) == 1 else None


def _window(told: dict[str, str], time: str, before: float, interval: int) -> Window:
    running, length, speed = int(told["running"]), float(told["length"]), float(told["speed"])
    steps = interval * running
    tokens = round(steps * length)
    seconds = tokens / speed if speed else 0.0
    try:
        end = datetime.fromisoformat(time).timestamp() if time else before + seconds
    except (ValueError, OverflowError):
        end = before + seconds
    return window(
        max(0.0, end - seconds),
        end,
        label=time[11:],
        steps=steps,
        drafts=steps,
        drafted=None,
        accepted=max(0, tokens - steps),
        tokens=tokens,
        running=float(running),
    )
