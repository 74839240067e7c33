"""Records of AIPerf: lines of `profile_export.jsonl`.

Read: AIPerf 0.12 and 0.13, with `--export-level records`. The entry `spec_decode_acceptance` of a
record holds totals, a sparse histogram, and `per_step_accepted` and `per_step_drafted` if the
engine reports them. Only vLLM's drafts are known to be chains: of other engines the totals are
kept. Source: AIPerf's documentation, "Per-Request Speculative-Decoding Acceptance".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traces.imported import Counts
from traces.imports.requests import Request, check_counts, trace_of
from traces.imports.values import (
    LONGEST_DRAFT,
    histogram,
    is_object,
    known,
    number,
    optional_whole,
    text,
    whole,
)
from traces.imports.vllm import paired, uniform

if TYPE_CHECKING:
    from engine.trace.trace import Trace

NAME = "records of AIPerf (profile_export.jsonl) with spec_decode_acceptance"
_FIELDS = frozenset({
    "engine",
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_steps",
    "num_spec_tokens",
    "completion_tokens",
    "per_step_accepted",
    "per_step_drafted",
})  # fmt: skip


def recognises(row: Any) -> bool:
    """Return whether a JSON value is such a record, of a request with or without drafts."""
    return is_object(row) and is_object(row.get("metadata")) and is_object(row.get("metrics"))


def read(row: dict[str, Any]) -> Trace | None:
    """Return the trace of a record; None if the record says nothing of speculative decoding.

    Raises:
        ValueError: The record is of another version, or its numbers contradict each other.
    """
    entry = row.get("spec_decode_acceptance")
    if entry is None:
        return None
    if not is_object(entry):
        raise ValueError("spec_decode_acceptance is no object")
    known(entry, _FIELDS, "spec_decode_acceptance (AIPerf 0.12 and 0.13)")
    times = histogram(entry, "acceptance_histogram")
    drafted, longest = (
        whole(entry, "num_draft_tokens"),
        optional_whole(entry, "num_spec_tokens", LONGEST_DRAFT),
    )
    chain = entry.get("engine") == "vllm"  # other engines may draft trees
    gamma = uniform(drafted, sum(times), longest) if chain else None
    counts = Counts(times, drafted, gamma, optional_whole(entry, "completion_tokens"))
    steps = paired(entry)
    check_counts(counts, whole(entry, "num_spec_steps"), whole(entry, "num_accepted_draft_tokens"), steps)
    metadata = row["metadata"]
    start = number(metadata, "request_start_ns") / 1e9 if "request_start_ns" in metadata else None
    return trace_of(
        Request(
            source=f"a record of AIPerf, engine {text(entry, 'engine', 40) or 'unknown'}",
            engine=text(entry, "engine", 40) or "AIPerf",
            key=text(metadata, "x_request_id", 80),
            content=row,
            steps=steps if chain else None,
            counts=counts,
            created=start,
        )
    )
