"""Read a file as traces: SpecScope's own JSONL, or a form of another engine or tool."""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specscope.engine.errors import UsageError
from specscope.engine.files import check_values, parse_json, read_bytes
from specscope.engine.trace.jsonl import MOST_TRACE_BYTES, RECORDING, ROW, read_jsonl, whole_part
from specscope.traces.checks import check
from specscope.traces.imported import with_unknown
from specscope.traces.imports import streams
from specscope.traces.imports.logs import llama, sglang, vllm
from specscope.traces.imports.logs import printed as prints
from specscope.traces.imports.logs.answers import ROWS, printed
from specscope.traces.imports.logs.windows import Text, lines_of, trace_of
from specscope.traces.imports.modelopt import MODELOPT
from specscope.traces.imports.profiler import PROFILER
from specscope.traces.imports.servers import AIPERF, SGLANG, VLLM
from specscope.traces.imports.vcr import VCR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from specscope.engine.trace.trace import Trace
    from specscope.traces.imports.logs.answers import Rows
    from specscope.traces.imports.request_trace import Form

TEXTS = (
    Text("a log of llama.cpp's server", llama.read),
    Text("a log of vLLM", vllm.read),
    Text("a log of SGLang", sglang.read),
    Text("counters of /metrics", prints.counters),
    Text("the output of vLLM's example", prints.example),
    Text("the output of a bench", prints.bench),
)
MOST_WRAPPED = 6
"""Entries of a wrapper around a row."""
FORMS = (VLLM, AIPERF, SGLANG, VCR, MODELOPT, PROFILER)
MAX_BYTES = 128 * 2**20
"""Size of the largest file of another engine: parsed, it needs several times as much memory."""
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


def read_traces(path: str | Path, max_bytes: int = MOST_TRACE_BYTES) -> Imports:
    """Read a file; each request of another engine becomes a trace of its own.

    UsageError if it cannot be read, is too large, or is of no known form or version.
    """
    content = read_bytes(Path(path), max_bytes)
    try:
        content = _unpacked(content, min(max_bytes, MAX_BYTES))
        rows = _rows(content)
        form = _form_of(rows)
        parts = [rows] if form and form.whole else [[row] for row in rows]
        if len(parts) > MOST_RUNS:
            raise ValueError(f"it has {len(parts)} requests; at most {MOST_RUNS} are read")
    except ValueError as error:
        raise UsageError(f"cannot import {path}: {error}") from None
    try:
        if form is None and (found := _printed(rows, content)):
            return Imports(tuple(found))
    except ValueError as error:
        raise UsageError(f"cannot import {path}: {error}") from None
    if form is None:
        return Imports((_own(content, path),))
    traces: list[Trace] = []
    size = totals = 0
    try:
        for number, part in enumerate(parts, 1):
            short = form.totals if size > MOST_ROWS else None
            if trace := _read(form, short or form.read, part, number if len(parts) > 1 else 0):
                traces.append(trace)
                size += len(trace.decisions) + len(trace.commits)
                totals += short is not None
    except ValueError as error:
        raise UsageError(f"cannot import {path}: {error}") from None
    if not traces:
        raise UsageError(
            f"cannot import {path}: it says nothing of speculative decoding; expected {form.name}"
        )
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


def _unpacked(content: bytes, most: int) -> bytes:
    """Return the content of a file, unpacked if it is gzip, as profilers write traces."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    packed = zlib.decompressobj(wbits=31)
    try:
        unpacked = packed.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(f"it is no gzip file: {error}") from None
    if len(unpacked) > most:
        raise ValueError(f"unpacked it has more than {most} bytes, the most that are read")
    if not packed.eof:
        raise ValueError("the gzip file is cut")
    return unpacked


def _printed(rows: Sequence[Any], content: bytes) -> list[Trace]:
    """Return the traces of what an engine printed: JSON rows or lines of text; else none."""
    if rows:
        form = _rows_of(rows)
        return [checked(trace_of(printed(form, rows), form.name))] if form else []
    if ROW in content[:4096] or len(content) > MAX_BYTES:
        return []
    whole = content.decode("utf-8", "replace")
    if (stream := streams.read(whole)) is not None:
        return [checked(stream)]
    lines = lines_of(whole)
    for text in TEXTS:
        if found := text.read(lines):
            return [checked(trace_of(one, text.name)) for one in found]
    return []


def _rows_of(rows: Sequence[Any]) -> Rows | None:
    return next((form for form in ROWS if rows and form.recognises(rows[0])), None)


def checked(trace: Trace) -> Trace:
    """Return a trace with the date of its import, after checking it."""
    if not trace.header.created:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        trace.header = replace(trace.header, created=now)
    check(trace)
    return trace


def _form_of(rows: list[Any]) -> Form | None:
    return next((form for form in FORMS if rows and form.recognises(rows[0])), None)


def _own(content: bytes, path: str | Path) -> Trace:
    """Return the trace of SpecScope's own file, which `specscope.record` writes, too.

    Without a footer its status is `incomplete`.
    """
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


def _read(form: Form, read: Callable[[Any], Trace | None], part: list[Any], number: int) -> Trace | None:
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
        rows = _lines(content)
    except ValueError:
        return []
    else:
        rows = whole if isinstance(whole, list) else [whole]
    return [_unwrapped(row) for row in rows]


def _unwrapped(row: Any) -> Any:
    """Return what is in a wrapper `{"data": {...}}`, as proxies keep the events of a stream."""
    inner = row.get("data") if isinstance(row, dict) and len(row) <= MOST_WRAPPED else None
    return inner if isinstance(inner, dict) and (_form_of([inner]) or _rows_of([inner])) else row


def _lines(content: bytes) -> list[Any]:
    """Return the values of the lines; none if the first line is of no form of another engine."""
    rows: list[Any] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        if line.strip():
            try:
                rows.append(parse_json(line))
            except ValueError as error:
                if _form_of(rows) is None and _rows_of(rows) is None:
                    return []
                raise ValueError(f"line {number} is no JSON ({error}); is the file cut?") from None
            if _form_of(rows) is None and _rows_of(rows) is None:
                return []
    return rows


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    r"""Yield the lines of a file. Only \n ends a line: JSON may contain other line ends."""
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number}: byte {error.start} is not UTF-8") from None
