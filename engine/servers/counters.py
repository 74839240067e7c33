"""Counters of speculative decoding at a server's `/metrics`, in the text form of Prometheus.

vLLM and llama.cpp name them alike, after their prefix: `spec_decode_num_drafts_total`,
`..._draft_tokens_total`, `..._accepted_tokens_total`, and `..._accepted_tokens_per_pos_total` with
a label `position`. Values of several engines or models are summed.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from specscope.engine.errors import shown
from specscope.engine.servers.address import Address, ServerError

_LINE = re.compile(r"(vllm|llamacpp):(\w+?)(?:_total)?(\{[^}]*\})?\s+(\S+)")
_PLACE = re.compile(r'position="(\d{1,4})"')
_NUMBER = re.compile(r"\d{1,40}(?:\.\d{0,40})?(?:[eE][+-]?\d{1,3})?")
_DRAFTS = "spec_decode_num_"
_PLACES = "spec_decode_num_accepted_tokens_per_pos"
_NAMES = {
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
    "generation_tokens": "tokens",
    "tokens_predicted": "tokens",
    "tokens_predicted_seconds": "busy",
}
ENGINES = {"vllm": "vLLM", "llamacpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the server's start."""

    drafts: int
    """Verifications of a draft."""
    drafted: int
    accepted: int
    places: tuple[int, ...]
    """Accepted tokens at each place of the draft."""
    tokens: int | None = None
    """Of all outputs; None if it is not counted."""
    busy: float | None = None
    """Seconds that generated them, each request counted."""
    engine: str = ""

    def since(self, before: Counters) -> Counters | None:
        """Return what was counted since `before`; None if the server was started anew."""
        places = zip(self.places, before.places or (0,) * len(self.places), strict=False)
        found = replace(
            self,
            drafts=self.drafts - before.drafts,
            drafted=self.drafted - before.drafted,
            accepted=self.accepted - before.accepted,
            places=tuple(now - then for now, then in places),
            tokens=_less(self.tokens, before.tokens),
            busy=_less(self.busy, before.busy),
        )
        counts = (found.drafts, found.drafted, found.accepted, *found.places, found.tokens or 0)
        return found if min(*counts, found.busy or 0) >= 0 else None


def _less(now: float | None, then: float | None) -> Any:
    return None if now is None or then is None else now - then


def read_counters(text: str) -> Counters | None:
    """Return the counters in a text; None if it lacks one of the three of drafts.

    ValueError for a count that is none.
    """
    totals, places, engine = dict[str, float](), dict[int, int](), ""
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or (match[2] not in _NAMES and match[2] != _PLACES):
            continue
        value = float(match[4]) if _NUMBER.fullmatch(match[4]) else -1.0
        if not 0 <= value < 2**53:
            if match[2].startswith(_DRAFTS):
                raise ValueError(f"the counter {match[2]} is {shown(match[4])}; expected 0 to 2^53")
        elif match[2] in _NAMES:
            totals[_NAMES[match[2]]] = totals.get(_NAMES[match[2]], 0) + value
            engine = ENGINES[match[1]]
        elif place := _PLACE.search(match[3] or ""):
            places[int(place[1])] = places.get(int(place[1]), 0) + int(value)
    if not totals.keys() >= {"drafts", "drafted", "accepted"}:
        return None
    drafts, drafted, accepted = (int(totals[name]) for name in ("drafts", "drafted", "accepted"))
    kept = tuple(places[i] for i in sorted(places)) if max(places, default=-1) < len(places) else ()
    tokens = int(totals["tokens"]) if "tokens" in totals else None
    return Counters(drafts, drafted, accepted, kept, tokens, totals.get("busy"), engine)


def metrics_of(address: Address) -> str:
    """Return the `/metrics` of a server; empty if it has none or refuses them."""
    with suppress(ServerError):
        return (address.get("/metrics") or b"").decode("utf-8", "replace")
    return ""


def counters(address: Address) -> Counters | None:
    """Return the counters of a server; None if it counts no drafts, or what is no count."""
    with suppress(ValueError):
        return read_counters(metrics_of(address))
    return None
