"""Another engine's request as a trace, from its verifications and token ids; values of its JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from specscope.engine.errors import shown
from specscope.engine.schema import fits
from specscope.engine.trace.events import Commit, Decision, Footer, Header, Round
from specscope.engine.trace.ranges import LONGEST_DRAFT, MOST_WHOLE, Count
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.imported import NO_TOKEN, TEXTS, Counts, Imported

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from specscope.engine.trace.events import Device, Row

ALWAYS = ("times", TEXTS, "ids of rejected tokens", "probabilities")
"""What no file of counts holds."""
SUMMED = (
    *ALWAYS,
    "ids of the tokens",
    "number of tokens",
    "origin of each token",
    "prompt",
    "order of the steps",
)
"""What no sum of many requests holds."""
LENGTHS = "draft length of each step"
CHANCES = "p is that of the logits before temperature, top-k and top-p, as the server reports it"
_PROMPT_LENGTHS = (
    ("usage", "prompt_tokens"),
    ("meta_info", "prompt_tokens"),
    ("metrics", "input_sequence_length", "value"),
    ("tokens_evaluated",),
)
"""Of vLLM and other servers, SGLang, AIPerf and llama.cpp."""
MOST_STEPS = 200_000
MOST_TOKENS = 1_000_000
"""The most tokens, drafted or put out, of one request."""


class FileForm(NamedTuple):
    """A form of files of another engine or tool."""

    name: str
    recognises: Callable[[Any], bool]
    read: Callable[[Any], Trace | None]
    """A value of the file, or all of them -> its trace; None if it says nothing of speculative
    decoding, ValueError for another version."""
    whole: bool = False
    """Whether all values of a file are one run."""
    totals: Callable[[Any], Trace | None] | None = None
    """Like `read`, without rows: the totals of a request of a file that has too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRequest:
    """One request, as a file describes it."""

    source: str
    engine: str
    key: str
    content: Any
    """The part of the file that describes it; the run id is a hash of it."""
    steps: tuple[tuple[int, int], ...] | None = None
    """(drafted, accepted) of each verification in order; None if the file does not say."""
    counts: Counts
    tokens: tuple[int, ...] | None = None
    prompt: tuple[int, ...] | None = None
    text: str = ""
    pieces: tuple[tuple[str, float | None], ...] = ()
    """Text of each token and the target's probability of it; empty if the file does not say."""
    stated: Mapping[str, float] = field(default_factory=dict[str, float])
    model: str = ""
    created: float | None = None
    """Seconds since 1970."""
    reason: str = ""
    """Why the output ended: eos, stop, length, or empty if the file does not say."""


def check_counts(
    counts: Counts, steps: int, accepted: int, arrays: tuple[tuple[int, int], ...] | None = None
) -> None:
    """Raise ValueError unless the totals, the histogram and the arrays of a request agree."""
    if counts.steps != steps:
        raise ValueError(f"the histogram counts {counts.steps} steps, but the number of steps is {steps}")
    if counts.accepted != accepted:
        raise ValueError(
            f"the histogram counts {counts.accepted} accepted tokens, but the total is {accepted}"
        )
    if counts.drafted is not None and accepted > counts.drafted:
        raise ValueError(f"{accepted} tokens were accepted, but only {counts.drafted} were drafted")
    if counts.gamma is not None and any(counts.histogram[counts.gamma + 1 :]):
        raise ValueError(f"a step accepted more tokens than the draft length {counts.gamma}")
    if arrays is not None:
        _check_arrays(counts, arrays)


def _check_arrays(counts: Counts, arrays: tuple[tuple[int, int], ...]) -> None:
    for number, (drafted, accepted) in enumerate(arrays, 1):
        if not accepted <= drafted <= LONGEST_DRAFT:
            raise ValueError(f"step {number} accepted {accepted} of {drafted} drafted tokens")
    drafted = sum(d for d, _ in arrays)
    if drafted != counts.drafted:
        raise ValueError(f"the steps drafted {drafted} tokens, but the total is {counts.drafted}")
    times = Counter(accepted for _, accepted in arrays)
    if any(times[a] != number for a, number in enumerate(counts.histogram)) or len(arrays) != counts.steps:
        raise ValueError("the histogram does not count the steps of per_step_accepted")


