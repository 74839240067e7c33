"""Answers of engines and benches as windows: one for each request, with its own times.

- llama.cpp and MLX: `timings` of a response or of a stream's last event. The first token comes from
  the prompt, so `predicted_n - draft_n_accepted - 1` steps made the others.
- Spec-Bench and EAGLE: rows of answers with `wall_time`; `accept_lengths` have the target's own
  token, EAGLE's `idxs` are the number of the last step, from 0.
- SGLang: `meta_info` with `spec_*` of a native `/generate`.
- `vllm bench serve --save-result`: totals and shares by place.
- TensorRT-LLM: iterations of `/metrics` with `specDecodingStats`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from specscope.engine.errors import shown
from specscope.engine.trace.events import Window
from specscope.engine.trace.ranges import LONGEST_DRAFT
from specscope.traces.counted import JOINT
from specscope.traces.imports.logs.windows import Printed, nanoseconds, places_of, window
from specscope.traces.imports.request_trace import (
    is_object,
    number,
    optional_whole,
    prompt_length,
    text,
    whole,
    wholes,
)


class Rows(NamedTuple):
    """A form of JSON values, each of which is a window."""

    name: str
    recognises: Callable[[Any], bool]
    engine: Callable[[dict[str, Any]], str]
    read: Callable[[dict[str, Any], float], Window]
    """(row, seconds of those before) -> its window."""


def printed(form: Rows, rows: Sequence[Any]) -> Printed:
    """Return the windows of rows, one after another. ValueError for a row of another form."""
    found, at = list[Window](), 0.0
    for place, row in enumerate(rows, 1):
        if not form.recognises(row):
            raise ValueError(f"row {place} has another form; expected {form.name}")
        found.append(form.read(row, at))
        at = found[-1].end / 1e9
    first = rows[0]
    model = text(first, "model") or text(first, "model_id")
    lengths = [-1 if (length := prompt_length(row)) is None else length for row in rows]
    return Printed(form.engine(first), "", found, model.rpartition("/")[2], lengths)


def _is_timings(row: Any) -> bool:
    return is_object(row) and is_object(row.get("timings")) and "predicted_n" in row["timings"]


def _timings(row: dict[str, Any], at: float) -> Window:
    timings = row["timings"]
    tokens, seconds = whole(timings, "predicted_n"), number(timings, "predicted_ms") / 1e3
    drafted = optional_whole(timings, "draft_n") or 0
    accepted = optional_whole(timings, "draft_n_accepted") or 0
    if accepted > drafted:
        raise ValueError(f"draft_n_accepted is {accepted}; expected at most draft_n, {drafted}")
    rounds = optional_whole(timings, "draft_rounds")
    prompt = number(timings, "prompt_ms") / 1e3 if timings.get("prompt_ms") is not None else 0.0
    return window(
        at + prompt,
        at + prompt + seconds,
        label=text(row, "id", 60),
        steps=max(0, tokens - accepted - 1),
        drafts=rounds,
        drafted=drafted,
        accepted=accepted,
        tokens=tokens,
        busy=nanoseconds(seconds),
    )


def _engine_of_timings(row: dict[str, Any]) -> str:
    return "MLX" if "draft_kind" in row["timings"] or "draft_rounds" in row["timings"] else "llama.cpp"


def _is_answer(row: Any) -> bool:
    choice = (
        row["choices"][0]
        if is_object(row) and isinstance(row.get("choices"), list) and row["choices"]
        else None
    )
    return is_object(choice) and "wall_time" in choice and "new_tokens" in choice


def _answer(row: dict[str, Any], at: float) -> Window:
    choice = row["choices"][0]
    tokens = sum(wholes(choice, "new_tokens", 1000))
    seconds = sum(_numbers(choice, "wall_time"))
    lengths = wholes(choice, "accept_lengths", 200_000, LONGEST_DRAFT) if "accept_lengths" in choice else ()
    if "decoding_steps" in choice:
        steps = sum(wholes(choice, "decoding_steps", 1000))
    else:
        steps = len(lengths) or sum(last + 1 for last in wholes(choice, "idxs", 1000))
    kept = [max(0, one - 1) for one in lengths]
    accepted = sum(kept) if lengths else max(0, tokens - steps)
    times = Counter(kept)
    places = _places([times[n] for n in range(max(kept, default=0) + 1)]) if lengths else ()
    category, name = text(row, "category", 40), str(row.get("question_id", ""))[:40]
    label = f"{category}{JOINT}{name}" if category else name
    drafted = any(kept) if lengths else accepted > 0
    return window(
        at,
        at + seconds,
        label=label,
        steps=steps,
        drafts=steps if drafted else 0,
        drafted=None if drafted else 0,
        accepted=accepted,
        places=places,
        tokens=tokens,
        busy=nanoseconds(seconds),
        running=1.0,
    )


def _numbers(row: dict[str, Any], name: str) -> list[float]:
    values = row.get(name)
    if not isinstance(values, list) or len(values) > LONGEST_DRAFT:
        raise ValueError(f"{name} is {shown(values)}; expected a list of at most {LONGEST_DRAFT} numbers")
    return [number({name: value}, name) for value in values]


def _places(histogram: Sequence[int]) -> tuple[int, ...]:
    """Return the accepted tokens by place of the drafts that had 0, 1, ... accepted tokens."""
    return tuple(accumulate(reversed(histogram[1:])))[::-1]


def _is_meta(row: Any) -> bool:
    return is_object(row) and is_object(row.get("meta_info")) and "spec_verify_ct" in row["meta_info"]


def _meta(row: dict[str, Any], at: float) -> Window:
    meta = row["meta_info"]
    steps, tokens = whole(meta, "spec_verify_ct"), optional_whole(meta, "completion_tokens")
    accepted = optional_whole(meta, "spec_accept_token_num")
    drafted = optional_whole(meta, "spec_draft_token_num")
    if accepted is None and tokens is not None:
        accepted = max(0, tokens - steps)
    seconds = number(meta, "e2e_latency") if meta.get("e2e_latency") is not None else 0.0
    name = "spec_accept_histogram"
    places = _places(wholes(meta, name, LONGEST_DRAFT + 1)) if meta.get(name) is not None else ()
    return window(
        at,
        at + seconds,
        label=text(meta, "id", 60),
        steps=steps,
        drafts=steps,
        drafted=drafted,
        accepted=accepted,
        places=places,
        tokens=tokens,
        busy=nanoseconds(seconds) or None,
    )


def _is_bench(row: Any) -> bool:
    return is_object(row) and "spec_decode_acceptance_rate" in row and "duration" in row


def _bench(row: dict[str, Any], at: float) -> Window:
    drafts, seconds = optional_whole(row, "spec_decode_num_drafts"), number(row, "duration")
    name = "spec_decode_per_position_acceptance_rates"
    shares = _numbers(row, name) if row.get(name) is not None else []
    return window(
        at,
        at + seconds,
        label=text(row, "date", 40),
        drafts=drafts,
        drafted=optional_whole(row, "spec_decode_draft_tokens"),
        accepted=optional_whole(row, "spec_decode_accepted_tokens"),
        places=places_of(shares, drafts),
        tokens=optional_whole(row, "total_output_tokens"),
    )


def _is_iteration(row: Any) -> bool:
    return is_object(row) and is_object(row.get("specDecodingStats"))


def _iteration(row: dict[str, Any], at: float) -> Window:
    stats = row["specDecodingStats"]
    seconds = number(row, "iterLatencyMS") / 1e3 if row.get("iterLatencyMS") is not None else 0.0
    requests = optional_whole(stats, "numRequestsWithDraftTokens")
    return window(
        at,
        at + seconds,
        label=f"iteration {row['iter']}" if type(row.get("iter")) is int else "",
        steps=requests,
        drafts=requests,
        drafted=whole(stats, "numDraftTokens"),
        accepted=whole(stats, "numAcceptedTokens"),
        busy=nanoseconds(seconds) or None,
        running=None if requests is None else float(requests),
    )


ROWS = (
    Rows("timings of llama.cpp or MLX", _is_timings, _engine_of_timings, _timings),
    Rows("answers of Spec-Bench or EAGLE", _is_answer, lambda _: "Spec-Bench", _answer),
    Rows("meta_info of SGLang with spec_verify_ct", _is_meta, lambda _: "SGLang", _meta),
    Rows("a result of vllm bench serve", _is_bench, lambda _: "vLLM", _bench),
    Rows(
        "iterations of TensorRT-LLM with specDecodingStats",
        _is_iteration,
        lambda _: "TensorRT-LLM",
        _iteration,
    ),
)
