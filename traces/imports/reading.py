"""Read a file as traces: SpecScope's own JSONL, or a form of another engine or tool."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.engine.errors import UsageError
from specscope.engine.files import check_values, parse_json
from specscope.engine.trace.jsonl import MOST_TRACE_BYTES, RECORDING, ROW, read_jsonl, whole_part
from specscope.traces.facts.checks import check
from specscope.traces.facts.imported import with_unknown
from specscope.traces.imports import streams
from specscope.traces.imports.content import MAX_BYTES, content_of
from specscope.traces.imports.logs import llama, sglang, vllm
from specscope.traces.imports.logs import printed as prints
from specscope.traces.imports.logs.answers import ROWS, printed
from specscope.traces.imports.logs.windows import LogForm, TextForm, lines_of, servers, trace_of
from specscope.traces.imports.modelopt import MODELOPT
from specscope.traces.imports.naming import named
from specscope.traces.imports.profiler import PROFILER
from specscope.traces.imports.servers import AIPERF, SGLANG, VLLM
from specscope.traces.imports.vcr import VCR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from specscope.engine.trace.trace import Trace
    from specscope.traces.imports.logs.answers import JsonForm
    from specscope.traces.imports.request_trace import FileForm

COUNTERS = TextForm("counters of /metrics", prints.counters)
LOGS = (
    LogForm("a log of llama.cpp's server", llama.read),
    LogForm("a log of vLLM", vllm.read),
    LogForm("a log of SGLang", sglang.read),
)
TEXTS = (
    COUNTERS,
    TextForm("the summary of a bench or an example", prints.summaries),
    TextForm("the output of a bench", prints.bench),
)
MOST_WRAPPED = 12
"""Entries of a wrapper around a row, or around a list of rows."""
FORMS = (VLLM, AIPERF, SGLANG, VCR, MODELOPT, PROFILER)
MOST_RUNS = 10_000
MOST_ROWS = 500_000
"""Decisions and tokens of the requests of a file from which on the others have totals only."""
MOST_TRACE_VALUES = 16_000_000
"""Of SpecScope's own file, in about a gigabyte of memory; a usual one of 200 MB has as many."""


@dataclass(frozen=True, slots=True)
class Imports:
    """The traces of a file."""

    traces: tuple[Trace, ...]
    skipped: int = 0
    """Requests that say nothing of speculative decoding."""
    repeated: int = 0
    """Requests that the file has twice, each beside the one that is read."""
    totals: int = 0
    """Requests whose totals are read, but not their tokens, as there are more than `MOST_ROWS`."""

    @property
    def notes(self) -> list[str]:
        """What was not read as it is in the file."""
        many = f"their tokens and drafts are more than {MOST_ROWS:,}"
        what = {
            "left out: nothing about speculative decoding": self.skipped,
            "left out: the file has the same one twice": self.repeated,
            f"read without the order of the steps: {many}": self.totals,
        }
        return [
            f"{n:,} {'request was' if n == 1 else 'requests were'} {text}" for text, n in what.items() if n
        ]

    @property
    def set(self) -> str:
        """The name of the set that the requests of a file are; empty without several."""
        return self.traces[0].header.group if len(self.traces) > 1 else ""


def read_traces(path: str | Path, max_bytes: int = MOST_TRACE_BYTES, since: Path | None = None) -> Imports:
    """Read a file; each request of another engine becomes a trace of its own.

    Args:
        path: The file.
        max_bytes: The size of the largest file that is read.
        since: An earlier text of the counters in `path`: what was counted between the two is read.

    UsageError if it cannot be read, is too large, or is of no known form or version; it says what
    the file is instead.
    """
    content = content_of(path, max_bytes)
    try:
        if since is not None:
            texts = (
                lines_of(part.decode("utf-8", "replace")) for part in (content_of(since, max_bytes), content)
            )
            return Imports(tuple(checked(trace_of(one, COUNTERS.name)) for one in prints.between(*texts)))
        rows = _rows(content)
        form = _form_of(rows)
        parts = [rows] if form and form.whole else [[row] for row in rows]
        if len(parts) > MOST_RUNS:
            raise ValueError(f"it has {len(parts)} requests; at most {MOST_RUNS} are read")
        if form is None:
            return Imports(tuple(_printed(rows, content)) or (_own(rows, content, path),))
        traces, totals = _of_form(form, parts)
        if not traces:
            nothing = f"it says nothing of speculative decoding; expected {form.name}"
            raise ValueError(named(content, rows, nothing))
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"cannot import {path}: {error}") from None
    once = {trace.header.run_id: trace for trace in traces}
    repeated = len(traces) - len(once)
    return Imports(_as_set(tuple(once.values())), len(parts) - len(traces), repeated, totals)


