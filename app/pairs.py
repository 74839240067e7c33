"""The pairs that can be chosen by name: their labels, and the methods that each can run."""

from __future__ import annotations

from specscope.engine.checkpoints.catalog import CATALOG, PAIRS, TOY, Entry, opening, stored_heads
from specscope.engine.checkpoints.config import read_object
from specscope.engine.layout import Layout
from specscope.engine.methods import BASELINE, METHODS

NAMES = (*CATALOG, TOY)
USUAL = (BASELINE, "speculative", "pearl", "llma", "prompt_lookup")
"""Methods in the order of preference; a pair opens with the first `OPENING` that it can run."""
OPENING = 3


def label(name: str) -> str:
    return CATALOG[name].title if name in CATALOG else "The bundled pair (a toy)"


def about(name: str) -> str:
    if name in CATALOG:
        entry = CATALOG[name]
        return f"A chat model: {entry.parameters} parameters, a context of {entry.context:,} tokens."
    context = read_object(PAIRS / name / "target" / "config.json")["max_position_embeddings"]
    return (
        f"A toy for tests and for machines without a network: a context of {context:,} tokens; its answers are simple "
        "and often wrong."
    )


def absent() -> Entry | None:
    """Return the model to get if the toy is the pair to open with; None if it is not."""
    return next(iter(CATALOG.values())) if opening() == TOY else None


def able(name: str) -> list[str]:
    """Return the methods that a pair can run with their default settings."""
    unable = reasons(name)
    return [key for key in METHODS if key not in unable]


def lacks(name: str, layout: Layout) -> str:
    """Return what a layout needs and a pair has not, with its article; empty for nothing.

    Every pair has a drafter: a stored one, or the target's own weights in fewer bits.
    """
    if layout.head and layout.head not in stored_heads(name):
        return f"a drafting head of kind {layout.head}"
    return ""


def usual(name: str) -> list[str]:
    """Return the methods that are selected when a pair is chosen."""
    can = able(name)
    return [key for key in USUAL if key in can][:OPENING]


def reasons(name: str) -> dict[str, str]:
    """Return why a pair cannot run each method that it cannot run with its default settings."""
    needed = {key: lacks(name, method.layout(method.Config())) for key, method in METHODS.items()}
    return {key: f"needs {what}" for key, what in needed.items() if what}
