"""Seconds of a profile's forwards by rows, for draft lengths under load."""

from __future__ import annotations

from specscope.engine.cluster.probing import CONTEXT
from specscope.engine.drafting.admission import Costs
from specscope.engine.drafting.pace import Curve
from specscope.engine.simulate.latency import Latency

ROWS = (1, *range(8, 4097, 8))
"""Numbers of rows at which a profile's formula is evaluated."""


def profile_costs(latency: Latency) -> Costs:
    """Return the times of sequences that are verified together, `CONTEXT` cached rows in all."""

    def curve(model: str) -> Curve:
        return tuple((rows, latency(model, rows, CONTEXT, rows) / 1e6) for rows in ROWS)

    judging = latency.sample_us + latency.communicate_us + latency.verify_us
    return Costs(curve("target"), curve("drafter") if latency.drafter else (), judging / 1e6)
