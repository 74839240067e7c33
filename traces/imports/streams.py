"""Recorded streams of servers: the events of one answer, as `curl -N` or a proxy keeps them.

Lines are `data: {...}`, or JSON rows {"t_ms": ..., "raw": "data: ..."} of a client that noted when
each arrived. llama.cpp's events have times of their own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.files import parse_json
from specscope.engine.servers.checks import unknown
from specscope.engine.servers.recording import trace_of
from specscope.engine.servers.steps import (
    UNCOUNTED,
    Answered,
    LlamaReader,
    Reader,
    ServerStep,
    Told,
    VllmReader,
)
from specscope.engine.trace.events import Device, Header
from specscope.engine.trace.ranges import NO_TOKEN
from specscope.traces.facts.imported import Imported, with_unknown
from specscope.traces.imports.request_trace import new_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specscope.engine.trace.trace import Trace


class Event(NamedTuple):
    """One event of a stream."""

    time: int | None
    """Nanoseconds since the request; None if unknown."""
    value: dict[str, Any]


def events_of(text: str) -> list[Event]:
    """Return the events of a stream in a text; empty if it is none."""
    found = list[Event]()
    for line in map(str.strip, text.split("\n")) if "data:" in text else ():
        time, value = None, line
        if line.startswith('{"t_ms"'):
            with suppress(ValueError):
                row = parse_json(line)
                time, value = _nanoseconds(row.get("t_ms")), str(row.get("raw", ""))
        if value.startswith(("data: {", "data:{")):
            with suppress(ValueError):
                event = parse_json(value.removeprefix("data:"))
                inner = event.get("data") if isinstance(event.get("data"), dict) else event
                found.append(Event(time, inner))
    return found


def _nanoseconds(ms: Any) -> int | None:
    return round(1e6 * ms) if isinstance(ms, int | float) and 0 <= ms < 1e12 else None


def answers_of(events: Iterable[Event]) -> list[list[Event]]:
    """Return the events of each answer: those of an id, or until the one that says `stop`."""
    found, number = dict[str, list[Event]](), 0
    for event in events:
        name, meta = event.value.get("id"), event.value.get("meta_info")  # SGLang's have the id there
        name = meta.get("id") if isinstance(meta, dict) else name
        found.setdefault(name if isinstance(name, str) else str(number), []).append(event)
        number += event.value.get("stop") is True
    return [*found.values()]


def read(events: Sequence[Event]) -> Trace | None:
    """Return the trace of an answer whose events tell all of its steps; else None.

    llama.cpp's tell them with `timings_per_token`, vLLM's with `return_token_ids`. ValueError for
    events of several choices.
    """
    values = [event.value for event in events]
    if any(_choice(value).get("index") not in (None, 0) for value in values):
        raise ValueError("the stream has several choices; ask with n = 1")
    llama = any("timings" in value or "tokens_predicted" in value for value in values)
    told = "timings" if llama else "token_ids"
    if not all(told in value or told in _choice(value) for value in values if _has_text(value)):
        return None
    reader: Reader = LlamaReader() if llama else VllmReader()
    steps, timed = list[ServerStep](), True
    for event in events:
        time = _own_time(event.value) if event.time is None else event.time
        found = reader.add(time or 0, event.value)
        timed = timed and (time is not None or not found)
        steps += found
    steps = reader.final([*steps, *reader.end()])
    if not steps or _lacks_events(steps, reader.told):
        return None
    answer = Answered(0, steps, reader.told)
    engine = "llama.cpp" if llama else "vLLM"
    return _trace(engine, answer, values, timed=timed and bool(steps[-1].time))


def _lacks_events(steps: Sequence[ServerStep], told: Told) -> bool:
    """Return whether tokens are missing; the one that ends an answer may have no event."""
    end = told.reason in ("eos", "stop")
    lacking = (told.tokens or 0) - sum(len(step.tokens) for step in steps)
    return told.tokens is not None and lacking not in (0, int(end))


def _choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _has_text(event: dict[str, Any]) -> bool:
    choice = _choice(event)
    delta = choice.get("delta")
    words = delta.get("content") if isinstance(delta, dict) else choice.get("text") or event.get("content")
    return bool(words)


def _own_time(event: dict[str, Any]) -> int | None:
    """Return the time of an event of llama.cpp: those of the prompt and of the tokens until it."""
    timings = event.get("timings")
    if not isinstance(timings, dict):
        return None
    parts = [_nanoseconds(timings.get(name)) for name in ("prompt_ms", "predicted_ms")]
    return None if None in parts else sum(filter(None, parts))


def _trace(engine: str, answer: Answered, content: Any, *, timed: bool) -> Trace:
    device = Device("server:0", "drafter+target", engine, "server")
    plain = Header("stream", "", "", "", {}, ("",), ((),), {}, {}, engine, "", (device,), "", "")
    found = trace_of(plain, [answer], "")
    facts = with_unknown(found).header.environment["recorded"]["unknown"]
    lacking = [*facts, *unknown([answer])]
    if not timed:
        lacking.append("times")
        found.spans.clear()
        found.rounds = [replace(r, time=0, span=-1) for r in found.rounds]
        found.commits = [replace(c, time=0) for c in found.commits]
        found.decisions = [replace(d, verify_span=-1) for d in found.decisions]
    if any(token.id == NO_TOKEN for step in answer.steps for token in step.tokens):
        lacking.append("ids of the tokens")
    found.header = new_header(
        Imported(f"a stream of {engine}", tuple(dict.fromkeys(lacking))),
        engine=engine,
        key="stream",
        content=content,
        prompts=1,
        prompt=answer.told.prompt,
        model=answer.told.model.replace("\\", "/").rpartition("/")[2],
        devices=(device,) if timed else (),
        note=UNCOUNTED if answer.told.drafted is None else "",
    )
    if found.footer is not None and not timed:
        found.footer = replace(found.footer, time=0)
    return found
