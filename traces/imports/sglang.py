"""Responses of SGLang with counts of speculative decoding.

Read: SGLang with pull request 33518 (merged in August 2026), for requests that set
`return_spec_tokens_details`. The entry `sglext.spec_tokens_details` of a response holds totals and
a histogram, without the order of the verifications; for n > 1 it is a list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traces.imported import Counts
from traces.imports.requests import Request, check_counts, trace_of
from traces.imports.values import LONGEST_DRAFT, is_object, known, number, optional_whole, text, whole, wholes

if TYPE_CHECKING:
    from engine.trace.trace import Trace

NAME = "responses of SGLang with sglext.spec_tokens_details"
_FIELDS = frozenset({
    "spec_accept_rate",
    "spec_accept_length",
    "spec_cap_length",
    "spec_block_accept_length",
    "spec_num_correct_drafts",
    "spec_num_proposed_drafts",
    "spec_verify_ct",
    "spec_correct_drafts_histogram",
    "spec_cap_lens_histogram",
})  # fmt: skip


def recognises(row: Any) -> bool:
    """Return whether a JSON value is such a response."""
    return is_object(row) and is_object(row.get("sglext"))


def read(row: dict[str, Any]) -> Trace | None:
    """Return the trace of a response; None if the response says nothing of speculative decoding.

    Raises:
        ValueError: The response is of another version, has several choices, or its numbers
            contradict each other.
    """
    details = row["sglext"].get("spec_tokens_details")
    if details is None:
        return None
    if isinstance(details, list) and len(details) == 1:
        details = details[0]
    if not is_object(details):
        raise ValueError("sglext.spec_tokens_details is no object; expected a response with n = 1")
    known(details, _FIELDS, "sglext.spec_tokens_details")
    usage = row.get("usage")
    counts = Counts(
        wholes(details, "spec_correct_drafts_histogram", LONGEST_DRAFT + 1),
        whole(details, "spec_num_proposed_drafts"),
        tokens=optional_whole(usage, "completion_tokens") if is_object(usage) else None,
    )
    check_counts(counts, whole(details, "spec_verify_ct"), whole(details, "spec_num_correct_drafts"))
    return trace_of(
        Request(
            source="a response of SGLang",
            engine="SGLang",
            key=text(row, "id", 80),
            content=row,
            counts=counts,
            model=text(row, "model"),
            created=number(row, "created") if "created" in row else None,
        )
    )
