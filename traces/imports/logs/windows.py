"""Windows of counts as a trace, and the counts that printed averages stand for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.files import parse_json
from specscope.engine.trace.events import Footer, Window
from specscope.engine.trace.ranges import LONGEST_DRAFT, MOST_WHOLE
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.counted import figures, histogram, of_one_length, total, whole_windows
from specscope.traces.facts.imported import COUNTED, Counts, Imported
from specscope.traces.imports.request_trace import new_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_WINDOWS = 200_000
MOST_SECONDS = 1e10
"""Since 1970, or the first line; a stored window is checked again, since the first window."""
MOST_NAME = 80
"""Characters of a server's name, the last of what is before its lines."""
MOST_SERVERS = 16
"""Of a log: more are no servers, but something else before each line, such as a request's id."""
MOST_LINE = 4096
"""Characters of a line that are read: a search may take the square of them."""
ROUNDED = 0.02
"""Most share of the drafts by which rounding changes a place."""
MOST_SETTINGS = 65536
"""Of SGLang's line of all its settings."""
_TIMES = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?|"
    r"\b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?|\b\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\b|"
    r"(?<![\w.])\d{1,4}[/.]\d{1,2}[/.]\d{1,4}(?![\w.])|\b1\d{9}(?:\d{3}|\.\d{1,9})?\b|"
    r"\[ *\d{1,9}\.\d{3,9}\]|\b\d{1,6}\.\d\d\.\d{3}\.\d{3} [A-Z]\b|\bstd(?:out|err) [FP]\b|"
    r"\b(?:DEBUG|INFO|WARNING)\b|:[A-Za-z_]\w{0,80}:\d{1,6}\b"
)
"""Times and levels of log, and the place in a program that wrote the line."""
_NUMBER = re.compile(r":\d{1,9}: *$")
"""Of the line, as `grep -n` puts it after the file's name."""
_LOOSE = re.compile(r"\[?(?<![\w./-])\d+(?![\w./-])\]?")
"""A number that is not a part of a name, such as that of the line or of the process."""
_MESSAGES = ("log", "MESSAGE", "message", "msg", "line")
_WRITERS = ("pod_name", "container_name", "CONTAINER_NAME", "pod", "container", "service", "_SYSTEMD_UNIT")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class TextForm(NamedTuple):
    """A form of text that an engine prints."""

    name: str
    read: Callable[[Sequence[str]], list[Printed]]
    """Lines without colours -> what they tell; empty if they are of no such form."""


class LogForm(NamedTuple):
    """A form of log, which may grow."""

    name: str
    read: Callable[[Sequence[str], dict[str, Any], Callable[[str], str]], list[Printed]]
    """(lines without colours, what earlier lines told, words before a line -> its server).

    Returns what all lines told; the second value is empty at first, and keeps it.
    """


