"""Short texts that engines and their benches print: counters, vLLM's example, rows of a bench."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from specscope.engine.servers.counters import ENGINES, Counters, read_counters
from specscope.engine.trace.events import Window
from specscope.traces.imports.logs.windows import Printed, nanoseconds, places_of, whole, window

_SUMMARY = re.compile(
    r"^(total_num_output_tokens|num_drafts|num_draft_tokens|num_accepted_tokens): (\d+)\s*$"
)
_AT = re.compile(r"^acceptance at token (\d+): ([\d.]+)\s*$")
_ROW = re.compile(
    r"^\s*(\S+)\s+pred=\s*(\d+)\s+draft=\s*(\d+)\s+acc=\s*(\d+)\s+rate=[\d.]+\s+tok/s=([\d.]+)\s*$"
)
SINCE = (
    "Counters since the server's start; specscope import AFTER --since BEFORE tells what is between two texts"
)


def counted(now: Counters, label: str = "") -> Printed:
    """Return totals as a window without times."""
    row = window(
        0,
        0,
        label=label,
        drafts=now.drafts,
        drafted=now.drafted,
        accepted=now.accepted,
        places=now.places,
    )
    return Printed("", "", [row])


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
        return counted(texts[0], "since the server's start")._replace(engine=engine, note=SINCE)
    rows = list[Window]()
    for number, (before, after) in enumerate(pairwise(texts), 1):
        if (new := after.since(before)) is None:
            raise ValueError(
                f"a counter is lower in text {number + 1} than in text {number}: they are in the wrong order, or the server "
                "was started anew between them; give the earlier one of one start first"
            )
        rows += counted(new, f"text {number} to {number + 1}" if len(texts) > 2 else "").windows
    return Printed(engine, "", rows)


def example(lines: Sequence[str]) -> list[Printed]:
    """Return what vLLM's offline example prints: totals, and shares by place."""
    totals = {match[1]: whole(match[2]) for line in lines if (match := _SUMMARY.match(line))}
    rates = {int(match[1]): float(match[2]) for line in lines if (match := _AT.match(line))}
    if "num_drafts" not in totals or "num_accepted_tokens" not in totals:
        return []
    drafts, accepted = totals["num_drafts"], totals["num_accepted_tokens"]
    row = window(
        0,
        0,
        drafts=drafts,
        drafted=totals.get("num_draft_tokens"),
        accepted=accepted,
        places=places_of([rates.get(i, 0.0) for i in range(max(rates, default=-1) + 1)], drafts),
        tokens=totals.get("total_num_output_tokens"),
    )
    return [Printed("vLLM", "", [row])]


def bench(lines: Sequence[str]) -> list[Printed]:
    """Return the requests of a bench of llama.cpp's server: `pred= draft= acc= rate= tok/s=`."""
    rows, at = [], 0.0
    for match in filter(None, map(_ROW.match, lines)):
        tokens, accepted, speed = whole(match[2]), whole(match[4]), float(match[5])
        seconds = tokens / speed if speed else 0.0
        counts = {"drafted": whole(match[3]), "accepted": accepted, "steps": max(0, tokens - accepted - 1)}
        rows.append(
            window(at, at + seconds, label=match[1][:80], tokens=tokens, busy=nanoseconds(seconds), **counts)
        )
        at += seconds
    return [Printed("llama.cpp", "", rows)] if rows else []
