"""What a run is called, how it went, and why it has no drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from specscope.engine.methods import METHODS
from specscope.traces.facts.comparable import drafts, other_load
from specscope.traces.facts.imported import is_timed, origin
from specscope.traces.facts.settings import config_text, drafter_text, planned_text, policy_text, shown_config
from specscope.traces.view.figures import LOSSY

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace


class Heading(TypedDict):
    """What a run is called and how it went."""

    id: str
    title: str
    config: str
    drafter: str
    planned: str
    badge: str
    virtual: bool
    lossy: str
    """A sentence if the run is lossy, else empty."""
    status: str
    error: str
    reasons: list[str]
    prompts: list[str]
    redacted: bool
    greedy: bool
    imported: bool
    """Whether another engine or program made the run, by an unknown rule of acceptance."""
    busy: str
    """A sentence if other programs loaded the machine during the run, else empty."""
    timed: bool
    """Whether the times are facts; if not, all of them are 0."""


def heading(trace: Trace, redact_prompt: bool) -> Heading:
    header, footer, found = trace.header, trace.footer, origin(trace.header)
    return {
        "id": header.run_id,
        "title": header.title,
        "config": " · ".join(
            filter(
                None, (config_text(header.method, shown_config(header, redact_prompt)), policy_text(header))
            )
        ),
        "drafter": drafter_text(header),
        "planned": planned_text(header),
        "badge": header.clock,
        "virtual": header.virtual,
        "lossy": "" if header.lossless else LOSSY,
        "status": trace.status,
        "error": footer.error if footer else "",
        "reasons": list(footer.reasons) if footer else [],
        "prompts": [] if redact_prompt else list(header.prompts),
        "redacted": redact_prompt,
        "greedy": header.sampling.get("temperature") == 0,
        "imported": found is not None and not (found.recorded and _has_rule(trace)),
        "busy": load.warning if (load := other_load(trace)) else "",
        "timed": is_timed(header) and not trace.windows,
    }


def _has_rule(trace: Trace) -> bool:
    return any(d.rule for d in trace.decisions)


def note(trace: Trace) -> str:
    """Return why nothing was drafted, or what is unknown of an imported run; else nothing."""
    found = origin(trace.header)
    if found and (found.sentence or not found.recorded):
        return found.sentence
    if drafts(trace) or (trace.status == "running" and not trace.rounds):
        return ""
    if not trace.rounds:
        return "no drafts in this run: it ended before its first round"
    method = METHODS.get(trace.header.method)
    if method and method.baseline:
        return "no drafts in this run: the method has no drafter, every token is one target forward"
    if method and "drafter" not in method.uses:
        return "no drafts in this run: the method found none to make, every round was a plain target forward"
    if found:
        return "no drafts in this run: every round was a plain target forward"
    if not trace.header.drafter_path and "head" not in trace.header.environment:
        return "no drafts in this run: speculation inactive because no drafter was given"
    return "no drafts in this run: speculation inactive because every round was a plain target forward"


def said(trace: Trace) -> str:
    """Return the note in the header as a sentence; empty without a note."""
    note = trace.header.environment.get("note")
    return f"{note}." if isinstance(note, str) and note else ""
