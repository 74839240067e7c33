"""What a server does with drafts: their length, and whether drafter and target work at once.

Sources: MineDraft (arXiv:2603.18016); DSpark (arXiv:2607.05147), algorithm 1, for the lengths.
"""

from __future__ import annotations

from dataclasses import replace

from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout, Separate

FIXED, BY_BATCH, SURVIVAL, MINEDRAFT = "fixed", "by-batch", "survival", "minedraft"
POLICIES = {
    FIXED: "drafts are as long as the method asks",
    BY_BATCH: "one draft length for all requests of a round, by their number",
    SURVIVAL: "a draft length for each request, by the probability that each place is accepted",
    MINEDRAFT: "two batches in turn: the drafter drafts one while the target verifies the other",
}
LENGTHS = (BY_BATCH, SURVIVAL)
"""Policies that may shorten a draft, to none."""


def with_policy(method: str, layout: Layout, policy: str) -> Layout:
    """Return a method's layout under a policy; UsageError if the policy has nothing to act on."""
    if policy == FIXED:
        return layout
    if layout.lockstep:
        raise UsageError(
            f"{method} drafts and verifies at once by itself, so the policy {policy} cannot serve it: choose {FIXED}"
        )
    if not (layout.needs_drafter or layout.head):
        raise UsageError(
            f"{method} drafts without a model, so the policy {policy} has no effect: choose {FIXED}"
        )
    if policy in LENGTHS:
        return _with_lengths(method, layout, policy)
    match layout.arrangement:
        case Separate(targets=1, drafters=1) if not layout.head:
            return replace(layout, arrangement=Separate())
        case _:
            raise UsageError(
                f"{method} drafts on the target's devices, and the policy {policy} needs a drafter on its own: "
                f"choose {FIXED} or {' or '.join(LENGTHS)}"
            )


def _with_lengths(method: str, layout: Layout, policy: str) -> Layout:
    if not layout.limited:
        raise UsageError(
            f"{method} insists on its own draft length, so the policy {policy} cannot limit it: choose {FIXED}"
        )
    if not isinstance(layout.arrangement, Separate):
        raise UsageError(
            f"{method} drafts on several devices together, whose times the policy {policy} does not know: "
            f"choose {FIXED}"
        )
    return layout