def trace_of(request: FileRequest) -> Trace:
    """Return the trace of a request: its rows if they are determined, else its counts.

    The output has 1 + sum(accepted + 1) tokens: one of the prompt's forward, and per verification
    the accepted tokens and one of the target's own; the end of the text may cut the last step. A
    longer output has steps without a draft, at places that the file does not name: then no token's
    origin is known. ValueError if it is shorter than the steps allow, or longer than is read.
    """
    rows, unknown = _rows(request)
    if request.tokens is None:
        unknown.append("ids of the tokens")
    if request.prompt is None:
        unknown.append("prompt")
    pieces = request.pieces if rows else ()
    always = [fact for fact in ALWAYS if fact != TEXTS or not any(piece for piece, _ in pieces)]
    length = prompt_length(request.content)
    imported = Imported(
        request.source,
        (*always, *unknown),
        None if rows else request.counts,
        stated=request.stated,
        prompt_tokens=() if length is None else (length,),
        dated=request.created is not None,
    )
    header = new_header(
        imported,
        engine=request.engine,
        key=request.key,
        content=request.content,
        prompts=1,
        prompt=request.prompt or (),
        model=request.model,
        created=request.created,
        note=CHANCES if any(p is not None for _, p in pieces) else "",
    )
    return Trace.of([header, *rows, Footer("done", (request.reason,), (request.text,), 0)])


def sum_of(source: str, counts: Counts, engine: str, key: str, content: Any, model: str = "") -> Trace:
    """Return the trace of a file that sums up many requests."""
    lengths = () if counts.gamma is not None else (LENGTHS,)
    imported = Imported(source, (*SUMMED, *lengths), counts)
    header = new_header(imported, engine=engine, key=key, content=content, model=model)
    return Trace.of([header, Footer("done", (), (), 0)])


def _rows(request: FileRequest) -> tuple[list[Row], list[str]]:
    """Return the rows of a request, or none, and the facts that are unknown because of that."""
    length, steps = request.counts.tokens, request.steps
    if length is not None and length > MOST_TOKENS:
        raise ValueError(f"the output has {length} tokens; at most {MOST_TOKENS} are read")
    if length is None:
        return [], ["number of tokens", *_of_counts(request.counts)]
    if not steps:
        return [], _of_counts(request.counts)
    most = 1 + sum(accepted + 1 for _, accepted in steps)
    least = most - steps[-1][1]
    if length < least:
        raise ValueError(f"the output has {length} tokens, but its steps make {least} to {most}")
    if length > most:
        return [], _of_counts(request.counts)
    if sum(drafted for drafted, _ in steps) > MOST_TOKENS:
        raise ValueError(f"the steps drafted more than {MOST_TOKENS} tokens, the most that are read")
    return _decoded(request, steps, length), []


def _of_counts(counts: Counts) -> list[str]:
    lengths = [] if counts.gamma is not None else [LENGTHS]
    return ["origin of each token", "order of the steps", *lengths]


def _decoded(request: FileRequest, steps: tuple[tuple[int, int], ...], length: int) -> list[Row]:
    ids = request.tokens or (NO_TOKEN,) * length
    pieces = request.pieces if len(request.pieces) == length else (("", None),) * length
    start = len(request.prompt or ())
    rows: list[Row] = [Commit(0, 0, start, ids[0], "plain", pieces[0][0], 0)]
    at = 1
    for step, (drafted, accepted) in enumerate(steps, 1):
        own = "corrected" if accepted < drafted else "bonus" if drafted else "plain"
        origins = ["accepted"] * accepted + [own]
        emitted = min(len(origins), length - at)
        for node in range(drafted):
            outcome = "accepted" if node < accepted else "rejected" if node == accepted else "discarded"
            told = node < min(accepted, emitted)
            token, p = (ids[at + node], pieces[at + node][1]) if told else (NO_TOKEN, None)
            rows.append(_decision(step, node, node - 1, start + at + node, token, outcome, p))
        if emitted > accepted:
            place = at + accepted
            rows.append(_decision(step, -1, accepted - 1, start + place, ids[place], own, pieces[place][1]))
        for offset in range(emitted):
            place = at + offset
            rows.append(Commit(step, 0, start + place, ids[place], origins[offset], pieces[place][0], 0))
        rows.append(Round(step, 0, "verify" if drafted else "plain", drafted, accepted, emitted, 0, -1))
        at += emitted
    return rows


def _decision(
    step: int, node: int, parent: int, position: int, token: int, outcome: str, p: float | None
) -> Decision:
    return Decision(step, 0, node, parent, position, token, p, None, None, "", outcome, -1, -1)


