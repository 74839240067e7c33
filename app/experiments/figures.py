"""The figures of a comparison, by method and category, with the speed-up over plain decoding."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from specscope.app.experiments.doubt import Doubt, by_prompt, doubt_of
from specscope.app.named import PromptRow
from specscope.engine.methods import BASELINE
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.comparable import batch_size, comparisons
from specscope.traces.facts.forks import lookups
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import has_trees, per_level
from specscope.traces.facts.settings import config_text, shown_config
from specscope.traces.judge.health import health
from specscope.traces.judge.verdict import wrong_drafter

Traces: TypeAlias = dict[str, dict[int, Trace]]
"""The runs by name and by number of the first prompt."""


def median_pass(passes: Sequence[Traces]) -> tuple[Traces, dict[str, list[float]]]:
    """Return the median pass of each method (of two the slower one), and all speeds."""
    found = speeds_of(passes, passes[0][BASELINE])
    median: Traces = {}
    for name, speeds in found.items():
        order = sorted(range(len(passes)), key=speeds.__getitem__)
        median[name] = passes[order[(len(order) - 1) // 2]][name]
    return median, found


def speeds_of(passes: Sequence[Traces], prompts: Collection[int]) -> dict[str, list[float]]:
    """Return the tokens per second of each pass of a method, over these prompts."""

    def speed(runs: dict[int, Trace]) -> float:
        return pooled([trace for i, trace in runs.items() if i in prompts])["tokens_per_second"] or 0.0

    return {name: [speed(one[name]) for one in passes] for name in passes[0]}


def summaries_of(traces: Traces, rows: Sequence[PromptRow], passes: Sequence[Traces]) -> dict[str, Any]:
    """Return the figures of each method's median pass, also by category of the prompts."""
    runs_of = {key: list(runs.values()) for key, runs in traces.items()}
    speeds = speeds_of(passes, range(len(rows)))
    figures = _compared(runs_of, speeds)
    summaries = {
        key: {
            **figures[key],
            **_facts(list(runs.values()), figures[key]),
            **_doubt(traces, key, figures[key]["baseline"], speeds),
        }
        for key, runs in traces.items()
    }
    for category in dict.fromkeys(r.category for r in rows if r.category):
        mine = [i for i, row in enumerate(rows) if row.category == category]
        some = {key: [t for i, t in runs.items() if i in mine] for key, runs in traces.items()}
        part = _compared(some, speeds_of(passes, mine))
        for key, summary in summaries.items():
            summary.setdefault("categories", {})[category] = part[key]
    return summaries


def _facts(runs: list[Trace], figures: dict[str, Any]) -> dict[str, Any]:
    header = runs[0].header
    return {
        "runs": [t.header.run_id for t in runs],
        "config": header.config,
        "settings": config_text(header.method, shown_config(header, redact_prompt=False)),
        "planned": header.environment.get("planned"),
        "lossless": header.lossless,
        "advice": advice_on(runs, figures["draft_forwards"]),
        "health": {t.header.run_id: note for t in runs if (note := health(t))},
    }


def _doubt(traces: Traces, key: str, baseline: str | None, speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Return the speed-up by prompt, its range, and how this arose."""
    mine, plain = traces[key], traces[baseline] if baseline else {}
    known = () if traces[key][min(mine)].header.virtual else (speeds[key], speeds[baseline or key])
    doubt = doubt_of(mine, plain, known or ((), ())) if baseline != key else None
    return {"speedup_by_prompt": by_prompt(mine, plain), **Doubt.figures(doubt)}


def _compared(groups: dict[str, list[Trace]], speeds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each method, with its speed-up or the reason why it has none."""
    figures = {key: pooled(runs) for key, runs in groups.items()}
    for key, passes in speeds.items():
        if len(passes) == 2:
            figures[key]["tokens_per_second"] = statistics.fmean(passes)
    keys, texts = list(groups), texts_of(groups[BASELINE])
    for key, (baseline, reason) in zip(keys, comparisons([*groups.values()]), strict=True):
        theirs = None if baseline is None else figures[keys[baseline]]["tokens_per_second"]
        figures[key] |= {
            "equal_to_autoregressive": texts_of(groups[key]) == texts,
            "speedup": _ratio(figures[key]["tokens_per_second"], theirs),
            "not_comparable": reason or None,
            "baseline": None if baseline is None else keys[baseline],
        }
    return figures


def pooled(runs: list[Trace]) -> dict[str, Any]:
    """Return the figures over all tokens of several runs; None for what one of them lacks."""
    mine = [measure(t).to_dict() for t in runs]
    tokens, forwards, drafted, accepted, rejected, drafting = (
        _total(m[name] for m in mine)
        for name in ("tokens", "target_forwards", "drafted", "accepted", "rejected", "draft_forwards")
    )
    both = [m["waiting"].get("both") for m in mine]
    tested = _total([accepted, rejected])
    judging = [r.accepted for t in runs for r in t.rounds if r.drafted]
    hits = [bool(one.taken) for t in runs for one in lookups(t)]
    return {
        "tokens_per_second": _speed(mine, "tokens_per_second"),
        "tokens_per_second_per_sequence": _speed(mine, "tokens_per_second_per_sequence"),
        "batch": max(map(batch_size, runs)),
        "tokens_per_target_forward": _ratio(_decoded(mine), forwards),
        "acceptance_rate": _ratio(accepted, drafted),
        "acceptance_rate_tested": _ratio(accepted, tested),
        "rollback_rate": None if drafted is None or accepted is None else _ratio(drafted - accepted, drafted),
        "accepted_per_round": _ratio(sum(judging), len(judging)),
        "hit_rate": _ratio(sum(hits), len(hits)),
        "per_level": [asdict(level) for level in per_level(*runs)],
        "trees": any(has_trees(t.decisions) for t in runs),
        "tokens": tokens,
        "target_forwards": forwards,
        "draft_forwards": drafting,
        "drafted": drafted,
        "both_busy": None if None in both else statistics.fmean(both),
    }


def _decoded(metrics: list[dict[str, Any]]) -> int | None:
    """Return the tokens that target forwards decided while decoding: not those of a prefill."""
    parts = [(m["tokens_per_target_forward"], m["target_forwards"]) for m in metrics]
    return _total(None if ratio is None else round(ratio * forwards) for ratio, forwards in parts)


def _total(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(filter(None, known))


def texts_of(runs: list[Trace]) -> list[list[int]]:
    """Return the token ids of all outputs."""
    return [t.token_ids(i) for t in runs for i in range(len(t.header.prompt_ids))]


def _speed(metrics: list[dict[str, Any]], name: str) -> float | None:
    """Return all tokens divided by all seconds of one of the speeds in the metrics."""
    return _ratio(sum(m["tokens"] for m in metrics), sum(m["tokens"] / m[name] for m in metrics if m[name]))


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def advice_on(runs: Sequence[Trace], draft_forwards: int) -> str | None:
    """Return that a method's drafter is often wrong, and which one is wrong less often."""
    text = wrong_drafter(runs[0].header, draft_forwards, per_level(*runs))
    return f"{text} The option is --drafter int4." if text else None
