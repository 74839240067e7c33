"""Every method of a pair over autoregressive decoding, with default settings, by category.

All methods decode the same prompts in turns on the same workers. The texts are compared
with the greedy text of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from specscope import Cluster
from specscope.app.bench import speed
from specscope.app.bench.figures import BenchPlan, Measurement, Note
from specscope.app.bench.speed import SpeedRace, Transformers, quiet
from specscope.engine.methods import BASELINE, find
from specscope.engine.trace.trace import Trace
from specscope.traces.facts.metrics import measure as metrics

PROMPTS = Path(__file__).resolve().parents[2] / "assets" / "prompts" / "categories.jsonl"
"""Two prompts of each category."""
COPYING = "summary"
"""The category of prompts whose answers repeat much of the prompt."""

QUICK = ("speculative", "pearl", "dsi", "assisted", "eagle", "llma")
"""The methods of the quick form: those that the bars name, a head and a method that copies."""

Prompts = Mapping[str, Sequence[Sequence[int]]]
"""Category -> ids of each prompt."""


@dataclass(frozen=True)
class MethodRaces:
    """The races of several methods, by category of prompts."""

    races: Mapping[str, SpeedRace]
    traces: Mapping[str, Mapping[str, Sequence[Trace]]]
    """Of each method, by category, in the order in which they ran."""
    expected: Mapping[str, Sequence[Sequence[int]]]
    """Greedy ids of transformers, by category."""

    def on(self, key: str, category: str) -> Measurement:
        race = self.races[category]
        detail = {"method": key, "tokens_per_second": round(race.speed(key), 2)}
        return Measurement(race.ratio(key, BASELINE), "ratio", self._same(key, category), detail)

    def overall(self, key: str) -> Measurement:
        """Return a method's speed-up on all prompts, for each round of the shortest race."""
        traces = [trace for each in self.traces[key].values() for trace in each]
        rows = [metrics(trace) for trace in traces]
        rates = [m.acceptance_rate for m in rows if m.acceptance_rate is not None]
        ratios = tuple(self._speed(key, i) / self._speed(BASELINE, i) for i in self._rounds(key))
        same = self._all_same(key)
        detail = {
            "same_tokens": same,
            "tokens_per_target_forward": sum(m.tokens for m in rows) / sum(m.target_forwards for m in rows),
            "acceptance_rate": fmean(rates) if rates else None,
            "config": traces[-1].header.config,
            "categories": {category: self.on(key, category).to_dict() for category in self.races},
        }
        return Measurement(ratios, "ratio", same, detail)

    def after_prefill(self, key: str) -> Measurement:
        """Return a method's speed-up without prefill, for each round of the shortest race."""
        ratios = (self._decoding_speed(key, i) / self._decoding_speed(BASELINE, i) for i in self._rounds(key))
        return Measurement(tuple(ratios), "ratio", self._all_same(key))

    def _rounds(self, key: str) -> range:
        return range(min(len(race.seconds[key]) for race in self.races.values()))

    def _all_same(self, key: str) -> bool:
        return all(self._same(key, category) for category in self.races)

    def _same(self, key: str, category: str) -> bool:
        return self.races[category].written(key) == list(self.expected[category])

    def _speed(self, key: str, number: int) -> float:
        races = self.races.values()
        tokens = sum(race.tokens[key][number] for race in races)
        return tokens / sum(race.seconds[key][number] for race in races)

    def _decoding_speed(self, key: str, number: int) -> float:
        parts = [(self.traces[key][category], len(self.expected[category])) for category in self.races]
        rows = [metrics(trace) for each, prompts in parts for trace in each[number * prompts :][:prompts]]
        return sum(row.tokens for row in rows) / sum(row.decode_seconds or 0.0 for row in rows)


def measure(
    cluster: Cluster, prompts: Prompts, keys: Sequence[str], plan: BenchPlan, note: Note
) -> MethodRaces:
    """Race methods against autoregressive decoding, then decode with transformers.

    The first category's race begins with a warm-up, in which drafts are planned.
    """
    keys = list(dict.fromkeys([BASELINE, *keys]))
    traces: dict[str, dict[str, list[Trace]]] = {key: {} for key in keys}
    races = dict[str, SpeedRace]()
    for category, ids in prompts.items():
        note(category)
        kept = {key: traces[key].setdefault(category, []) for key in keys}
        race = SpeedRace({key: speed.decode(cluster, plan, key, kept[key]) for key in keys}, ids)
        limits = {"least": plan.least_rounds, "warm_up": not races}
        races[category] = race.run(plan.rounds, plan.seconds, lambda: note(""), **limits)
        for each in kept.values() if limits["warm_up"] else ():
            del each[0]
    note("transformers")
    with quiet(), speed.one_core():
        theirs = Transformers(cluster.pair, plan.new_tokens)
        expected = {category: [theirs.generate(p) for p in ids] for category, ids in prompts.items()}
    return MethodRaces(races, traces, expected)


def figures(comparison: MethodRaces) -> dict[str, Measurement]:
    """Return each method's figures, with and without prefill, and the best head's and copier's.

    The best copier is the method without a drafter or head on the prompts of `COPYING`.
    """
    keys = [key for key in comparison.traces if key != BASELINE]
    rows = {f"{key}_over_{BASELINE}": comparison.overall(key) for key in keys}
    rows |= {f"{key}_over_{BASELINE}_after_prefill": comparison.after_prefill(key) for key in keys}
    heads = [key for key in keys if find(key).layout(find(key).configure({})).head]
    if heads:
        best = max(heads, key=lambda key: comparison.overall(key).median)
        rows[f"best_head_over_{BASELINE}"] = replace(comparison.overall(best), detail={"method": best})
    alone = [key for key in keys if find(key).uses == ("target",)]
    if alone and COPYING in comparison.races:
        rows[f"copying_over_{BASELINE}"] = max(
            (comparison.on(key, COPYING) for key in alone), key=lambda figure: figure.median
        )
    return rows
