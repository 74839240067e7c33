"""Responses of vLLM with per-request metrics of speculative decoding.

Read: vLLM 0.32, started with `--per-request-spec-decode-metrics summary` or `detailed`. The entry
`metrics.speculative_decoding` of a response holds totals, a histogram, and if detailed
`per_step_accepted` and `per_step_drafted`: one number per verification of a draft. Token ids come
with requests that set `return_token_ids`. Source: vLLM's documentation, "Per-Request Acceptance
Metrics".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traces.imported import Counts
from traces.imports.requests import Request, check_counts, trace_of
from traces.imports.values import (
    LONGEST_DRAFT,
    MOST_STEPS,
    MOST_TOKENS,
    is_object,
    known,
    number,
    optional_whole,
    text,
    whole,
    wholes,
)

if TYPE_CHECKING:
    from engine.trace.trace import Trace

NAME = "responses of vLLM with metrics.speculative_decoding"
_FIELDS = frozenset({
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_tokens",
    "per_step_accepted",
    "per_step_drafted",
})  # fmt: skip
_REASONS = {"length": "length", "stop": "stop"}


def recognises(row: Any) -> bool:
    """Return whether a JSON value is such a response."""
    return is_object(row) and is_object(row.get("metrics")) and "speculative_decoding" in row["metrics"]


def read(row: dict[str, Any]) -> Trace | None:
    """Return the trace of a response; None if the response says nothing of speculative decoding.

    Raises:
        ValueError: The response is of another version, or its numbers contradict each other.
    """
    metrics = row["metrics"]["speculative_decoding"]
    if metrics is None:
        return None
    if not is_object(metrics):
        raise ValueError("metrics.speculative_decoding is no object")
    known(metrics, _FIELDS, "metrics.speculative_decoding (vLLM 0.32)")
    choice = _choice(row)
    ids = _ids(choice, "token_ids")
    usage = row.get("usage")
    total = optional_whole(usage, "completion_tokens") if is_object(usage) else None
    if ids is not None and total is not None and len(ids) != total:
        raise ValueError(f"there are {len(ids)} token ids, but completion_tokens is {total}")
    counts = _counts(metrics, len(ids) if ids is not None else total)
    steps = paired(metrics)
    check_counts(counts, whole(metrics, "num_spec_steps"), whole(metrics, "num_accepted_draft_tokens"), steps)
    request = Request(
        source="a response of vLLM",
        engine="vLLM",
        key=text(row, "id", 80),
        content=row,
        steps=steps,
        counts=counts,
        tokens=ids,
        prompt=_ids(row, "prompt_token_ids") or _ids(choice, "prompt_token_ids"),
        text=_text(choice),
        model=text(row, "model"),
        created=number(row, "created") if "created" in row else None,
        reason=_REASONS.get(text(choice, "finish_reason"), ""),
    )
    return trace_of(request)


def paired(metrics: dict[str, Any]) -> tuple[tuple[int, int], ...] | None:
    """Return (drafted, accepted) of each verification; None without the two lists.

    Raises:
        ValueError: One list is missing, or their lengths differ.
    """
    if metrics.get("per_step_accepted") is None and metrics.get("per_step_drafted") is None:
        return None
    accepted = wholes(metrics, "per_step_accepted", MOST_STEPS, LONGEST_DRAFT)
    drafted = wholes(metrics, "per_step_drafted", MOST_STEPS, LONGEST_DRAFT)
    if len(accepted) != len(drafted):
        raise ValueError(
            f"per_step_accepted has {len(accepted)} entries, but per_step_drafted has {len(drafted)}"
        )
    return tuple(zip(drafted, accepted, strict=True))


def uniform(drafted: int, steps: int, gamma: int | None) -> int | None:
    """Return the draft length if every verification had the longest one, else None."""
    return gamma if gamma is not None and steps and drafted == gamma * steps else None


def _counts(metrics: dict[str, Any], tokens: int | None) -> Counts:
    gamma = whole(metrics, "num_spec_tokens", LONGEST_DRAFT)
    histogram = wholes(metrics, "acceptance_histogram", LONGEST_DRAFT + 1)
    if len(histogram) != gamma + 1:
        raise ValueError(
            f"acceptance_histogram has {len(histogram)} entries; expected num_spec_tokens + 1 = {gamma + 1}"
        )
    drafted = whole(metrics, "num_draft_tokens")
    return Counts(histogram, drafted, uniform(drafted, sum(histogram), gamma), tokens)


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
    """Return the output's text, of a completion or of a chat."""
    message = choice.get("message")
    return text(message, "content", 2**20) if is_object(message) else text(choice, "text", 2**20)
