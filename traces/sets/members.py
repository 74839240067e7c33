"""The members of a set: requests, or windows of a log, each with its counts.

A run is a request, has one in each of its sequences, or holds windows of counts: one for each
request of a bench, or for each line of a log.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.checkpoints.forms import model_name
from specscope.traces.facts import counted
from specscope.traces.facts.counted import JOINT
from specscope.traces.facts.fates import of_prefill
from specscope.traces.facts.imported import is_foreign, origin
from specscope.traces.facts.settings import config_text
from specscope.traces.facts.waiting import decode_window

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator

    from specscope.engine.trace.events import Header, Round, Window
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.imported import Imported

_NOUNS = {
    "a log of llama.cpp": "request",
    "timings of": "request",
    "stats of": "request",
    "answers of": "request",
    "meta_info of": "request",
    "the output of a bench": "request",
    "the summary of a bench": "bench",
    "iterations of": "iteration",
    "a result of vllm bench": "bench",
}
"""Beginning of a source -> what its windows are; those of others are windows of time."""
_ASKED = ("answers of", "the output of a bench")
"""Sources whose labels are names of prompts."""
_CLOCKED = ("a log of", "iterations of")
"""Sources whose windows have the times of a clock; others are put one after another."""


class SetMember(NamedTuple):
    """A request, or a window of a log. None is unknown."""

    run: str
    part: int | None
    """Number of the sequence or the window in its run; None for the whole run."""
    name: str
    noun: str
    """What it is: request, window, iteration, bench or summary."""
    setting: tuple[tuple[str, str], ...]
    """(name, value) of what must be equal in a set."""
    category: str = ""
    prompt: int | None = None
    """Tokens of the prompt."""
    start: float | None = None
    """Seconds, on the same clock for all members with the same `clock`."""
    clock: str = ""
    """`utc`: since 1970; a run's id: since its start; empty without a time."""
    drafts: int | None = None
    """Verifications of a draft."""
    steps: int | None = None
    """Target forwards for the output."""
    drafted: int | None = None
    accepted: int | None = None
    squares: int | None = None
    """Sum over the drafts of the squares of their accepted tokens."""
    longest: int | None = None
    """Tokens of its longest draft."""
    tokens: int | None = None
    """Tokens that were made in `seconds`."""
    seconds: float | None = None
    same: Hashable = None
    """Equal for members with the same prompt or name; None if that is unknown."""
    done: bool = True


def members_of(traces: Iterable[Trace]) -> Iterator[SetMember]:
    """Yield the members of runs, of which `Store.outlines` has all that is read."""
    for trace in traces:
        found = origin(trace.header)
        if trace.windows:
            yield from _of_windows(trace, found)
        elif found is not None and found.counts is not None:
            yield _of_counts(trace.header, found)
        else:
            yield from _of_rounds(trace, found)


def _of_windows(trace: Trace, found: Imported | None) -> Iterator[SetMember]:
    header, source = trace.header, found.source if found else ""
    noun = next((noun for start, noun in _NOUNS.items() if source.startswith(start)), "window")
    timed = noun == "window" or source.startswith(_CLOCKED)
    lengths = dict(enumerate(found.prompt_tokens if found else ()))
    for number, row in enumerate(counted.whole_windows(trace.windows)):
        category, _, name = row.label.rpartition(JOINT)
        length, kept = lengths.get(number, -1), counted.histogram([row])
        yield SetMember(
            header.run_id,
            number,
            name or f"{noun} {number + 1}",
            noun,
            _setting(header, noun),
            category,
            prompt=length if length >= 0 else None,
            start=row.start / 1e9 if timed and row.end > row.start else None,
            clock=header.run_id if timed and row.end > row.start else "",
            squares=_squares(kept) if kept else None,
            longest=len(row.places) if counted.of_one_length([row]) else None,
            same=row.label or None if source.startswith(_ASKED) else None,
            **_counts_of(row),
        )


def _counts_of(row: Window) -> dict[str, Any]:
    names = ("drafts", "steps", "drafted", "accepted")
    made = {"tokens": counted.decoded(row), "seconds": counted.seconds(row)}
    return {name: getattr(row, name) for name in names} | made


