"""The log of vLLM: `SpecDecoding metrics` lines, one for each interval of its statistics.

Each line is a window. Its length follows from a count and its printed throughput, the number of
drafts from the mean acceptance length, and accepted tokens by place from the printed rates; all of
them are rounded. Lines of 0.8 to 0.10 have other orders and fewer fields. The mean acceptance
length has the target's own token; a rate by place is accepted tokens at it / drafts. Source:
`vllm/v1/spec_decode/metrics.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple

from specscope.engine.trace.events import Window
from specscope.traces.imports.logs.windows import Printed, drafts_of, places_of, whole, window

_COUNTS = re.compile(r"Accepted: (\d+) tokens, Drafted: (\d+) tokens")
_LENGTH = re.compile(r"Mean acceptance length: (\d[\d.]*)")
_SPEED = re.compile(r"(Accepted|Drafted) throughput: (\d[\d.]*) tokens/s")
_PLACES = re.compile(r"Per-position acceptance rate: ((?:\d\.\d{3}, )+)Avg")
_LAST_PLACES = re.compile(
    r"metrics: Draft acceptance.*Per-position acceptance rate: (\d\.\d{3}(?:, \d\.\d{3})*)\s*$"
)
"""Of versions whose lines end with it, so that a cut one is known by its digits."""
_ENGINE = re.compile(
    r"(?:Engine (\d{1,4})|\d+ Engines Aggregated): Avg prompt throughput: [\d.]+ tokens/s, "
    r"Avg generation throughput: (\d[\d.]*) tokens/s, Running: (\d+) reqs"
)
_OWN = re.compile(r"SpecDecoding metrics|Engine \d|\d+ Engines Aggregated|Avg prompt")
_TIME = re.compile(r"^(.*?)(?:INFO|WARNING|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
_PID = re.compile(r"\(\w+ pid=(\d+)\)")
NOTE = "Numbers of drafts and accepted tokens by place follow from rounded averages of the log"
_USUAL = 8.0, 12.0
"""Seconds between two lines, if drafts were made in all of them."""
_YEAR = 366 * 86400


class _Key(NamedTuple):
    """A server: who wrote the line, its process, its engine."""

    source: str
    process: str
    engine: int = 0


class _Beside(NamedTuple):
    """What the line about the engine tells, which comes before that about drafts."""

    engine: int
    speed: float
    running: float


def read(lines: Sequence[str], so_far: dict[str, Any], source: Callable[[str], str]) -> list[Printed]:
    """Return the servers whose lines are in a log, told apart by a name, a process or an engine."""
    found: dict[_Key, list[Window]] = so_far.setdefault("found", {})
    beside: dict[_Key, _Beside] = so_far.setdefault("beside", {})
    year = 2000 if any(" 02-29 " in line for line in lines) else 2001
    for line in lines:
        if "SpecDecoding metrics" not in line and "generation throughput" not in line:
            continue
        key, time = _key(line, source), _time(line, year)
        if match := _ENGINE.search(line):
            beside[key] = _Beside(int(match[1] or 0), float(match[2]), float(match[3]))
        elif match := _COUNTS.search(line):
            near = beside.pop(key, None)
            rows = found.setdefault(key._replace(engine=near.engine if near else 0), [])
            rows.append(_window(line, match, time, rows[-1].end / 1e9 if rows else 0.0, near))
    return [
        Printed("vLLM", _name(key, found), _of_one_length(rows), note=NOTE) for key, rows in found.items()
    ]


def _key(line: str, source: Callable[[str], str]) -> _Key:
    match, own = _TIME.match(line), _OWN.search(line)
    before = match[1] if match else line[: own.start() if own else 0]
    process = _PID.search(before)
    return _Key(source(_PID.sub("", before)), process[1] if process else "")


def _name(key: _Key, keys: Iterable[_Key]) -> str:
    same = [one for one in keys if one.source == key.source]
    several = len({one.process for one in same}) > 1
    parts = (
        key.source,
        f"pid {key.process}" if several else "",
        f"engine {key.engine}" if key.engine else "",
    )
    return " ".join(filter(None, parts))


def _time(line: str, year: int) -> tuple[float, str] | None:
    """Return the seconds of a line's time, and the time of day."""
    if (match := _TIME.match(line)) is None:
        return None
    try:
        time = datetime(year, *map(int, match.groups()[1:]))  # type: ignore[arg-type]
    except ValueError:
        return None
    return (time - datetime(2000, 1, 1)).total_seconds(), f"{match[4]}:{match[5]}:{match[6]}"


def _window(
    line: str, counts: re.Match[str], time: tuple[float, str] | None, before: float, beside: _Beside | None
) -> Window:
    accepted, drafted = whole(counts[1]), whole(counts[2])
    speeds = {name: float(value) for name, value in _SPEED.findall(line)}
    speed = speeds.get("Drafted", 0.0)
    seconds = drafted / speed if speed else 0.0
    places = _PLACES.search(line) or _LAST_PLACES.search(line)
    rates = [float(one) for one in places[1].strip(", ").split(", ")] if places else []
    length = _LENGTH.search(line)
    drafts = drafts_of(drafted, accepted, len(rates), float(length[1]) if length else None)
    end, label = time or (before + seconds, "")
    if end < before - _YEAR / 2:  # the log passes the end of a year
        end += _YEAR - 86400
    row = window(
        max(0.0, end - seconds),
        end,
        label=label,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        places=places_of(rates, drafts) if rates else (),
    )
    if beside is None:
        return row
    alike = _USUAL[0] <= seconds <= _USUAL[1] or abs(end - seconds - before) < 2  # not after a pause
    tokens = round(beside.speed * seconds) if alike and seconds else None
    return replace(row, tokens=tokens, running=beside.running)


def _of_one_length(rows: Sequence[Window]) -> list[Window]:
    """Return windows without numbers of drafts that rest on one draft length, if there are several.

    Other windows show that, whose mean acceptance length tells the number.
    """
    varied = any(row.drafts and row.places and row.drafts * len(row.places) != row.drafted for row in rows)
    guessed = [varied and not row.accepted and row.drafted for row in rows]
    return [replace(row, drafts=None) if guess else row for row, guess in zip(rows, guessed, strict=True)]