def new_header(
    imported: Imported,
    *,
    engine: str,
    key: str,
    content: Any,
    prompts: int = 0,
    prompt: tuple[int, ...] = (),
    model: str = "",
    created: float | None = None,
    devices: tuple[Device, ...] = (),
    note: str = "",
) -> Header:
    """Return the header of an imported run; its `created` is empty if the file names no date.

    `key` is what the file calls the run. The run id is a hash of `content`, so that a second import
    of a file is noticed. There are 0 `prompts` in a summary of many requests; `created` is in
    seconds since 1970.
    """
    code = json.dumps([imported.source, key, content], sort_keys=True).encode("utf-8", "surrogatepass")
    return Header(
        run_id=hashlib.sha256(code).hexdigest()[:12],
        created="" if created is None else _date(created),
        method="imported",
        title=f"{engine} · {key}" if key else engine,
        config={},
        prompts=("",) * prompts,
        prompt_ids=(prompt,) * prompts,
        sampling={},
        limits={},
        runtime=engine,
        profile="",
        devices=devices,
        target_path=model,
        drafter_path="",
        environment={"imported": imported.to_dict(), **({"note": note} if note else {})},
    )


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"the date {seconds:g} is no time in seconds since 1970") from None


# Values of parsed JSON with their types and ranges; every failure is a `ValueError`.


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def entry_of(value: Any, names: Collection[str], what: str, version: str = "") -> dict[str, Any]:
    """Return an entry of a file, which is an object with no other fields than the names."""
    if not is_object(value):
        raise ValueError(f"{what} is no object")
    for name in value:
        if name not in names:
            told = f"{what} ({version})" if version else what
            raise ValueError(f"{told} has a field {shown(name)}; expected only {', '.join(sorted(names))}")
    return value


def whole(row: Mapping[str, Any], name: str, high: int = MOST_WHOLE) -> int:
    value = row.get(name)
    if type(value) is not int or not 0 <= value <= high:
        raise ValueError(f"{name} is {_found(row, name)}; expected a whole number from 0 to {high}")
    return value


def optional_whole(row: Mapping[str, Any], name: str, high: int = MOST_WHOLE) -> int | None:
    return None if row.get(name) is None else whole(row, name, high)


def prompt_length(row: Any) -> int | None:
    """Return the tokens of a request's prompt, where engines and tools write them; else None.

    llama.cpp's timings count the cached ones apart.
    """
    read = _length(row, "timings", "prompt_n")
    found = [_length(row, *path) for path in _PROMPT_LENGTHS]
    found.append(None if read is None else read + (_length(row, "timings", "cache_n") or 0))
    return next((length for length in found if length is not None), None)


def _length(value: Any, *path: str) -> int | None:
    for name in path:
        value = value.get(name) if is_object(value) else None
    return value if fits(value, Count) else None


def wholes(row: Mapping[str, Any], name: str, most: int, high: int = MOST_WHOLE) -> tuple[int, ...]:
    values = row.get(name)
    if not isinstance(values, list):
        raise ValueError(f"{name} is {_found(row, name)}; expected a list of whole numbers")
    if len(values) > most:
        raise ValueError(f"{name} has {len(values)} entries; at most {most} are read")
    for value in values:
        if type(value) is not int or not 0 <= value <= high:
            raise ValueError(f"{name} contains {shown(value)}; expected whole numbers from 0 to {high}")
    return tuple(values)


def histogram(row: Mapping[str, Any], name: str, first: int = 0) -> tuple[int, ...]:
    """Return an object {number: times} with text keys as times by number, from `first`."""
    values = row.get(name)
    if not is_object(values):
        raise ValueError(f"{name} is {_found(row, name)}; expected an object of whole numbers")
    times: dict[int, int] = {}
    for key in values:
        number = int(key) if key.isascii() and key.isdigit() and len(key) <= 5 else -1
        if not first <= number <= LONGEST_DRAFT + first:
            raise ValueError(f"{name} has a key {shown(key)}; expected {first} to {LONGEST_DRAFT + first}")
        if number in times:
            raise ValueError(f"{name} has the key {number} twice")
        times[number] = whole(values, key)
    return tuple(times.get(number, 0) for number in range(first, max(times, default=first - 1) + 1))


def optional_number(row: Mapping[str, Any], name: str) -> float | None:
    return None if row.get(name) is None else number(row, name)


def number(row: Mapping[str, Any], name: str) -> float:
    value: Any = row.get(name)
    if type(value) not in (int, float) or abs(value) > 1e300 or not math.isfinite(value):
        raise ValueError(f"{name} is {_found(row, name)}; expected a number")
    return float(value)


def text(row: Mapping[str, Any], name: str, most: int = 200) -> str:
    """Return a text, cut to `most` characters; an empty one if the field has no text."""
    value = row.get(name)
    return value[:most].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _found(row: Mapping[str, Any], name: str) -> str:
    return shown(row[name]) if name in row else "missing"
