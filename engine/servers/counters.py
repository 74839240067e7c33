"""Counters of speculative decoding at a server's `/metrics`, in the text form of Prometheus.

vLLM and llama.cpp name them alike, after their prefix: `spec_decode_num_drafts_total`,
`..._draft_tokens_total`, `..._accepted_tokens_total`, and `..._accepted_tokens_per_pos_total` with
a label `position`. Values of several engines or models are summed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from specscope.engine.servers.address import Address, ServerError

_LINE = re.compile(r"(?:vllm|llamacpp):spec_decode_num_(\w+?)(?:_total)?(\{[^}]*\})?\s+([0-9.eE+]+)(?:\s|$)")
_PLACE = re.compile(r'position="(\d{1,4})"')
_NAMES = {"drafts": "drafts", "draft_tokens": "drafted", "accepted_tokens": "accepted"}


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the server's start."""

    drafts: int
    """Verifications of a draft."""
    drafted: int
    accepted: int
    places: tuple[int, ...]
    """Accepted tokens at each place of the draft."""

    def since(self, before: Counters) -> Counters | None:
        """Return what was counted since `before`; None if the server was started anew."""
        places = zip(self.places, before.places or (0,) * len(self.places), strict=False)
        found = Counters(
            self.drafts - before.drafts,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(now - then for now, then in places),
        )
        return found if min(found.drafts, found.drafted, found.accepted, *found.places) >= 0 else None


def read_counters(text: str) -> Counters | None:
    """Return the counters in a text; None if it lacks one of the three."""
    totals, places = dict[str, int](), dict[int, int]()
    for line in text.splitlines():
        if (match := _LINE.match(line)) is None:
            continue
        name, labels, value = match[1], match[2] or "", float(match[3])
        if not 0 <= value < 2**53:
            continue
        if name == "accepted_tokens_per_pos" and (place := _PLACE.search(labels)):
            places[int(place[1])] = places.get(int(place[1]), 0) + int(value)
        elif name in _NAMES:
            totals[_NAMES[name]] = totals.get(_NAMES[name], 0) + int(value)
    if len(totals) < len(_NAMES):
        return None
    drafts, drafted, accepted = (totals[name] for name in _NAMES.values())
    kept = tuple(places[i] for i in sorted(places)) if max(places, default=-1) < len(places) else ()
    return Counters(drafts, drafted, accepted, kept)


def counters(address: Address) -> Counters | None:
    """Return the counters of a server; None if it has no `/metrics`, or counts no drafts."""
    with suppress(ServerError):  # it may also refuse them
        content = address.get("/metrics")
        return read_counters(content.decode("utf-8", "replace")) if content else None
    return None
