"""Answers of engines and benches as windows: one for each request, with its own times.

- llama.cpp and MLX: `timings` of a response or of a stream's last event. The first token comes from
  the prompt, so `predicted_n - draft_n_accepted - 1` steps made the others. llama.cpp leaves
  `draft_n` out if nothing was drafted. Source: `result_timings` in `server-task.cpp`.
- Spec-Bench and EAGLE: rows of answers with `wall_time`; `accept_lengths` have the target's own
  token, EAGLE's `idxs` are the number of the last step, from 0.
- LM Studio: `stats` of an answer of `/api/v0`. Ignored drafts were not sent to the model, so it did
  not judge them. Source: its documentation, "REST API" and "Speculative Decoding".
- SGLang: `meta_info` with `spec_*` of a native `/generate`, or of a choice. Accepted and proposed
  drafts do not count the own token, `spec_accept_length` (not read) does. The names changed twice.
  Source: `tokenizer_manager.py`, later `fill_spec_decoding_meta`.
- `vllm bench serve --save-result`: differences of `/metrics`; a share by place is accepted tokens
  at it / drafts. Source: `vllm/benchmarks/serve.py`.
- TensorRT-LLM: iterations of `/metrics` with `specDecodingStats`. `numAcceptedTokens` does not
  count the own token, `acceptanceLength` (not read) does. Source: `executor/types.h`.
- AIPerf's summary `profile_export_aiperf.json`: totals and a histogram of all requests. Source: its
  metrics reference, "Speculative Decoding Metrics".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from specscope.engine.errors import shown
from specscope.engine.trace.events import Window
from specscope.engine.trace.ranges import LONGEST_DRAFT
from specscope.traces.facts.counted import JOINT
from specscope.traces.facts.places import reached
from specscope.traces.imports.logs.llama import STEPS
from specscope.traces.imports.logs.windows import Printed, nanoseconds, places_of, window
from specscope.traces.imports.request_trace import (
    histogram,
    is_object,
    number,
    optional_number,
    optional_whole,
    prompt_length,
    text,
    whole,
    wholes,
)


class JsonForm(NamedTuple):
    """A form of JSON values, each of which is a window."""

    name: str
    recognises: Callable[[Any], object]
    engine: str | Callable[[dict[str, Any]], str]
    """The name of the engine, or a function that returns it for a row."""
    read: Callable[[dict[str, Any], float], Window | None]
    """(row, seconds of those before) -> its window; None for one that drafted nothing."""
    note: str = ""
    """How counts and times follow from what is printed."""


def printed(form: JsonForm, rows: Sequence[Any]) -> Printed:
    """Return the windows of rows, one after another. ValueError for a row of another form."""
    found, told, at = list[Window](), list[Any](), 0.0
    for place, row in enumerate(rows, 1):
        if not form.recognises(row):
            raise ValueError(f"row {place} has another form; expected {form.name}")
        if (one := form.read(row, at)) is not None:
            found.append(one)
            told.append(row)
            at = one.end / 1e9
    first = rows[0]
    model = text(first, "model") or text(first, "model_id")
    lengths = [-1 if (length := prompt_length(row)) is None else length for row in told]
    engine = form.engine if isinstance(form.engine, str) else form.engine(first)
    name = model.rpartition("/")[2]
    return Printed(engine, "", found, name, note=form.note, prompts=lengths)


def _is_timings(row: Any) -> bool:
    return is_object(row) and is_object(row.get("timings")) and "predicted_n" in row["timings"]


def _timings(row: dict[str, Any], at: float) -> Window:
    timings = row["timings"]
    drafted = optional_whole(timings, "draft_n") or 0
    return _request(
        row,
        at + _seconds(timings, "prompt_ms", 1e3),
        number(timings, "predicted_ms") / 1e3,
        whole(timings, "predicted_n"),
        drafted,
        optional_whole(timings, "draft_n_accepted") if drafted else 0,
        optional_whole(timings, "draft_rounds"),
    )


def _request(
    row: dict[str, Any],
    at: float,
    seconds: float,
    tokens: int,
    drafted: int | None,
    accepted: int | None,
    rounds: int | None = None,
) -> Window:
    """Return the window of a request whose decoding, without the prompt, began `at` seconds."""
    if accepted is not None and drafted is not None and accepted > drafted:
        raise ValueError(f"{accepted} draft tokens are accepted; expected at most the {drafted} drafted ones")
    least = rounds or min(drafted or 0, 1)
    return window(
        at,
        at + seconds,
        label=text(row, "id", 60),
        steps=None if accepted is None else max(least, tokens - accepted - 1),
        drafts=0 if drafted == 0 else rounds,
        drafted=drafted,
        accepted=accepted,
        tokens=tokens,
        busy=nanoseconds(seconds) or None,
    )


def _is_studio(row: Any) -> bool:
    stats = row.get("stats") if is_object(row) else None
    return is_object(stats) and stats.get("accepted_draft_tokens_count") is not None


def _studio(row: dict[str, Any], at: float) -> Window:
    stats, usage = row["stats"], row.get("usage")
    accepted, rejected, ignored, every = (
        optional_whole(stats, f"{name}_draft_tokens_count")
        for name in ("accepted", "rejected", "ignored", "total")
    )
    if rejected is None and every is not None and ignored is not None:
        rejected = max(0, every - ignored - (accepted or 0))
    drafted = None if rejected is None or accepted is None else accepted + rejected
    if drafted is not None and every not in (None, drafted + (ignored or 0)):
        raise ValueError(
            f"{every} draft tokens are not {accepted} accepted + {rejected} rejected + {ignored} ignored"
        )
    first, seconds = (_seconds(stats, name) for name in ("time_to_first_token", "generation_time"))
    tokens = whole(usage if is_object(usage) else {}, "completion_tokens")
    return _request(row, at + first, seconds, tokens, drafted, accepted)


def _timed_by(row: dict[str, Any]) -> str:
    return "MLX" if "draft_kind" in row["timings"] or "draft_rounds" in row["timings"] else "llama.cpp"


def _is_answer(row: Any) -> bool:
    choice = (
        row["choices"][0]
        if is_object(row) and isinstance(row.get("choices"), list) and row["choices"]
        else None
    )
    return is_object(choice) and "wall_time" in choice and "new_tokens" in choice


def _answered_by(row: dict[str, Any]) -> str:
    return "EAGLE" if "idxs" in row["choices"][0] else "Spec-Bench"


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
        running=1.0,
    )


def _numbers(row: dict[str, Any], name: str) -> list[float]:
    values = row.get(name)
    if not isinstance(values, list) or len(values) > LONGEST_DRAFT:
        raise ValueError(f"{name} is {shown(values)}; expected a list of at most {LONGEST_DRAFT} numbers")
    return [number({name: value}, name) for value in values]


def _places(times: Sequence[int]) -> tuple[int, ...]:
    """Return the accepted tokens by place of the drafts that had 0, 1, ... accepted tokens."""
    return tuple(reached(times, len(times) - 1)[1:])


def _metas(row: Any) -> list[dict[str, Any]]:
    """Return the entries `meta_info` with counts of a row, or of its choices."""
    choices = row.get("choices") if is_object(row) else None
    places = [row, *choices] if isinstance(choices, list) else [row]
    found = [one["meta_info"] for one in places if is_object(one) and is_object(one.get("meta_info"))]
    return [meta for meta in found if "spec_verify_ct" in meta]


def _meta(row: dict[str, Any], at: float) -> Window:
    meta, *others = _metas(row)
    if others:
        raise ValueError(f"an answer has {1 + len(others)} choices with counts; ask with n = 1")
    steps, tokens = whole(meta, "spec_verify_ct"), optional_whole(meta, "completion_tokens")
    accepted, drafted = (_first_of(meta, names) for names in (_ACCEPTED, _PROPOSED))
    name = next((one for one in _HISTOGRAMS if meta.get(one) is not None), "")
    times = wholes(meta, name, LONGEST_DRAFT + 1) if name else ()
    if times:
        accepted = _agreed(times, steps, accepted, name)
    elif accepted is None and tokens is not None:
        accepted = max(0, tokens - steps - 1) if steps else 0
    seconds = _seconds(meta, "e2e_latency")
    return window(
        at,
        at + seconds,
        label=text(meta, "id", 60) or text(row, "id", 60),
        steps=steps,
        drafts=steps,
        drafted=drafted,
        accepted=accepted,
        places=_places(times) if times else (),
        tokens=tokens,
    )


_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
_HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Names of SGLang's fields, the newest first."""


