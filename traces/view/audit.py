"""The acceptance audit: expected and accepted drafts of all tests, by place and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from specscope.traces.judge.audit import audit
from specscope.traces.view import row_of, section

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.judge.audit import AuditPart


class PartView(TypedDict):
    """The fields of `specscope.traces.judge.audit.Part`."""

    name: str
    tested: int
    unknown: int
    kept: int
    low: float
    high: float
    deviation: float
    z: float | None


class AuditView(TypedDict):
    """A run's audit."""

    sentence: str
    """Empty if the acceptance follows the recorded rule."""
    rules: list[str]
    whole: PartView
    places: list[PartView]
    stretches: list[PartView]
    """Empty for a run of few tests."""


@section("audit", "acceptance audit", one=True, need="sums")
def audit_view(*traces: Trace) -> AuditView | None:
    """Return the audit of runs, pooled; None where no chance is known."""
    found = audit(*traces)
    if found is None:
        return None
    return {
        "sentence": found.sentence,
        "rules": found.whole.rules,
        "whole": _view(found.whole),
        "places": [_view(part) for part in found.places],
        "stretches": [_view(part) for part in found.stretches],
    }


def _view(part: AuditPart) -> PartView:
    numbers = {name: round(getattr(part, name), 2) for name in ("low", "high", "deviation")}
    return row_of(PartView, part, **numbers, z=None if part.z is None else round(part.z, 2))