def _as_set(traces: tuple[Trace, ...]) -> tuple[Trace, ...]:
    """Return the requests of a file with the name of their set as group."""
    if len(traces) > 1:
        ids = ",".join(trace.header.run_id for trace in traces)
        name = f"set-{hashlib.sha256(ids.encode()).hexdigest()[:8]}"
        for trace in traces:
            trace.header = replace(trace.header, group=name)
    return traces


def _of_form(form: FileForm, parts: Sequence[list[Any]]) -> tuple[list[Trace], int]:
    """Return the traces of requests, and how many of these have totals only."""
    traces: list[Trace] = []
    size = totals = 0
    for number, part in enumerate(parts, 1):
        short = form.totals if size > MOST_ROWS else None
        if trace := _read(form, short or form.read, part, number if len(parts) > 1 else 0):
            traces.append(trace)
            size += len(trace.decisions) + len(trace.commits)
            totals += short is not None
    return traces, totals


def _printed(rows: Sequence[Any], content: bytes) -> list[Trace]:
    """Return the traces of what an engine printed: JSON rows or lines of text; else none."""
    if form := _rows_of(rows):
        found = printed(form, rows)
        return [checked(trace_of(found, form.name))] if found.windows else []
    if ROW in content[:4096] or len(content) > MAX_BYTES:
        return []
    whole = content.decode("utf-8", "replace")
    answers = streams.answers_of(streams.events_of(whole))
    if streamed := [checked(one) for answer in answers if (one := _streamed(answer))]:
        return streamed
    lines = lines_of(whole)
    found = [(one, text.name) for text in LOGS for one in servers(text, lines)]  # a file may have several
    for text in TEXTS if not found else ():
        found = found or [(one, text.name) for one in text.read(lines)]
    return [checked(trace_of(one, name)) for one, name in found]


def _streamed(answer: Sequence[streams.Event]) -> Trace | None:
    """Return the trace of a stream: its steps, else the totals of its last event, else None."""
    if (found := streams.read(answer)) is not None:
        return found
    for last in ([event.value] for event in reversed(answer)):
        if form := _rows_of(last):
            return trace_of(printed(form, last), form.name)
        if (form := _form_of(last)) and (found := form.read(last[0])):
            return found
    return None


def _rows_of(rows: Sequence[Any]) -> JsonForm | None:
    return next((form for form in ROWS if rows and form.recognises(rows[0])), None)


def checked(trace: Trace) -> Trace:
    """Return a trace with the date of its import, after checking it."""
    if not trace.header.created:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        trace.header = replace(trace.header, created=now)
    check(trace)
    return trace


def _form_of(rows: list[Any]) -> FileForm | None:
    return next((form for form in FORMS if rows and form.recognises(rows[0])), None)


def _own(rows: list[Any], content: bytes, path: str | Path) -> Trace:
    """Return the trace of SpecScope's own file, which `specscope.record` writes, too.

    Without a footer its status is `incomplete`. ValueError if the file is known to be another one.
    """
    if ROW not in content[:4096]:
        raise ValueError(named(content, rows or _first(content)))
    try:
        check_values(content, MOST_TRACE_VALUES)
        whole = _without_cut_line(content)
        lines, cut = io.BytesIO(whole), list[int]()
        recorded = RECORDING in content.partition(b"\n")[0]
        trace = with_unknown(read_jsonl(_decoded(_without_cut_rows(lines, cut) if recorded else lines)))
        if len(whole) < len(content):
            trace.footer = trace.new_footer("incomplete", "the file ends within a line, without a footer")
        if cut and trace.footer:
            where = f"line{'s' * (len(cut) > 1)} {', '.join(map(str, cut[:3]))}{', …' * (len(cut) > 3)}"
            why = [f"{where} had a row that a killed process did not finish", trace.footer.error]
            trace.footer = replace(trace.footer, status="incomplete", error="; ".join(filter(None, why)))
        check(trace)
    except ValueError as error:
        events = b'"event"' in content[:4096]
        more = "" if events else "; docs/traces.md lists the files of other engines that are read"
        raise UsageError(f"{path} is not a SpecScope trace: {error}{more}") from None
    return trace


