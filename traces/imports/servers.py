"""Requests of vLLM, AIPerf and SGLang with counts of speculative decoding.

vLLM 0.32, started with `--per-request-spec-decode-metrics summary` or `detailed`: the entry
`metrics.speculative_decoding` of a response holds totals, a histogram, and if detailed
`per_step_accepted` and `per_step_drafted`: one number per verification of a draft. Token ids come
with requests that set `return_token_ids`, p of the output tokens with `logprobs`, times of the
request with the server's `--enable-per-request-metrics`. `metrics` is null for n > 1 and after a
stop string. Source: vLLM's documentation, "Per-Request Acceptance Metrics", and
`build_per_request_timing_metrics`.

AIPerf 0.12 and 0.13, with `--export-level records`: lines of `profile_export.jsonl`. The entry
`spec_decode_acceptance` of a record holds totals, a sparse histogram, and the two lists if the
engine reports them. Only vLLM's drafts are known to be chains: of other engines the totals are
kept. Source: AIPerf's documentation, "Per-Request Speculative-Decoding Acceptance".

SGLang with pull request 33518 (merged in August 2026), for requests that set
`return_spec_tokens_details`. The entry `sglext.spec_tokens_details` of a response holds totals and
a histogram, without the order of the verifications; for n > 1 it is a list.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from specscope.engine.servers.steps import chances_of
from specscope.traces.facts.imported import Counts
from specscope.traces.imports.request_trace import (
    LONGEST_DRAFT,
    MOST_STEPS,
    MOST_TOKENS,
    FileForm,
    FileRequest,
    check_counts,
    entry_of,
    histogram,
    is_object,
    number,
    optional_number,
    optional_whole,
    text,
    trace_of,
    whole,
    wholes,
)

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

_COMMON = (
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_tokens",
    "per_step_accepted",
    "per_step_drafted",
)
_OF_AIPERF = ("engine", "completion_tokens")
_OF_SGLANG = (
    "spec_accept_rate",
    "spec_accept_length",
    "spec_cap_length",
    "spec_block_accept_length",
    "spec_num_correct_drafts",
    "spec_num_proposed_drafts",
    "spec_verify_ct",
    "spec_correct_drafts_histogram",
    "spec_cap_lens_histogram",
)
_REASONS = {"length": "length", "stop": "stop"}


def _is_vllm(row: Any) -> bool:
    if not is_object(row) or "metrics" not in row:
        return False
    metrics = row["metrics"]
    return "choices" in row if metrics is None else is_object(metrics) and "speculative_decoding" in metrics


def _read_vllm(row: dict[str, Any], *, rows: bool = True) -> Trace | None:
    metrics = (row["metrics"] or {}).get("speculative_decoding")
    if metrics is None:
        return None
    metrics = entry_of(metrics, _COMMON, "metrics.speculative_decoding", "vLLM 0.32")
    choice, total = _choice(row), _completion_tokens(row)
    ids = _ids(choice, "token_ids")
    if ids is not None and total is not None and len(ids) != total:
        raise ValueError(f"there are {len(ids)} token ids, but completion_tokens is {total}")
    gamma, drafted = whole(metrics, "num_spec_tokens", LONGEST_DRAFT), whole(metrics, "num_draft_tokens")
    times = wholes(metrics, "acceptance_histogram", LONGEST_DRAFT + 1)
    if len(times) != gamma + 1:
        raise ValueError(
            f"acceptance_histogram has {len(times)} entries; expected num_spec_tokens + 1 = {gamma + 1}"
        )
    counts = Counts(
        times, drafted, _uniform(drafted, sum(times), gamma), len(ids) if ids is not None else total
    )
    steps = _paired(metrics)
    check_counts(counts, whole(metrics, "num_spec_steps"), whole(metrics, "num_accepted_draft_tokens"), steps)
    return trace_of(
        FileRequest(
            source="a response of vLLM",
            engine="vLLM",
            key=text(row, "id", 80),
            content=row,
            steps=steps if rows else None,
            counts=counts,
            tokens=ids,
            prompt=_ids(row, "prompt_token_ids") or _ids(choice, "prompt_token_ids"),
            text=_text(choice),
            pieces=_pieces(choice, counts.tokens),
            stated=_stated(row["metrics"], counts.tokens),
            model=text(row, "model"),
            created=number(row, "created") if "created" in row else None,
            reason=_REASONS.get(text(choice, "finish_reason"), ""),
        )
    )


def _is_aiperf(row: Any) -> bool:
    return is_object(row) and is_object(row.get("metadata")) and is_object(row.get("metrics"))


def _read_aiperf(row: dict[str, Any], *, rows: bool = True) -> Trace | None:
    entry = row.get("spec_decode_acceptance")
    if entry is None:
        return None
    names = {*_COMMON, *_OF_AIPERF}
    entry = entry_of(entry, names, "spec_decode_acceptance", "AIPerf 0.12 and 0.13")
    times = histogram(entry, "acceptance_histogram")
    drafted = whole(entry, "num_draft_tokens")
    longest = optional_whole(entry, "num_spec_tokens", LONGEST_DRAFT)
    chain = entry.get("engine") == "vllm"  # other engines may draft trees
    gamma = _uniform(drafted, sum(times), longest) if chain else None
    counts = Counts(times, drafted, gamma, optional_whole(entry, "completion_tokens"))
    steps, metadata = _paired(entry), row["metadata"]
    check_counts(counts, whole(entry, "num_spec_steps"), whole(entry, "num_accepted_draft_tokens"), steps)
    return trace_of(
        FileRequest(
            source=f"a record of AIPerf, engine {text(entry, 'engine', 40) or 'unknown'}",
            engine=text(entry, "engine", 40) or "AIPerf",
            key=text(metadata, "x_request_id", 80),
            content=row,
            steps=steps if chain and rows else None,
            counts=counts,
            created=number(metadata, "request_start_ns") / 1e9 if "request_start_ns" in metadata else None,
        )
    )


def _is_sglang(row: Any) -> bool:
    return is_object(row) and is_object(row.get("sglext"))


def _read_sglang(row: dict[str, Any]) -> Trace | None:
    details = row["sglext"].get("spec_tokens_details")
    if details is None:
        return None
    if isinstance(details, list) and len(details) == 1:
        details = details[0]
    if not is_object(details):
        raise ValueError("sglext.spec_tokens_details is no object; expected a response with n = 1")
    entry_of(details, _OF_SGLANG, "sglext.spec_tokens_details")
    counts = Counts(
        wholes(details, "spec_correct_drafts_histogram", LONGEST_DRAFT + 1),
        whole(details, "spec_num_proposed_drafts"),
        tokens=_completion_tokens(row),
    )
    check_counts(counts, whole(details, "spec_verify_ct"), whole(details, "spec_num_correct_drafts"))
    return trace_of(
        FileRequest(
            source="a response of SGLang",
            engine="SGLang",
            key=text(row, "id", 80),
            content=row,
            counts=counts,
            model=text(row, "model"),
            created=number(row, "created") if "created" in row else None,
        )
    )


def _completion_tokens(row: dict[str, Any]) -> int | None:
    usage = row.get("usage")
    return optional_whole(usage, "completion_tokens") if is_object(usage) else None


def _paired(metrics: dict[str, Any]) -> tuple[tuple[int, int], ...] | None:
    """Return (drafted, accepted) of each verification; None without the two lists."""
    if metrics.get("per_step_accepted") is None and metrics.get("per_step_drafted") is None:
        return None
    accepted = wholes(metrics, "per_step_accepted", MOST_STEPS, LONGEST_DRAFT)
    drafted = wholes(metrics, "per_step_drafted", MOST_STEPS, LONGEST_DRAFT)
    if len(accepted) != len(drafted):
        raise ValueError(
            f"per_step_accepted has {len(accepted)} entries, but per_step_drafted has {len(drafted)}"
        )
    return tuple(zip(drafted, accepted, strict=True))


def _uniform(drafted: int, steps: int, gamma: int | None) -> int | None:
    """Return the draft length if every verification had the longest one, else None."""
    return gamma if gamma is not None and steps and drafted == gamma * steps else None


def _choice(row: dict[str, Any]) -> dict[str, Any]:
    """Return the choice of a response; an empty one for the last part of a stream."""
    choices = row.get("choices")
    if not isinstance(choices, list) or len(choices) > 1:
        raise ValueError("choices is no list of one choice, as vLLM reports speculative decoding for n = 1")
    if choices and not is_object(choices[0]):
        raise ValueError("the choice is no object")
    return choices[0] if choices else {}


def _ids(row: dict[str, Any], name: str) -> tuple[int, ...] | None:
    return None if row.get(name) is None else wholes(row, name, MOST_TOKENS, 2**31)


def _text(choice: dict[str, Any]) -> str:
    message = choice.get("message")
    return text(message, "content", 2**20) if is_object(message) else text(choice, "text", 2**20)


def _pieces(choice: dict[str, Any], tokens: int | None) -> tuple[tuple[str, float | None], ...]:
    """Return text and p of each token of the output; none if they are of another number of them."""
    logprobs = choice.get("logprobs")
    found = chances_of(logprobs) if is_object(logprobs) else []
    if not found or len(found) != tokens:
        return ()
    whole_text = "".join(piece for piece, _ in found)
    clean = [
        piece.encode("utf-8", "replace").decode() if whole_text == _text(choice) else "" for piece, _ in found
    ]
    return tuple((piece, p) for piece, (_, p) in zip(clean, found, strict=True))


def _stated(metrics: dict[str, Any], tokens: int | None) -> dict[str, float]:
    """Return the figures of `--enable-per-request-metrics`: without the time in the queue.

    `generation_time_ms` is from the first output token to the last, `mean_itl_ms` a token's part of
    it. vLLM's `tokens_per_second` counts the prefill, so it is left out.
    """
    names = ("time_to_first_token_ms", "generation_time_ms", "mean_itl_ms")
    first, decode, mean = (optional_number(metrics, name) for name in names)
    if any(value is not None and not 0 <= value <= 1e12 for value in (first, decode, mean)):
        raise ValueError("a time in metrics is no time in milliseconds; expected 0 to 1e12")
    found = {"ttft_ms": first, "tpot_ms": mean}
    if decode is not None:
        found["decode_seconds"] = decode / 1e3
        found["seconds"] = None if first is None else (first + decode) / 1e3
        found["tokens_per_second"] = 1e3 * (tokens - 1) / decode if tokens and decode else None
    return {name: value for name, value in found.items() if value is not None}


VLLM = FileForm(
    "responses of vLLM with metrics.speculative_decoding",
    _is_vllm,
    _read_vllm,
    totals=partial(_read_vllm, rows=False),
)
AIPERF = FileForm(
    "records of AIPerf (profile_export.jsonl) with spec_decode_acceptance",
    _is_aiperf,
    _read_aiperf,
    totals=partial(_read_aiperf, rows=False),
)
SGLANG = FileForm("responses of SGLang with sglext.spec_tokens_details", _is_sglang, _read_sglang)
