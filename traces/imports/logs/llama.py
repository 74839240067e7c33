"""The log of llama.cpp's server: `print_timing`, `draft acceptance` and `statistics` lines.

Each request is a window. Its `statistics` lines, one per drafter, are totals since the server's
start, so a window has the difference of two; since the summer of 2026 only logs of level 4 have
them. A drafter's `dur(b,g,a)` is the time of its drafts: begin, generate, accept. Its rates by
place are accepted tokens / calls of accept. Source: `server-context.cpp` and
`common/speculative.cpp`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from specscope.engine.trace.events import Window
from specscope.traces.imports.logs.windows import Printed, drafts_of, nanoseconds, places_of, whole, window

_OWN = re.compile(
    r"slot +print_timing|(?:prompt )?eval time =|draft acceptance|statistics |srv +load_model|load_model:"
)
_TIME = re.compile(r"^(.*?)(\d{1,6})\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] ")
_SLOT = re.compile(r"slot\s+print_timing:\s+id\s+(\d+)\s+\|\s+task\s+(-?\d+)\s+\|")
_EVAL = re.compile(r"(prompt )?eval time =\s*(\d+(?:\.\d+)?) ms /\s*(\d+) (?:tokens|runs)")
_DRAFT = re.compile(r"draft acceptance(?: rate)? =\s*[\d.]+ \(\s*(\d+) accepted /\s*(\d+) generated\)(.*)")
_MEAN = re.compile(r"mean (?:acceptance length|len) =\s*(\d+\.\d\d)")
_PLACES = re.compile(r"acc(?:eptance rate)? per pos(?:ition)? = \(([\d., ]*)\)")
_TOTALS = re.compile(
    r"statistics\s+([\w-]+): #calls(?:\(b,g,a\))? =\s*\d+(?:\s+\d+\s+(\d+))?, #gen drafts =\s*(\d+), #acc drafts =\s*\d+, "
    r"#gen tokens =\s*(\d+), #acc tokens =\s*(\d+)(.*)"
)
_RATES = re.compile(r"#acc rate/pos = \(([\d., ]*)\)")
_DURATION = re.compile(r"dur\(b,g,a\) = (\d+(?:\.\d+)?), (\d+(?:\.\d+)?), (\d+(?:\.\d+)?) ms")
_RESTART = 1.0
"""Seconds by which the time of a line falls only if the server was started anew."""
_ROUGH = 20
"""Ratio of all drafts to a request's from which on the rounded rates of all do not tell its own."""
_OPEN = 256
"""The newest requests of a log, of which more lines may come."""
STEPS = "Steps are tokens - accepted - 1: one too few for an answer whose end cut its last step"
NOTE = f"{STEPS}; drafts without a line of statistics follow from the mean length"
_MODEL = re.compile(r"load_model: loading model '([^']+)'")


class _Totals(NamedTuple):
    """A drafter's counters since the server's start."""

    drafts: int
    drafted: int
    accepted: int
    places: tuple[int, ...]
    ms: float | None

    def since(self, before: _Totals | None) -> _Totals:
        """Return what was counted since an earlier line; all of it after a restart."""
        if before is None or before.drafts > self.drafts or before.drafted > self.drafted:
            return self
        then = before.places or (0,) * len(self.places)
        drafts = self.drafts - before.drafts
        places = tuple(min(drafts, max(0, a - b)) for a, b in zip(self.places, then, strict=False))
        if _ROUGH * drafts < self.drafts:
            places = ()
        ms = None if self.ms is None or before.ms is None else max(0.0, self.ms - before.ms)
        return _Totals(
            drafts,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            places,
            ms,
        )


@dataclass
class _Request:
    """What was printed of one request."""

    label: str
    at: float | None = None
    tokens: int | None = None
    ms: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    mean: float | None = None
    rates: str = ""
    first: bool = False
    """Whether a drafter's totals are the first in the log, so that those before are unknown."""
    drafters: dict[str, _Totals] = field(default_factory=dict[str, _Totals])

    @property
    def told(self) -> bool:
        return self.drafted is not None or any(one.drafts for one in self.drafters.values())

    @property
    def is_whole(self) -> bool:
        """Whether the drafters counted this request alone, not others at once or before the log."""
        accepted = sum(one.accepted for one in self.drafters.values())
        drafted = sum(one.drafted for one in self.drafters.values())
        cut = self.accepted == self.drafted  # see `counts`
        return self.drafted is None or (accepted == self.accepted and (cut or drafted == self.drafted))

    def counts(self) -> tuple[int, int]:
        """Return (drafted, accepted).

        A model whose cache cannot be cut counts in `draft acceptance` only drafts that were
        accepted whole, so its two numbers are equal; its drafters count all.
        """
        parts = self.drafters.values() if self.is_whole else ()
        drafted, accepted = sum(one.drafted for one in parts), sum(one.accepted for one in parts)
        if self.drafted is None or self.accepted is None:
            return drafted, accepted
        return (max(drafted, self.drafted) if self.drafted == self.accepted else self.drafted), self.accepted