def _first_of(row: dict[str, Any], names: Sequence[str]) -> int | None:
    return next((whole(row, name) for name in names if row.get(name) is not None), None)


def _agreed(times: Sequence[int], steps: int, accepted: int | None, name: str) -> int:
    """Return the accepted tokens of a histogram. ValueError unless it agrees with the totals."""
    found = sum(count * n for count, n in enumerate(times))
    if sum(times) != steps:
        raise ValueError(f"{name} counts {sum(times)} steps, but the number of steps is {steps}")
    if accepted not in (None, found):
        raise ValueError(f"{name} counts {found} accepted tokens, but the total is {accepted}")
    return found


def _is_bench(row: Any) -> bool:
    counted = "spec_decode_acceptance_rate", "spec_decode_num_drafts"
    return is_object(row) and "duration" in row and any(row.get(name) is not None for name in counted)


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
    return is_object(row) and ("specDecodingStats" in row or ("iter" in row and "iterLatencyMS" in row))


def _iteration(row: dict[str, Any], at: float) -> Window | None:
    stats = row.get("specDecodingStats")
    if stats is None:
        return None
    if not is_object(stats):
        raise ValueError(f"specDecodingStats is {shown(stats)}; expected an object")
    seconds, drafting = (_seconds(one, "iterLatencyMS", 1e3) for one in (row, stats))
    requests = optional_whole(stats, "numRequestsWithDraftTokens")
    batch = row.get("inflightBatchingStats")
    decoding = optional_whole(batch, "numGenRequests") if is_object(batch) else None
    return window(
        at,
        at + seconds,
        label=f"iteration {row['iter']}" if type(row.get("iter")) is int else "",
        steps=requests if decoding is None else decoding,
        drafts=requests,
        drafted=whole(stats, "numDraftTokens"),
        accepted=whole(stats, "numAcceptedTokens"),
        busy=nanoseconds(seconds) or None,
        drafting=nanoseconds(drafting) or None,
        running=None if requests is None else float(requests if decoding is None else decoding),
    )


