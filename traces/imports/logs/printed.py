"""Short texts that engines and their benches print: counters, vLLM's example, rows of a bench."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specscope.engine.servers.counters import Counters, read_counters
from specscope.traces.imports.logs.windows import Printed, nanoseconds, places_of, whole, window

_COUNTER = re.compile(r"^(?:vllm|llamacpp):spec_decode_num_drafts(?:_total)?[ {]")
_SUMMARY = re.compile(
    r"^(total_num_output_tokens|num_drafts|num_draft_tokens|num_accepted_tokens): (\d+)\s*$"
)
_AT = re.compile(r"^acceptance at token (\d+): ([\d.]+)\s*$")
_ROW = re.compile(
    r"^\s*(\S+)\s+pred=\s*(\d+)\s+draft=\s*(\d+)\s+acc=\s*(\d+)\s+rate=[\d.]+\s+tok/s=([\d.]+)\s*$"
)
SINCE = "Counters since the server's start; a file with an earlier text and this one has what is between"


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
    """Return the counters of a text of Prometheus; of two such texts what was counted between."""
    starts = [i for i, line in enumerate(lines) if _COUNTER.match(line)]
    if not starts:
        return []
    again = [i for i in starts if lines[i].partition(" ")[0] == lines[starts[0]].partition(" ")[0]]
    parts = [lines[low:high] for low, high in zip([0, *again[1:]], [*again[1:], len(lines)], strict=True)]
    found = [one for part in parts if (one := read_counters("\n".join(part))) is not None]
    between = found[-1].since(found[0]) if len(found) > 1 else None
    one = counted(between or found[-1], "" if between else "since the server's start")
    return [one._replace(engine=found[-1].engine, note="" if between else SINCE)]


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