def _of_counts(header: Header, found: Imported) -> SetMember:
    """Return a request, or a summary of many, of which the totals are known."""
    counts = found.counts
    assert counts is not None
    noun = "request" if header.prompts else "summary"
    return SetMember(
        **_of_run(header, found, None, noun),
        drafts=counts.steps,
        drafted=counts.drafted,
        accepted=counts.accepted,
        squares=_squares(counts.histogram),
        longest=counts.gamma,
    )


def _of_rounds(trace: Trace, found: Imported | None) -> Iterator[SetMember]:
    header = trace.header
    rounds: dict[int, list[Round]] = {i: [] for i in range(len(header.prompts))}
    for row in trace.rounds:
        rounds.setdefault(row.sequence, []).append(row)
    known = bool(trace.rounds) or found is None or found.recorded
    timed = decode_window(trace)[0], of_prefill(trace, before=True)
    for i, rows in rounds.items():
        facts = _of_run(header, found, i if len(rounds) > 1 else None, "request")
        yield SetMember(**facts, done=trace.status == "done", **(_sums(rows, *timed) if known else {}))
    if not rounds:
        yield SetMember(**_of_run(header, found, None, "summary"))


def _sums(rows: list[Round], start: int, prefills: Collection[tuple[int, int]]) -> dict[str, Any]:
    """Return the counts of a sequence; its tokens and seconds are those after the prefill."""
    judged = [row for row in rows if row.drafted]
    decoded = [row for row in rows if (row.sequence, row.step) not in prefills]
    seconds = (decoded[-1].time - start) / 1e9 if decoded else 0.0
    return {
        "drafts": len(judged),
        "steps": len(decoded),
        "drafted": sum(row.drafted for row in judged),
        "accepted": sum(row.accepted for row in judged),
        "squares": sum(row.accepted * row.accepted for row in judged),
        "longest": max((row.drafted for row in judged), default=None),
        "tokens": sum(row.emitted for row in decoded) if seconds > 0 else None,
        "seconds": seconds if seconds > 0 else None,
    }


def _of_run(header: Header, found: Imported | None, sequence: int | None, noun: str) -> dict[str, Any]:
    """Return what a run's header says of one of its sequences, or of all of it."""
    foreign = is_foreign(header)
    ids, text = next(
        zip(header.prompt_ids[sequence or 0 :], header.prompts[sequence or 0 :], strict=False), ((), "")
    )
    lengths = found.prompt_tokens if found else ()
    length = len(ids) or next((n for n in lengths[sequence or 0 :][:1] if n >= 0), None)
    dated = found is None or found.recorded or found.dated
    name = header.title.partition(JOINT)[2] if foreign else ""
    return {
        "run": header.run_id,
        "part": sequence,
        "name": " ".join(
            filter(None, (name or header.run_id, "" if sequence is None else f"sequence {sequence + 1}"))
        ),
        "noun": noun,
        "setting": _setting(header, noun),
        "prompt": length,
        "start": _seconds(header.created) if dated else None,
        "clock": "utc" if dated else "",
        "same": hash(tuple(ids) or text) if ids or text else None,
    }


def _setting(header: Header, noun: str) -> tuple[tuple[str, str], ...]:
    """Return what must be equal in a set."""
    rule = {k: v for k, v in header.sampling.items() if k != "seed"}
    facts = {
        "of": noun,
        "method": header.runtime if is_foreign(header) else header.title,
        "settings": config_text(header.method, header.config),
        "target": model_name(header.target_path),
        "drafter": model_name(header.drafter_path),
        "sampling": ", ".join(f"{name} {value}" for name, value in sorted(rule.items())),
        "clock": "" if is_foreign(header) else header.clock,
    }
    return tuple(facts.items())


def _squares(histogram: Iterable[int]) -> int:
    return sum(kept * kept * times for kept, times in enumerate(histogram))


def _seconds(created: str) -> float | None:
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, OverflowError):
        return None