def _seconds(row: dict[str, Any], name: str, unit: float = 1.0) -> float:
    """Return a time; 0 if the field is missing."""
    return (optional_number(row, name) or 0.0) / unit


def _is_summary(row: Any) -> bool:
    return is_object(row) and is_object(row.get("pooled_spec_decode_acceptance_histogram"))


def _summary(row: dict[str, Any], at: float) -> Window:
    steps, accepted, drafted, tokens, seconds = (
        _average(row, name)
        for name in (
            "total_spec_decode_steps",
            "total_accepted_draft_tokens",
            "total_draft_tokens",
            "total_output_tokens" if "total_output_tokens" in row else "total_osl",
            "benchmark_duration",
        )
    )
    name = "pooled_spec_decode_acceptance_histogram"
    times = histogram(row, name)
    drafts = sum(times) if steps is None else round(steps)
    return window(
        at,
        at + (seconds or 0.0),
        label=text(row, "start_time", 40),
        drafts=drafts,
        drafted=None if drafted is None else round(drafted),
        accepted=_agreed(times, drafts, None if accepted is None else round(accepted), name),
        places=_places(times),
        tokens=None if tokens is None else round(tokens),
    )


def _average(row: dict[str, Any], name: str) -> float | None:
    """Return a metric of AIPerf: its total stands in `avg`."""
    entry = row.get(name)
    return optional_number(entry, "avg") if is_object(entry) else None


_IGNORED = "ignored drafts, which the model did not judge, are left out"
_OF_ALL = "Times are of the whole {}: queue and prefill count, too"
ROWS = (
    JsonForm("stats of LM Studio", _is_studio, "LM Studio", _studio, f"{STEPS}; {_IGNORED}"),
    JsonForm("timings of llama.cpp or MLX", _is_timings, _timed_by, _timings, STEPS),
    JsonForm("answers of Spec-Bench or EAGLE", _is_answer, _answered_by, _answer, _OF_ALL.format("answer")),
    JsonForm("meta_info of SGLang with spec_verify_ct", _metas, "SGLang", _meta, _OF_ALL.format("request")),
    JsonForm("a result of vllm bench serve", _is_bench, "vLLM", _bench, _OF_ALL.format("bench")),
    JsonForm("a summary of AIPerf", _is_summary, "AIPerf", _summary, _OF_ALL.format("run")),
    JsonForm("iterations of TensorRT-LLM with specDecodingStats", _is_iteration, "TensorRT-LLM", _iteration),
)
