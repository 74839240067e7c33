"""Short texts that engines and their benches print: counters, vLLM's example, rows of a bench."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from specscope.engine.servers.counters import ENGINES, Counters, read_counters
from specscope.engine.trace.events import Window
from specscope.traces.imports.logs.windows import Printed, nanoseconds, places_of, whole, window


class _Summary(NamedTuple):
    """A summary of lines that are a name and a value."""

    engine: str
    needs: tuple[str, ...]
    names: dict[str, str]
    """A count, or `seconds` -> what is before its value."""
    place: str = "$^"
    """What is before the share of drafts with an accepted token at a place, which is a group."""
    whole: float = 1.0
    """The share of all drafts."""


_SUMMARIES = (
    _Summary(
        "vLLM",
        ("drafts", "accepted"),
        {
            "tokens": "total_num_output_tokens: ",
            "drafts": "num_drafts: ",
            "drafted": "num_draft_tokens: ",
            "accepted": "num_accepted_tokens: ",
        },
        r"acceptance at token (\d{1,4}): ",
    ),
    _Summary(
        "vLLM",
        ("drafts", "accepted"),
        {
            "seconds": r"Benchmark duration \(s\): +",
            "tokens": "Total generated tokens: +",
            "drafts": "Drafts: +",
            "drafted": "Draft tokens: +",
            "accepted": "Accepted tokens: +",
        },
        r" *Position (\d{1,4}): +",
        100.0,
    ),
    _Summary(
        "llama.cpp",
        ("drafted", "accepted"),
        {
            "seconds": r"decoded +\d+ tokens in +",
            "tokens": "n_predict += ",
            "drafted": "n_drafted += ",
            "accepted": "n_accept += ",
        },
    ),
)
"""Of vLLM's offline example, of `vllm bench serve`, of llama.cpp's examples `speculative*`."""
_BEFORE = r"(?:^|\| )"
"""Of a name: nothing, or what docker compose puts there."""
_VALUE = r"(\d{1,20}(?:\.\d{1,20})?)(?:\s|$)"
_ROW = re.compile(
    r"^\s*(\S+)\s+pred=\s*(\d+)\s+draft=\s*(\d+)\s+acc=\s*(\d+)\s+rate=[\d.]+\s+tok/s=([\d.]+)\s*$"
)
SINCE = (
    "Counters since the server's start; specscope import AFTER --since BEFORE tells what is between two texts"
)


COUNTS = ("drafts", "drafted", "accepted", "tokens")


def counters(lines: Sequence[str]) -> list[Printed]:
    """Return the counters of a text of Prometheus; of several what is between each two of them."""
    found = [(engine, _texts(lines, prefix)) for prefix, engine in ENGINES.items()]
    return [_counted(engine, texts) for engine, texts in found if texts]


def between(before: Sequence[str], after: Sequence[str]) -> list[Printed]:
    """Return what was counted between two texts. ValueError if they count nothing in common."""
    both = [(engine, _texts(before, prefix), _texts(after, prefix)) for prefix, engine in ENGINES.items()]
    found = [_counted(engine, [first[-1], last[-1]]) for engine, first, last in both if first and last]
    if not found:
        raise ValueError(
            "these are not two texts of /metrics with counters of drafts, of one vLLM or llama.cpp; give both as the server sent them"
        )
    return found


def _texts(lines: Sequence[str], prefix: str) -> list[Counters]:
    """Return the counters of each text of an engine; the first counter begins a text."""
    own = [line.strip() for line in lines if line.lstrip().startswith(f"{prefix}:spec_decode_num_")]
    names = [line.partition("}")[0] if "}" in line else line.partition(" ")[0] for line in own]
    starts = [i for i, name in enumerate(names) if name == names[0]]
    parts = [own[low:high] for low, high in pairwise([*starts, len(own)])]
    return [one for part in parts if (one := read_counters("\n".join(part))) is not None]


def _counted(engine: str, texts: Sequence[Counters]) -> Printed:
    if len(texts) == 1:
        return Printed(engine, "", [counted(texts[0], label="since the server's start")], note=SINCE)
    rows = list[Window]()
    for number, (before, after) in enumerate(pairwise(texts), 1):
        if (new := after.since(before)) is None:
            raise ValueError(
                f"a counter is lower in text {number + 1} than in text {number}: they are in the wrong order, or the server "
                "was started anew between them; give the earlier one of one start first"
            )
        rows.append(counted(new, label=f"text {number} to {number + 1}" if len(texts) > 2 else ""))
    return Printed(engine, "", rows)


def counted(now: Counters, start: float = 0, end: float = 0, **more: Any) -> Window:
    """Return what was counted as a window."""
    counts = {name: getattr(now, name) for name in ("drafts", "drafted", "accepted", "places")}
    return window(start, end, **counts, **more)


def summaries(lines: Sequence[str]) -> list[Printed]:
    """Return what examples and benches print at their end: totals, and shares by place."""
    found = ((form.engine, _totals(form, lines)) for form in _SUMMARIES)
    return [Printed(engine, "", rows) for engine, rows in found if rows]


def _totals(form: _Summary, lines: Sequence[str]) -> list[Window]:
    """Return a window for each summary of a form; a name that comes again begins the next one."""
    names = {name: re.compile(_BEFORE + before + _VALUE) for name, before in form.names.items()}
    place, found = re.compile(_BEFORE + form.place + _VALUE), [dict[str | int, float]()]
    for line in lines:
        at: dict[str | int, re.Match[str] | None] = {name: one.search(line) for name, one in names.items()}
        if (share := place.search(line)) and "drafts" in found[-1]:
            at[int(share[1])] = share
        for name, match in at.items():
            if match is not None:
                found += [{}] if name in found[-1] else []
                found[-1][name] = float(match[match.lastindex or 0]) / (form.whole if match is share else 1)
    rows, end = list[Window](), 0.0
    for told in found:
        if all(name in told for name in form.needs):
            rows.append(_summed(told, end))
            end = rows[-1].end / 1e9
    return rows


def _summed(told: dict[str | int, float], at: float) -> Window:
    counts = {name: whole(f"{told[name]:.0f}") for name in COUNTS if name in told}
    shares = [told.get(i, 0.0) for i in range(1 + max((i for i in told if isinstance(i, int)), default=-1))]
    places = places_of(shares, counts.get("drafts"))
    rounded = len(places) * (1 + 0.005 * counts.get("drafts", 0))
    if abs(sum(places) - counts["accepted"]) > rounded:  # a line is missing
        places = ()
    return window(at, at + told.get("seconds", 0.0), places=places, **counts)


def bench(lines: Sequence[str]) -> list[Printed]:
    """Return the requests of a bench of llama.cpp's server: `pred= draft= acc= rate= tok/s=`."""
    rows, at = [], 0.0
    for match in filter(None, map(_ROW.match, lines)):
        tokens, accepted, speed = whole(match[2]), whole(match[4]), float(match[5])
        seconds = max(0, tokens - 1) / speed if speed else 0.0  # the prompt's forward makes the first
        counts = {"drafted": whole(match[3]), "accepted": accepted, "steps": max(0, tokens - accepted - 1)}
        rows.append(
            window(at, at + seconds, label=match[1][:80], tokens=tokens, busy=nanoseconds(seconds), **counts)
        )
        at += seconds
    return [Printed("llama.cpp", "", rows)] if rows else []
