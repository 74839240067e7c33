"""Step statistics of vllm-vcr: the file of `vllm-vcr record --step-stats-out`.

vllm-vcr records a live vLLM at its message queue. A line of the file is a message of the engine:
`ts_ms`, and `scheduler`, vLLM's statistics of the step. Their `spec_decoding_stats` sum up the
drafts that all requests of the step verified: how many drafts, drafted and accepted tokens, and
accepted tokens by place. So a file is one run of totals. vllm-vcr's other file, of requests, has
the tokens of each message, which do not tell a rejected draft from none. Sources: vllm-vcr 0.2.1,
`step_stats.rs` and `trace.rs`; vLLM, `SpecDecodingStats`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from specscope.traces.facts.imported import Counts
from specscope.traces.imports.request_trace import (
    LONGEST_DRAFT,
    FileForm,
    check_counts,
    entry_of,
    is_object,
    number,
    sum_of,
    whole,
    wholes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.trace import Trace

_FIELDS = (
    "num_spec_tokens",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_accepted_tokens_per_pos",
)
_REQUEST = {"prompt_tokens", "output_tokens", "ttft_ms"}
"""Fields of every line of vllm-vcr's file of requests; its first line may be `meta`."""


def _recognises(row: Any) -> bool:
    return is_object(row) and (_is_step(row) or row.keys() >= _REQUEST or row.keys() == {"meta"})


def _is_step(row: dict[str, Any]) -> bool:
    return "ts_ms" in row and is_object(row.get("scheduler"))


def _read(rows: Sequence[dict[str, Any]]) -> Trace | None:
    found = [counts for line, row in enumerate(rows, 1) if (counts := _step(line, row))]
    if not found:
        return None
    gammas = sorted({gamma for gamma, _ in found})
    if len(gammas) > 1:
        raise ValueError(f"num_spec_tokens is {gammas[0]} and {gammas[1]}; expected one number in a file")
    counts = _total(gammas[0], [counts for _, counts in found])
    return sum_of("step statistics of vllm-vcr", counts, "vLLM", "vllm-vcr", rows)


def _step(line: int, row: dict[str, Any]) -> tuple[int, Counts] | None:
    """Return draft length and counts of a step; None if it verified no draft."""
    if not _is_step(row):
        raise ValueError(
            "it is vllm-vcr's file of requests, which does not say what was drafted; "
            "expected the one of --step-stats-out"
        )
    number(row, "ts_ms")
    stats = row["scheduler"].get("spec_decoding_stats")
    if stats is None:
        return None
    try:
        gamma, counts = _counts(stats)
    except ValueError as error:
        raise ValueError(f"step {line}: {error}") from None
    return (gamma, counts) if counts.steps else None


def _counts(stats: Any) -> tuple[int, Counts]:
    stats = entry_of(stats, _FIELDS, "spec_decoding_stats", "vllm-vcr 0.2")
    gamma, drafts = whole(stats, "num_spec_tokens", LONGEST_DRAFT), whole(stats, "num_drafts")
    drafted = whole(stats, "num_draft_tokens")
    places = wholes(stats, "num_accepted_tokens_per_pos", LONGEST_DRAFT)
    if len(places) != gamma:
        raise ValueError(f"num_accepted_tokens_per_pos has {len(places)} entries; num_spec_tokens is {gamma}")
    reached = (drafts, *places, 0)
    if any(after > before for before, after in pairwise(reached)):
        raise ValueError(
            f"num_drafts is {drafts}, num_accepted_tokens_per_pos {list(places)}; expected none above the one before"
        )
    if drafted > gamma * drafts:
        raise ValueError(
            f"num_draft_tokens is {drafted}; expected at most num_drafts x num_spec_tokens = {gamma * drafts}"
        )
    counts = Counts(tuple(before - after for before, after in pairwise(reached)), drafted)
    check_counts(counts, drafts, whole(stats, "num_accepted_tokens"))
    return gamma, counts


def _total(gamma: int, steps: Sequence[Counts]) -> Counts:
    histogram = tuple(map(sum, zip(*(one.histogram for one in steps), strict=True)))
    drafted = sum(one.drafted or 0 for one in steps)
    uniform = drafted == gamma * sum(histogram)
    return Counts(histogram, drafted, gamma if uniform else None)


VCR = FileForm("step statistics of vllm-vcr (record --step-stats-out)", _recognises, _read, whole=True)
