"""EMS-SD over batched plain decoding and over the padding vanilla method (its Tables 2 and 4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.bench.figures import Figure
from app.bench.plan import Plan
from app.bench.race import Race
from engine.trace.trace import Trace
from engine.types import Limits

if TYPE_CHECKING:
    from engine import Cluster

VARIANTS: Mapping[str, Mapping[str, bool]] = {
    "vanilla": {"unpad_inputs": False, "unpad_kv": False},
    "inputs": {"unpad_inputs": True, "unpad_kv": False},
    "kv": {"unpad_inputs": False, "unpad_kv": True},
    "both": {"unpad_inputs": True, "unpad_kv": True},
}
"""Settings by variant; a variant's name lists the unpadded parts."""
PLAIN = "plain"
"""The base without drafts: batched greedy decoding, the denominator of the paper's tables."""
SAMPLES = Path(__file__).resolve().parents[2] / "assets" / "prompts" / "samples.json"


def prompts_of(plan: Plan) -> list[str]:
    """Return bench prompts, then samples, then all of them again with one more request."""
    samples = [row["prompt"] for row in json.loads(SAMPLES.read_text(encoding="utf-8"))]
    prompts = [*plan.questions(), *samples]
    longer = [f"{prompt} Then tell it again in other words." for prompt in prompts]
    return [*prompts, *longer][: plan.batch_prompts]


def measure(workers: Cluster, plan: Plan, step: Callable[[], None]) -> dict[str, Figure]:
    """Race the variants at each batch size, for each base."""
    prompts = prompts_of(plan)
    figures: dict[str, Figure] = {}
    for base in plan.batch_bases:
        traces: dict[str, Trace] = {}
        contestants = {
            f"{name} {size}": partial(_decode, workers, plan, prompts, traces, base, name, size)
            for size in plan.batches
            for name in (PLAIN, *(VARIANTS if size > 1 else ("both",)))
        }
        race = Race(contestants, [()]).run(plan.batch_rounds, plan.seconds, step)
        figures[f"ems_{base}_over_vanilla"] = _figure(race, plan.batches, traces)
    return figures


def _decode(
    workers: Cluster,
    plan: Plan,
    prompts: Sequence[str],
    traces: dict[str, Trace],
    base: str,
    name: str,
    size: int,
    _: Sequence[int],
) -> list[int]:
    variant = {"base": PLAIN} if name == PLAIN else {"base": base, **VARIANTS[name]}
    config: dict[str, Any] = {"batch": size, **variant}
    trace = workers.run("ems", *prompts, config=config, limits=Limits(plan.batch_tokens))
    traces[f"{name} {size}"] = trace
    return [token for i in range(len(prompts)) for token in trace.token_ids(i)]


def _figure(race: Race, sizes: Sequence[int], traces: Mapping[str, Trace]) -> Figure:
    largest = sizes[-1]
    names = list(traces)
    same = race.same(*names)
    table = {str(size): _row(race, size, sizes[0], traces) for size in sizes}
    detail = {"same_tokens": same, "batches": table, "conditions": "worker processes; prefill included"}
    values = race.ratio(f"both {largest}", f"vanilla {largest}")
    return Figure(values, f"ratio, batch of {largest}", same, detail)


def _row(race: Race, size: int, smallest: int, traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Return a batch size's row: speeds, without drafts too, acceptance length, padding."""
    from traces.metrics import measure as metrics

    alone = race.speed(f"both {smallest}")
    row: dict[str, Any] = {}
    for name in (PLAIN, *VARIANTS):
        if (key := f"{name} {size}") in traces:
            speed = race.speed(key)
            vanilla = race.speed(f"vanilla {size}") if f"vanilla {size}" in traces else speed
            row[name] = {
                "tokens_per_second": round(speed, 1),
                f"over_batch_{smallest}": round(speed / alone, 3),
                "over_plain": round(speed / race.speed(f"{PLAIN} {size}"), 3),
                "over_vanilla": round(speed / vanilla, 3),
                "attention_cells": metrics(traces[key]).attention_cells,
            }
    padding = metrics(traces[f"both {size}"])
    shares = {"padding_ratio": padding.padding_ratio, "padding_share": padding.padding_share}
    return row | {"acceptance_length": padding.acceptance_length} | shares
