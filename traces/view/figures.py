"""Figures: the labels and texts of the metrics, for the viewer, the report and the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from traces.metrics import DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from traces.metrics import Metrics
    from traces.race import Spread


class Figure(NamedTuple):
    """One row of the metric table."""

    key: str
    label: str
    form: str
    """`count`, `share`, `times`, `places`, `levels`, `devices`, or the number of decimals."""
    main: bool = False
    """Whether it is in the short table."""


class FigureView(TypedDict):
    """A figure as the viewer explains it."""

    key: str
    label: str
    main: bool
    definition: str


FIGURES = (
    Figure("tokens_per_second", "tokens/s", "1", main=True),
    Figure("tokens_per_second_per_sequence", "tokens/s per sequence", "1"),
    Figure("speedup", "speed-up", "times", main=True),
    Figure("acceptance_rate", "accepted / drafted", "share", main=True),
    Figure("acceptance_rate_tested", "accepted / tested", "share", main=True),
    Figure("tokens_per_target_forward", "tokens / forward, own included", "2", main=True),
    Figure("target_forwards", "target forwards", "count", main=True),
    Figure("c", "drafter speed, c", "2", main=True),
    Figure("both", "both busy", "share", main=True),
    Figure("tokens", "tokens", "count"),
    Figure("seconds", "seconds", "3"),
    Figure("tokens_per_second_with_prefill", "tokens/s with prefill", "1"),
    Figure("decode_seconds", "decode seconds", "3"),
    Figure("ttft_ms", "time to first token, ms", "1"),
    Figure("tpot_ms", "time per output token, ms", "2"),
    Figure("draft_forwards", "drafter forwards", "count"),
    Figure("drafted", "drafted", "count"),
    Figure("accepted", "accepted", "count"),
    Figure("rejected", "rejected", "count"),
    Figure("discarded", "discarded", "count"),
    Figure("dsi_acceptance", "acceptance, from runs", "share"),
    Figure("mean_accepted_length", "accepted per round", "2"),
    Figure("acceptance_length", "tokens per verification", "2"),
    Figure("least_acceptance_length", "tokens per verification, least", "2"),
    Figure("padding_ratio", "padding ratio", "share"),
    Figure("padding_share", "padding share", "share"),
    Figure("attention_cells", "query-key cells", "count"),
    Figure("run_length", "run length", "2"),
    Figure("per_position", "accepted / drafted by place", "places"),
    Figure("per_level", "acceptance by level", "levels"),
    Figure("draft_seconds_per_100_tokens", "draft seconds / 100 tokens", "3"),
    Figure("verify_seconds_per_100_tokens", "verify seconds / 100 tokens", "3"),
    Figure("target_waits", "target waits for drafter", "share"),
    Figure("drafter_waits", "drafter waits for target", "share"),
    Figure("occupancy", "occupancy, from spans", "devices"),
    Figure("measured_occupancy", "occupancy, measured", "devices"),
    Figure("sp_degree", "target servers at once", "count"),
    Figure("wasted_device_seconds", "wasted device seconds", "3"),
    Figure("preempted_device_seconds", "of these, preempted", "3"),
)

LOSSY = (
    "Its acceptance rule changes the distribution: the text is not drawn as the target alone would draw it."
)
"""The sentence shown with a run that is not lossless."""

UNKNOWN = "unknown"
"""The text of a figure that the file of an imported run leaves open."""

_MORE = {
    "speedup": (
        "Tokens/s of this run / tokens/s of its baseline: a run that drafts nothing (autoregressive), with the same "
        "prompt, models, clock, profile, sampling and batch size. Without one, the cell names what differs."
    ),
    "both": "Share of decoding in which drafter and target work at the same time.",
    "target_waits": "Share of decoding in which only the drafter works, on a device of its own.",
    "drafter_waits": "Share of decoding in which only the target works, and the drafter has a device of its own.",
}


_OF_BATCHES = {
    "tokens_per_second": "throughput, tokens/s",
    "tokens_per_second_per_sequence": "tokens/s per sequence",
}
"""Labels of the two speeds where a run decodes several sequences at once; both are main figures."""


def figure_rows(*, batches: bool = False) -> list[FigureView]:
    """Return every figure, in the order shown.

    With `batches`, one of the runs decodes several sequences at once.
    """
    special = _OF_BATCHES if batches else {}
    return [
        {
            "key": f.key,
            "label": special.get(f.key, f.label),
            "main": f.main or f.key in special,
            "definition": _MORE.get(f.key) or DEFINITIONS[f.key],
        }
        for f in FIGURES
    ]


def figure_texts(
    metrics: Metrics,
    speedup: float | str | None,
    labels: Mapping[str, str],
    unknown: Collection[str] = (),
    *,
    trees: bool = False,
    passes: Spread | None = None,
) -> dict[str, str]:
    """Return the text of every figure by key; a dash for one that the run does not define.

    Args:
        metrics: The run's metrics.
        speedup: Over the baseline, or the reason why there is none.
        labels: Label of each device; a device without one is left out of the occupancies.
        unknown: Keys of the figures that the file of an imported run leaves open.
        trees: Whether the run verifies trees: accepted tokens per round follow the acceptance rate.
        passes: The speeds of all passes; the run is the median one.
    """
    values: dict[str, Any] = {**metrics.waiting, **metrics.to_dict(), "speedup": speedup}
    if trees and metrics.mean_accepted_length is not None:
        share = _text("share", metrics.acceptance_rate)
        values["acceptance_rate"] = f"{share} of nodes, {metrics.mean_accepted_length:.2f} per round"
    for key, shares in (
        ("occupancy", metrics.occupancy),
        ("measured_occupancy", metrics.measured_occupancy),
    ):
        values[key] = {label: shares[name] for name, label in labels.items() if name in shares}
    if not metrics.draft_forwards and "draft_forwards" not in unknown:
        values |= {"both": None, "target_waits": None, "drafter_waits": None}
    texts = {f.key: UNKNOWN if f.key in unknown else _text(f.form, values[f.key]) for f in FIGURES}
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
