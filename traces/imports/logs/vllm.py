"""The log of vLLM: `SpecDecoding metrics` lines, one for each interval of its statistics.

Each line is a window. It ends with an interval of statistics, in which all its drafts were made:
an interval with drafts prints a line. The engine's own line, printed just before, has the tokens/s
of that interval. After a pause the printed throughput of drafts is that of a longer time, since the
last line with drafts. The number of drafts follows from the mean acceptance length, and accepted
tokens by place from the printed rates; all of them are rounded. Lines of 0.8 to 0.10 have other
orders and fewer fields. The mean acceptance length has the target's own token; a rate by place is
accepted tokens at it / drafts. Sources: `vllm/v1/spec_decode/metrics.py`, `metrics/loggers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from statistics import median
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
_METHOD = re.compile(r"\bspeculative_config=SpeculativeConfig\(method='([\w-]{1,40})'")
_TIME = re.compile(r"^(.*?)(?:INFO|WARNING|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
_PID = re.compile(r"\(\w+ pid=(\d+)\)")
NOTE = "Numbers of drafts and accepted tokens by place follow from rounded averages of the log"
_USUAL = 8.0, 12.0
"""Seconds of an interval, where times do not tell them."""
_ROUNDED = 1.5
"""Most seconds by which the times of two lines and a length of time differ: times are whole."""
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
    since: float | None
    """Seconds since the line before it of the same engine; None if unknown."""


class _Row(NamedTuple):
    """A window whose length is the time since the last line with drafts."""

    window: Window
    beside: _Beside | None

    @property
    def seconds(self) -> float:
        return (self.window.end - self.window.start) / 1e9

    @property
    def steady(self) -> bool:
        """Whether that is one interval: no pause was before it."""
        if self.beside is None or self.beside.since is None:
            return _USUAL[0] <= self.seconds <= _USUAL[1]
        return abs(self.seconds - self.beside.since) < _ROUNDED


def read(lines: Sequence[str], so_far: dict[str, Any], source: Callable[[str], str]) -> list[Printed]:
    """Return the servers whose lines are in a log, told apart by a name, a process or an engine."""
    found: dict[_Key, list[_Row]] = so_far.setdefault("found", {})
    beside: dict[_Key, _Beside] = so_far.setdefault("beside", {})
    last: dict[_Key, float] = so_far.setdefault("last", {})
    methods: dict[str, str] = so_far.setdefault("methods", {})
    year = 2000 if any(" 02-29 " in line for line in lines) else 2001
    for line in lines:
        if match := _METHOD.search(line):
            methods[_key(line, source).source] = match[1]
        if "SpecDecoding metrics" not in line and "generation throughput" not in line:
            continue
        key, time = _key(line, source), _time(line, year)
        if match := _ENGINE.search(line):
            engine, now = key._replace(engine=int(match[1] or 0)), time[0] if time else None
            since = now - last[engine] if now is not None and engine in last else None
            beside[key] = _Beside(engine.engine, float(match[2]), float(match[3]), since)
            if now is not None:
                last[engine] = now
        elif match := _COUNTS.search(line):
            near = beside.pop(key, None)
            rows = found.setdefault(key._replace(engine=near.engine if near else 0), [])
            before = rows[-1].window.end / 1e9 if rows else 0.0
            rows.append(_Row(_window(line, match, time, before), near))
    return [
        Printed(
            "vLLM",
            _name(key, found),
            _of_one_length([*_windows(rows)]),
            note=NOTE,
            drafter=methods.get(key.source, ""),
        )
        for key, rows in found.items()
    ]


def _windows(rows: Sequence[_Row]) -> Iterator[Window]:
    """Yield windows of one interval each, as long as those without a pause before them."""
    steady = [row.seconds for row in rows if row.steady]
    usual = median(steady) if steady else 0.0
    for row in rows:
        seconds, window = row.seconds if row.steady else min(usual, row.seconds), row.window
        if seconds:
            window = replace(window, start=max(0, window.end - round(1e9 * seconds)))
        if row.beside is None:
            yield window
        else:
            tokens = round(row.beside.speed * seconds) if seconds else None
            yield replace(window, tokens=tokens, running=row.beside.running)


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


def _window(line: str, counts: re.Match[str], time: tuple[float, str] | None, before: float) -> Window:
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
    return window(
        max(0.0, end - seconds),
        end,
        label=label,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        places=places_of(rates, drafts) if rates else (),
    )


def _of_one_length(rows: Sequence[Window]) -> list[Window]:
    """Return windows without numbers of drafts that rest on one draft length, if there are several.

    Other windows show that, whose mean acceptance length tells the number.
    """
    varied = any(row.drafts and row.places and row.drafts * len(row.places) != row.drafted for row in rows)
    guessed = [varied and not row.accepted and row.drafted for row in rows]
    return [replace(row, drafts=None) if guess else row for row, guess in zip(rows, guessed, strict=True)]
