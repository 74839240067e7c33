"""Drafts without a drafter of its own: a head beside the target, and n-grams that are copied.

Each has the acceptance that one gives for it. Both run as speculative decoding: a head drafts token
by token, as EAGLE's, Hydra's and MTP's do in chains, with the bytes and the time of one layer of
the target and of its output head; n-grams take no model and no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from specscope.traces.lab.plan import Entrant

_COPIED = {
    "title": "n-grams",
    "source": "no model",
    "layers": 1,
    "dim": 64,
    "ffn": 64,
    "kv_heads": 1,
    "head_dim": 64,
    "vocab": 64,
    "speed": 1e5,
}
"""A model of a few kilobytes whose forward takes ten microseconds."""


class OtherKind(NamedTuple):
    """A kind of such drafts."""

    title: str
    place: str
    """Where it lies, after the target's cards."""
    drafts: str
    """Whose acceptance it is."""
    spread: bool
    """Whether all of the target's cards share it."""
    assumed: str
    """What the answer assumes of it, a sentence."""

    @property
    def entrant(self) -> Entrant:
        return Entrant("speculative", self.title, "turns", search={"gamma": 24})


KINDS = {
    "head": OtherKind(
        "Drafting head",
        "a head of one layer on the same",
        "the head",
        spread=True,
        assumed="A drafting head has the bytes and the time of one layer of the target, drafts token by token, and has "
        "the acceptance that was given for it.",
    ),
    "ngrams": OtherKind(
        "Copying n-grams",
        "drafts copied from the text",
        "the n-grams",
        spread=False,
        assumed="Copied n-grams take no time, and have the acceptance that was given for them; a round in which nothing "
        "can be copied counts as one whose first token is rejected.",
    ),
}


class Other(NamedTuple):
    """Such drafts in a question, with their acceptance as in `Expected`."""

    kind: str
    rates: tuple[float, float]
    places: tuple[float, ...] = ()

    def model(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Return what drafts as a profile's model."""
        if not KINDS[self.kind].spread:
            return _COPIED
        return {**target, "layers": 1, "tied": True, "title": "a head of one layer"}


def kind_of(entrant: Entrant) -> str:
    """Return the kind of an entrant; empty for methods with a drafter."""
    return next((kind for kind, one in KINDS.items() if one.title == entrant.short), "")