class _Server:
    """The requests of one server, in the order of their lines."""

    def __init__(self) -> None:
        self.model = ""
        self.requests: list[_Request] = []
        self._open: dict[str, _Request] = {}
        self._last: dict[str, _Totals] = {}
        self.drafters: dict[str, None] = {}
        """Their names, in the order of their lines."""
        self._now = _Request("")
        self._clock = self._begun = 0.0
        self._old: list[Window] = []
        self._settled, self._settled_at = 0, 0.0

    def line(self, text: str, at: float | None) -> None:
        if at is not None:
            if at + self._begun < self._clock - _RESTART:  # its clock began at 0 again
                self._begun = self._clock
                self._open.clear()
                self._last.clear()
            at = self._clock = at + self._begun
        if match := _MODEL.search(text):
            self.model = match[1].replace("\\", "/").rpartition("/")[2]
        slot = _SLOT.search(text)
        if slot:
            self._begin(f"task {slot[2]}")
        if match := _EVAL.search(text):
            if match[1] and (not slot or self._now.tokens is not None):  # the first line of a request
                self._begin(f"task {slot[2]}" if slot else f"request {len(self.requests) + 1}", again=True)
            elif not match[1]:
                self._now.ms, self._now.tokens, self._now.at = float(match[2]), whole(match[3]), at
        if match := _DRAFT.search(text):
            if not self.requests or self._now.drafted is not None:
                self._begin(self._now.label if slot else f"request {len(self.requests) + 1}", again=True)
            self._now.accepted, self._now.drafted = whole(match[1]), whole(match[2])
            self._now.mean = float(mean[1]) if (mean := _MEAN.search(match[3])) else None
            self._now.at = at if at is not None else self._now.at
        if match := _PLACES.search(text):
            self._now.rates = match[1]
        if match := _TOTALS.search(text):
            self._totals(match, at)

    def _begin(self, label: str, *, again: bool = False) -> None:
        known = None if again else self._open.get(label)
        unnamed = (
            self._now.label.startswith("request") and self._now.drafted is None and not self._now.drafters
        )
        if unnamed and not again:
            known, self._now.label = self._now, label  # the same request, whose later lines have a task
        if known is None:
            known = _Request(label)
            self.requests.append(known)
        self._open[label] = self._now = known

    def _totals(self, match: re.Match[str], at: float | None) -> None:
        """Take a drafter's line, which follows the lines of the request it ends."""
        if not self.requests or match[1] in self._now.drafters:  # of a request without other lines
            self._begin(f"request {len(self.requests) + 1}", again=True)
        drafts, rates, times = whole(match[3]), _RATES.search(match[6]), _DURATION.search(match[6])
        places = places_of(rates[1], whole(match[2] or match[3])) if rates else ()
        ms = sum(float(times[i]) for i in (1, 2, 3)) if times else None
        totals = _Totals(drafts, whole(match[4]), whole(match[5]), places, ms)
        self._now.first |= match[1] not in self._last
        self._now.drafters[match[1]] = totals.since(self._last.get(match[1]))
        self.drafters[match[1]] = None
        self._last[match[1]], self._now.at = totals, at if at is not None else self._now.at

    def windows(self) -> list[Window]:
        """Return the windows of all requests; those of requests long ago are made once."""
        found, at = list[Window](), self._settled_at
        for place, request in enumerate(self.requests[self._settled :], self._settled + 1):
            if request.told:
                seconds = (request.ms or 0.0) / 1e3
                at = at + seconds if request.at is None else request.at
                found += _windows(request, at - seconds, at)
            if place == len(self.requests) - _OPEN:
                self._old += found
                self._settled, self._settled_at, found = place, at, []
        return [*self._old, *found]


def _windows(request: _Request, start: float, end: float) -> Iterator[Window]:
    """Yield the window of a request, and if it has several drafters one for each."""
    parts = request.drafters if request.is_whole else dict[str, _Totals]()
    drafted, accepted = request.counts()
    drafts = drafts_of(drafted, accepted, 0, request.mean)
    if parts:
        drafts = sum(p.drafts for p in parts.values())
    least = 1 if drafts is None and drafted else drafts or 0
    steps = None if request.tokens is None else max(least, request.tokens - accepted - 1)
    ms = [p.ms for p in parts.values()]
    places = places_of(request.rates, drafts)
    if not places and len(parts) == 1:
        (places,) = (p.places for p in parts.values())
    whole_one = window(
        max(0.0, start),
        end,
        label="since the server's start" if request.first and request.drafted is None else request.label,
        steps=steps,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        places=places,
        tokens=request.tokens,
        busy=None if request.ms is None else nanoseconds(request.ms / 1e3),
        drafting=None if not ms or None in ms else nanoseconds(sum(filter(None, ms)) / 1e3),
    )
    yield whole_one
    for name, part in parts.items() if len(parts) > 1 else ():
        yield replace(
            whole_one,
            drafter=name,
            steps=None,
            tokens=None,
            busy=None,
            drafts=part.drafts,
            drafted=part.drafted,
            accepted=part.accepted,
            places=part.places,
            drafting=None if part.ms is None else nanoseconds(part.ms / 1e3),
        )


def read(lines: Sequence[str], so_far: dict[str, Any], source: Callable[[str], str]) -> list[Printed]:
    """Return the servers whose lines are in a log, told apart by what is before their own words."""
    servers: dict[str, _Server] = so_far.setdefault("servers", {})
    for line in lines:
        if (own := _OWN.search(line)) is None:
            continue
        match, at = _TIME.match(line), None
        if match is not None:
            at = 60 * int(match[2]) + int(match[3]) + int(match[4]) / 1e3 + int(match[5]) / 1e6
        name = source(match[1] if match else line[: own.start()])
        servers.setdefault(name, _Server()).line(line, at)
    found = [(name, one, one.windows()) for name, one in servers.items()]
    return [
        Printed("llama.cpp", name, rows, one.model, NOTE, drafter=" + ".join(one.drafters))
        for name, one, rows in found
        if rows
    ]
