"""The log of SGLang: `Decode batch` lines with `accept len` and `accept rate`.

A line is printed after a fixed number of steps (`--decode-log-interval`, usually 40) and tells
averages only: tokens = steps x accept len x running requests, and the window lasts as long as these
take at the printed throughput. Source: `scheduler_metrics_mixin.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from specscope.engine.trace.events import Window
from specscope.traces.imports.logs.windows import Printed, window

STEPS = 40
NOTE = f"Counts follow from the log's averages over {STEPS} steps, as --decode-log-interval has it by default"
_FIELDS = {
    "running": re.compile(r"#running-req: (\d{1,9}),"),
    "length": re.compile(r"accept len: ([\d.]{1,20}),"),
    "rate": re.compile(r"accept rate: ([\d.]{1,20}),"),
    "speed": re.compile(r"gen throughput \(token/s\): ([\d.]{1,20})"),
}
_TIME = re.compile(r"^(.*?)\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)( [^\]]*)?\]")


def read(lines: Sequence[str], so_far: dict[str, Any] | None = None) -> list[Printed]:
    """Return the servers whose lines are in a log, told apart by what is before or in the time.

    `so_far` keeps what earlier lines told, of a log that grows.
    """
    found: dict[str, list[Window]] = ({} if so_far is None else so_far).setdefault("found", {})
    for line in lines:
        if "Decode batch" not in line:
            continue
        told = {key: match[1] for key, field in _FIELDS.items() if (match := field.search(line))}
        if not told.keys() >= {"running", "length", "speed"}:
            continue
        time = _TIME.match(line)
        name = f"{time[1]}{time[3] or ''}".strip(" :|") if time else ""
        rows = found.setdefault(name, [])
        rows.append(_window(told, time[2] if time else "", rows[-1].end / 1e9 if rows else 0.0))
    return [Printed("SGLang", name, rows, note=NOTE) for name, rows in found.items()]


def _window(told: dict[str, str], time: str, before: float) -> Window:
    running, length, speed = int(told["running"]), float(told["length"]), float(told["speed"])
    rate = float(told["rate"]) if "rate" in told else None
    steps = STEPS * running
    tokens = round(steps * length)
    accepted = max(0, tokens - steps)
    seconds = tokens / speed if speed else 0.0
    try:
        end = datetime.fromisoformat(time).timestamp() if time else before + seconds
    except (ValueError, OverflowError):
        end = before + seconds
    drafted = round(accepted / rate) if rate and accepted else None
    return window(
        end - seconds,
        end,
        label=time[11:],
        steps=steps,
        drafts=steps,
        drafted=None if drafted is None else max(drafted, accepted),
        accepted=accepted,
        tokens=tokens,
        running=float(running),
    )