def _without_cut_line(content: bytes) -> bytes:
    """Return a file without a last line that its writer did not finish, as it was killed."""
    whole, _, last = content.rpartition(b"\n")
    if not whole or not last.strip() or b'{"event":"footer"' in whole:
        return content
    try:
        parse_json(last)
    except ValueError:
        return whole + b"\n"
    return content


def _without_cut_rows(lines: Iterable[bytes], cut: list[int]) -> Iterator[bytes]:
    """Yield the lines of a recording without unfinished rows; `cut` gets the numbers of these."""
    for number, line in enumerate(lines, 1):
        whole = whole_part(line) if number > 1 else line
        if whole != line:
            cut.append(number)
        yield whole


def _read(form: FileForm, read: Callable[[Any], Trace | None], part: list[Any], number: int) -> Trace | None:
    try:
        if not all(map(form.recognises, part)):
            raise ValueError(f"expected {form.name}")
        trace = read(part if form.whole else part[0])
        if trace is not None:
            checked(trace)
    except RecursionError:
        raise ValueError("the JSON nests too deeply") from None
    except ValueError as error:
        raise ValueError(f"request {number}: {error}" if number else str(error)) from None
    return trace


def _rows(content: bytes) -> list[Any]:
    """Return the JSON values of a file: one, those of a list, or one per line.

    The list is empty if the file is SpecScope's own, or no JSON.
    """
    first = content.lstrip()[:4096].split(b"\n", 1)[0]
    if first.startswith(b'{"event"') or not first.startswith((b"{", b"[")):
        return []
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has {len(content)} bytes; of another engine at most {MAX_BYTES} are read")
    check_values(content)  # all lines together: each of them may have few
    try:
        whole = parse_json(content)
    except json.JSONDecodeError:
        return _lines(content)
    except ValueError:
        return []
    rows = whole if isinstance(whole, list) else [whole]
    return [inner for row in rows for inner in _unwrapped(row)]


def _unwrapped(row: Any, depth: int = 2) -> list[Any]:
    """Return the rows in a wrapper, as proxies and programs keep them; else the row itself.

    For example `{"data": {...}}`, `{"responses": [...]}`, or `{"response": {"body": {...}}}` beside
    its request.
    """
    if isinstance(row, dict) and len(row) <= MOST_WRAPPED and not _known([row]):
        for value in row.values():
            rows = value if isinstance(value, list) else _unwrapped(value, depth - 1) if depth else [value]
            if _known(rows):
                return rows
    return [row]


def _known(rows: list[Any]) -> bool:
    return _form_of(rows) is not None or _rows_of(rows) is not None


def _first(content: bytes) -> list[Any]:
    """Return the JSON value of the first line; none if it is no JSON."""
    try:
        return [parse_json(content.lstrip()[:1_000_000].partition(b"\n")[0])]
    except ValueError:
        return []


def _lines(content: bytes) -> list[Any]:
    """Return the values of the lines; none if the first line is of no form of another engine."""
    rows: list[Any] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            try:
                rows += _unwrapped(parse_json(line))
            except ValueError as error:
                if not _known(rows):
                    return []
                raise ValueError(f"line {number} is no JSON ({error}); is the file cut?") from None
            if not _known(rows):
                return []
    return rows


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    r"""Yield the lines of a file. Only \n ends a line: JSON may contain other line ends."""
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number}: byte {error.start} is not UTF-8") from None
