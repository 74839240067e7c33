"""All definitions of acceptance side by side: papers and engines count differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from traces.definitions import FIGURES
from traces.imported import origin
from traces.metrics import measure
from traces.places import drafted_levels
from traces.view.figures import UNKNOWN, figure_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.trace.trace import Trace
    from traces.metrics import Metrics

USED_BY = {
    "acceptance_rate": "vLLM and AIPerf: draft acceptance rate",
    "acceptance_rate_tested": "Leviathan et al.: α",
    "levels": "EasySpec: α, as its times show",
    "dsi_acceptance": "DSI, from the first run of each prompt only",
    "mean_accepted_length": "drafts only",
    "acceptance_length": "vLLM, AIPerf, Model Optimizer: mean acceptance length; EMS-SD",
    "tokens_per_target_forward": "Spec-Bench: mean accepted tokens",
    "run_length": "PEARL, table 7: mean accepted tokens",
    "per_position": "Model Optimizer: marginal rates",
    "per_level": "EAGLE: n-α; Sequoia; this project's planner",
    "conditional": "Model Optimizer: conditional rates",
}
"""Where each definition is used, by key of the figure."""
_OWN = {
    "conditional": (
        "conditional, by place",
        "Accepted / tested at each place of the draft: the rate after accepted tokens.",
    ),
    "levels": (
        "accepted / drafted levels",
        "Accepted / drafted levels: siblings of a tree count once. Of chains it is accepted / drafted.",
    ),
}
"""Label and definition of rates that no other table has."""


class Definition(NamedTuple):
    """One definition of acceptance."""

    label: str
    values: tuple[str, ...]
    used_by: str
    definition: str


def acceptance(traces: Sequence[Trace]) -> list[Definition]:
    known = {key: (figure.label, figure.definition) for key, figure in FIGURES.items()} | _OWN
    columns = [_texts(trace) for trace in traces]
    return [
        Definition(known[key][0], tuple(column[key] for column in columns), user, known[key][1])
        for key, user in USED_BY.items()
    ]


def _texts(trace: Trace) -> dict[str, str]:
    metrics, found = measure(trace), origin(trace.header)
    unknown = found.figures if found else frozenset[str]()
    texts = figure_texts(metrics, None, {}, unknown)
    own = {
        "conditional": UNKNOWN if "per_position" in unknown else _conditional(metrics),
        "levels": UNKNOWN if "per_level" in unknown else _levels(trace),
    }
    return texts | own


def _levels(trace: Trace) -> str:
    accepted, drafted = drafted_levels(trace.decisions)
    return f"{100 * accepted / drafted:.0f} %" if drafted else "–"


def _conditional(metrics: Metrics) -> str:
    rates = [(slot.slot, slot.conditional) for slot in metrics.per_position]
    return " · ".join(f"{slot}: {100 * rate:.0f} %" for slot, rate in rates if rate is not None) or "–"
