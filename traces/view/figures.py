"""Figures: the labels and texts of the metrics, and all definitions of acceptance side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from specscope.traces.facts.definitions import FIGURES
from specscope.traces.facts.imported import origin
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import drafted_levels

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics
    from specscope.traces.judge.race import Spread


class FigureView(TypedDict):
    """A figure as the viewer explains it."""

    key: str
    label: str
    main: bool
    definition: str


_SHOWN = [figure for figure in FIGURES.values() if figure.label]

LOSSY = (
    "Its acceptance rule changes the distribution: the text is not drawn as the target alone would draw it."
)
"""The sentence shown with a run that is not lossless."""

UNKNOWN = "unknown"


def figure_rows(*, batches: bool = False) -> list[FigureView]:
    return [
        {
            "key": f.key,
            "label": (f.of_batches if batches else "") or f.label,
            "main": f.main or (batches and bool(f.of_batches)),
            "definition": f.definition,
        }
        for f in _SHOWN
    ]


def figure_texts(
    metrics: Metrics,
    speedup: float | str | None,
    labels: Mapping[str, str],
    unknown: Collection[str] = (),
    *,
    of: str = "",
    passes: Spread | None = None,
) -> dict[str, str]:
    """Return the text of every figure by key; a dash for one that the run does not define.

    `speedup` is the reason where there is none. A device without a label is left out of the
    occupancies. `of` names what a round drafts more of than it can accept, such as `nodes`.
    Accepted tokens per round then follow the acceptance rate.
    """
    values: dict[str, Any] = {**metrics.waiting, **metrics.to_dict(), "speedup": speedup}
    if of and metrics.mean_accepted_length is not None:
        share = _text("share", metrics.acceptance_rate)
        values["acceptance_rate"] = f"{share} of {of}, {metrics.mean_accepted_length:.2f} per round"
    for key, shares in (
        ("occupancy", metrics.occupancy),
        ("measured_occupancy", metrics.measured_occupancy),
    ):
        values[key] = {label: shares[name] for name, label in labels.items() if name in shares}
    if not metrics.draft_forwards and "draft_forwards" not in unknown:
        values |= {"both": None, "target_waits": None, "drafter_waits": None}
    texts = {f.key: UNKNOWN if f.key in unknown else _text(f.form, values[f.key]) for f in _SHOWN}
    if passes is not None:
        low, high, count = f"{passes['low']:.1f}", f"{passes['high']:.1f}", passes["count"]
        each = f"{low} to {high} in {count} passes" if count > 2 else f"mean of {low} and {high}"
        texts["tokens_per_second"] += f" ({each})"
    return texts


def _text(form: str, value: Any) -> str:
    if value is None or value == () or value == {}:
        return "–"
    if isinstance(value, str):
        return value
    match form:
        case "count":
            return f"{value:,}"
        case "share":
            return f"{100 * value:.0f} %"
        case "times":
            return f"{value:.2f}×"
        case "places":
            return " · ".join(f"{s['slot']}: {100 * s['unconditional']:.0f} %" for s in value)
        case "levels":
            return " · ".join(f"{s['level']}: {100 * s['rate']:.0f} %" for s in value)
        case "devices":
            return " · ".join(f"{name} {_text('share', share)}" for name, share in value.items())
        case _:
            return f"{value:,.{int(form)}f}"


# Acceptance: papers and engines count differently.

USED_BY = {
    "acceptance_rate": "vLLM and AIPerf: draft acceptance rate",
    "acceptance_rate_tested": "Leviathan et al.: α",
    "rollback_rate": "SpecBranch: rollback rate, of chains",
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
    columns = [_acceptance_texts(trace) for trace in traces]
    return [
        Definition(known[key][0], tuple(column[key] for column in columns), user, known[key][1])
        for key, user in USED_BY.items()
    ]


def _acceptance_texts(trace: Trace) -> dict[str, str]:
    metrics, found = measure(trace), origin(trace.header)
    unknown = found.figures if found else frozenset[str]()
    texts = figure_texts(metrics, None, {}, unknown)
    own = {
        "conditional": UNKNOWN if "per_position" in unknown else _conditional(metrics),
        "levels": UNKNOWN if "per_level" in unknown else _levels(trace),
    }
    return texts | own


def _levels(trace: Trace) -> str:
    accepted, drafted = drafted_levels(trace)
    return f"{100 * accepted / drafted:.0f} %" if drafted else "–"


def _conditional(metrics: Metrics) -> str:
    rates = [(slot.slot, slot.conditional) for slot in metrics.per_position]
    return " · ".join(f"{slot}: {100 * rate:.0f} %" for slot, rate in rates if rate is not None) or "–"