class Printed(NamedTuple):
    """What one engine printed."""

    engine: str
    key: str
    """What tells it from others in the same text, such as a container's name; may be empty."""
    windows: list[Window]
    model: str = ""
    note: str = ""
    """How counts follow from what is printed, where they are not printed themselves."""
    prompts: Sequence[int] = ()
    """Tokens of the prompt of each window; -1 is unknown."""
    form: str = ""
    drafter: str = ""
    """What drafts, as the engine calls it, such as `eagle3` or `draft-mtp`; empty if unknown."""

    @property
    def title(self) -> str:
        return f"{self.engine} · {self.key}" if self.key else self.engine


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, without colours, control characters and what is too long."""
    lines = text.replace("\r", "\n").split("\n")
    cut = (line[: MOST_SETTINGS if "server_args" in line[:400] else MOST_LINE] for line in lines)
    return [_COLOURS.sub("", _message(line)) for line in cut]


def _message(line: str) -> str:
    """Return the text in a row of a log of Docker, journald or the like; another line as it is."""
    if not line.startswith('{"'):
        return line
    try:
        row: Any = parse_json(line)
    except ValueError:
        return line
    inner = row.get("kubernetes")
    texts = {
        key: value
        for key, value in (row | (inner if isinstance(inner, dict) else {})).items()
        if isinstance(value, str)
    }
    message = next((texts[name] for name in _MESSAGES if name in texts), line)
    writer = next((texts[name] for name in _WRITERS if name in texts), "")
    return f"{writer} | {message}" if writer else message


def source_of(before: str) -> str:
    """Return who wrote a line, from what is before the engine's own words; times are no name.

    As docker compose, kubectl, journald or `grep` put it there: a container's, a pod's or a file's
    name.
    """
    return _NUMBER.sub("", _TIMES.sub("", before)).strip(" :|[]\t>,-")[-MOST_NAME:]


def servers(log: LogForm, lines: Sequence[str]) -> list[Printed]:
    """Return what a log tells of each server.

    If most names stand in one line only, numbers that stand alone are left out of the names. If
    there are too many names even then, all lines are those of one server.
    """
    seen = Counter[str]()

    def counted(before: str) -> str:
        seen[name := source_of(before)] += 1
        return name

    found = log.read(lines, {}, counted)
    if sum(n == 1 for n in seen.values()) > max(2, len(seen) // 2):
        found = log.read(lines, {}, lambda before: " ".join(_LOOSE.sub("", source_of(before)).split()))
    return found if len(found) <= MOST_SERVERS else log.read(lines, {}, lambda _: "")


def trace_of(printed: Printed, source: str) -> Trace:
    """Return the trace of what an engine printed.

    Windows begin at the first one's start. ValueError if there are too many.
    """
    windows = sorted(printed.windows, key=lambda one: (one.start, one.end))
    if len(windows) > MOST_WINDOWS:
        raise ValueError(
            f"it has {len(windows)} windows of counts; at most {MOST_WINDOWS} are read; split the file"
        )
    begin = min((one.start for one in windows), default=0)
    rows = [shifted(one, -begin) for one in windows]
    lacking = {
        "number of tokens": all(one.tokens is None for one in rows),
        "times": all(one.busy is None and one.end == one.start for one in rows),
    }
    known = tuple(name for name, value in figures(rows).items() if value not in (None, ()))
    kept = histogram(rows) if of_one_length(rows) else ()
    drafted, tokens = (total(whole_windows(rows), name) for name in ("drafted", "tokens"))
    counts = Counts(kept, drafted, len(kept) - 1, tokens) if kept else None
    unknown = (*COUNTED, *(fact for fact, missing in lacking.items() if missing))
    content: Any = [
        list(map(str, (one.start, one.end, one.label, one.drafter, one.drafted, one.accepted)))
        for one in rows
    ]
    header = new_header(
        Imported(source, unknown, counts, known, prompt_tokens=tuple(printed.prompts)),
        engine=printed.engine,
        key=printed.key,
        content=content,
        model=printed.model,
        note=printed.note,
    )
    title = " · ".join(filter(None, (printed.engine, printed.drafter[:MOST_NAME], printed.key)))
    end = max((one.end for one in rows), default=0)
    return Trace.of([replace(header, title=title), *rows, Footer("done", (), (), end)])


def shifted(window: Window, by: int) -> Window:
    return replace(window, start=window.start + by, end=window.end + by)


_COUNTS = ("steps", "drafts", "drafted", "accepted", "tokens", "busy", "drafting", "running")
_EMPTY: dict[str, Any] = {"drafter": "", "label": "", "places": ()} | dict.fromkeys(_COUNTS)


def window(start: float, end: float, **counts: Any) -> Window:
    """Return a window from seconds, with what is not given as unknown."""
    if end < start:
        raise ValueError(f"a time is {end - start:g} s; expected 0 to {MOST_SECONDS:g}")
    found = _EMPTY | counts
    if not _fit(**{name: found[name] for name in ("places", "drafts", "accepted")}):
        found["places"] = ()
    return Window(nanoseconds(start), nanoseconds(end), **found)


def _fit(places: Sequence[int], drafts: int | None, accepted: int | None) -> bool:
    """Return whether accepted tokens by place, which follow from rounded rates, fit the counts."""
    if drafts is None or not places:
        return True
    apart = 0 if accepted is None else abs(sum(places) - accepted)
    return max(places) <= drafts and apart <= len(places) * (1 + ROUNDED * drafts)


def nanoseconds(seconds: float) -> int:
    """Return a time; ValueError for one that no trace holds."""
    if not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"a time is {seconds:g} s; expected 0 to {MOST_SECONDS:g}")
    return round(1e9 * seconds)


def places_of(rates: str | Iterable[float], drafts: int | None) -> tuple[int, ...]:
    """Return the accepted tokens by place of printed shares of the drafts; empty if unknown."""
    shares = [float(one) for one in re.findall(r"\d+\.?\d*", rates)] if isinstance(rates, str) else [*rates]
    if drafts is None or len(shares) > LONGEST_DRAFT:
        return ()
    return tuple(round(share * drafts) for share in shares)


def drafts_of(drafted: int, accepted: int, longest: int, mean: float | None) -> int | None:
    """Return the number of drafts; None if the averages do not tell it within a tenth.

    All of them have the longest length if that fits the printed mean acceptance length.
    """
    if longest and not drafted % longest:
        number = drafted // longest
        if not number or mean is None or abs(1 + accepted / number - mean) < 0.0051:
            return number
    if mean is None or mean < 1.05 or not accepted:
        return None
    return round(accepted / (mean - 1))


def whole(text: str) -> int:
    """Return a whole number in a text; ValueError if it is too large."""
    number = int(text)
    if number > MOST_WHOLE:
        raise ValueError(f"a count is {text[:40]}; expected at most {MOST_WHOLE}")
    return number
