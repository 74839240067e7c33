"""All figures of the bench."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import engine
from app.bench import speed
from app.bench.figures import Figure, Note, Plan
from app.bench.race import Race
from engine.checkpoints.loader import load
from engine.checkpoints.pair import Pair
from engine.model.similarity import Similarity, similarity
from engine.trace.trace import Trace
from engine.training.measure import ROWS, LoadedPair, measure_cost
from engine.types import Limits

if TYPE_CHECKING:
    from engine import Cluster


def measure(plan: Plan, note: Note) -> dict[str, Figure]:
    pair = Pair.find()
    questions = plan.questions()
    prompts = [pair.encode(question) for question in questions]

    def step() -> None:
        note("")

    note("worker processes")
    with engine.open(pair, runtime="local-process", device="cpu") as workers:
        note("draft lengths")
        gammas = speed.sweep(workers, prompts, plan, step)
        note("against transformers")
        figures = speed.over_transformers(pair, prompts, plan, gammas.speculative, step)
        note("PEARL against speculative")
        figures |= speed.in_parallel(pair, workers, prompts, plan, gammas, step)
        note("EMS-SD in batches")
        figures |= batches(workers, plan, step)
    note("cost of a forward")
    figures |= costs(pair, plan)
    note("fuzzy forwards")
    figures |= fuzzy(pair, prompts)
    return figures


def costs(pair: Pair, plan: Plan) -> dict[str, Figure]:
    """Time forwards of one row by each model, and of several rows by the target."""
    loaded = LoadedPair.load(pair)
    with speed.one_core():
        timings = [measure_cost(loaded, repeats=40) for _ in range(plan.repeats)]
    milliseconds = {
        "target_ms": statistics.median(cost.target.median for cost in timings),
        "drafter_ms": statistics.median(cost.drafter.median for cost in timings),
    }
    values = tuple(cost.c.median for cost in timings)
    rows = tuple(cost.rows_over_one.median for cost in timings)
    return {
        "c": Figure(values, "target forward / drafter forward, one row", detail=milliseconds),
        "verification_cost": Figure(rows, f"{ROWS} rows of the target / one row"),
    }


def fuzzy(pair: Pair, prompts: Sequence[Sequence[int]]) -> dict[str, Figure]:
    """Compare EasySpec's fuzzy forwards of the drafter with exact ones, as in its Table 5."""
    drafter = load(str(pair.drafter_path), name="drafter")
    sizes = {
        size: [similarity(drafter, prompt, size) for prompt in prompts]
        for size in range(2, min(5, drafter.depth) + 1)
    }
    table = {
        str(size): {name: round(fmean(getattr(row, name) for row in rows), 3) for name in Similarity._fields}
        for size, rows in sizes.items()
    }
    values = tuple(row.attention for row in sizes[2])
    return {"fuzzy_similarity": Figure(values, "cosine, attention outputs, size 2", detail={"sizes": table})}


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


def batches(workers: Cluster, plan: Plan, step: Callable[[], None]) -> dict[str, Figure]:
    """Race EMS-SD over plain batches and over the padding vanilla method (its Tables 2 and 4)."""
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
