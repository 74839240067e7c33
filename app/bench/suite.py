"""All figures of the bench: speed over transformers, PEARL over speculative decoding, batches."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import Any, NamedTuple

import torch

import specscope
from specscope import Cluster
from specscope.app.bench import recording
from specscope.app.bench.figures import BenchPlan, Measurement, Note
from specscope.app.bench.speed import SpeedRace, Transformers, decode, one_core, quiet
from specscope.app.named import samples
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.model.similarity import Similarity, similarity
from specscope.engine.trace.trace import Trace
from specscope.engine.training.measure import ROWS, LoadedPair, measure_cost
from specscope.engine.types import Limits
from specscope.traces.facts.metrics import measure as metrics

Step = Callable[[], None]


class Gammas(NamedTuple):
    """The best draft lengths on two worker processes."""

    speculative: int
    pearl: int
    speeds: dict[str, dict[str, float]]
    """Median tokens per second, by method and draft length."""


@dataclass
class Bench:
    """What figures are measured with."""

    pair: Pair
    plan: BenchPlan
    workers: Cluster
    """Worker processes, a core for each model."""
    step: Step

    @cached_property
    def prompts(self) -> list[list[int]]:
        return [self.pair.encode(question) for question in self.plan.questions()]

    @cached_property
    def gammas(self) -> Gammas:
        plan = self.plan
        tried = {"speculative": plan.speculative_gammas, "pearl": plan.pearl_gammas}
        names = {f"{method} {g}": (method, g) for method, lengths in tried.items() for g in lengths}
        contestants = {name: decode(self.workers, plan, m, gamma=g) for name, (m, g) in names.items()}
        race = SpeedRace(contestants, self.prompts).run(plan.sweep_rounds, plan.seconds, self.step)
        best = [names[race.fastest(f"{m} {g}" for g in lengths)][1] for m, lengths in tried.items()]
        speeds = {m: {str(g): round(race.speed(f"{m} {g}"), 1) for g in tried[m]} for m in tried}
        return Gammas(*best, speeds)


def measure(plan: BenchPlan, note: Note) -> dict[str, Measurement]:
    pair, figures = Pair.find(), dict[str, Measurement]()
    note("worker processes")
    with specscope.open(pair, runtime="local-process", device="cpu") as workers:
        bench = Bench(pair, plan, workers, lambda: note(""))
        for title, measured in FIGURES.items():
            note(title)
            figures |= measured(bench)
    return figures


def over_transformers(bench: Bench) -> dict[str, Measurement]:
    """Compare with transformers, with all forwards in this process on one core."""
    pair, prompts, plan, gamma = bench.pair, bench.prompts, bench.plan, bench.gammas.speculative
    traces: list[Trace] = []
    thread = {"runtime": "local-thread", "device": "cpu"}
    with quiet(), one_core() as conditions, specscope.open(pair, **thread) as ours:
        theirs = Transformers(pair, plan.new_tokens)
        greedy = {"autoregressive": decode(ours, plan, "autoregressive"), "generate": theirs.generate}
        plain = SpeedRace(greedy, prompts).run(plan.rounds, plan.seconds, bench.step)
        drafting = {
            "speculative": decode(ours, plan, "speculative", traces, gamma=gamma),
            "assisted, defaults": theirs.assisted(),
            "assisted, our gamma": theirs.assisted(gamma),
            "assisted, watched": theirs.watched(theirs.assisted(gamma)),
        }
        assisted = SpeedRace(drafting, prompts).run(plan.rounds, plan.seconds, bench.step)
    shared = {"conditions": f"{conditions}; prefill included on both sides"}
    best = assisted.fastest(["assisted, defaults", "assisted, our gamma"])
    facts = {"gamma": gamma, "faster_baseline": best}
    return {
        "autoregressive_over_generate": ratio(plain, "autoregressive", "generate", **shared),
        "speculative_over_assisted": ratio(assisted, "speculative", best, **facts, **shared),
        "watched_over_assisted": ratio(assisted, "assisted, watched", "assisted, our gamma", **shared),
        "acceptance_rate": _acceptance(traces[-len(prompts) :], gamma),
    }


def in_parallel(bench: Bench) -> dict[str, Measurement]:
    """Compare on two cores: PEARL, and speculative decoding with one or two cores per model."""
    workers, plan, gammas = bench.workers, bench.plan, bench.gammas
    both = "speculative, two threads"
    threads = torch.get_num_threads()
    cores = min(2, os.cpu_count() or 1)
    with specscope.open(bench.pair, runtime="local-thread", device="cpu", threads=cores) as serial:
        contestants = {
            "speculative": decode(workers, plan, "speculative", gamma=gammas.speculative),
            "pearl": decode(workers, plan, "pearl", gamma=gammas.pearl),
            both: decode(serial, plan, "speculative", gamma=gammas.speculative),
        }
        race = SpeedRace(contestants, bench.prompts).run(plan.rounds, plan.seconds, bench.step)
    torch.set_num_threads(threads)
    chosen = {"gammas": {"speculative": gammas.speculative, "pearl": gammas.pearl}}
    where = "two worker processes, a core each; prefill included on both sides"
    here, there = {"conditions": f"one process, two threads, against {where}"}, {"conditions": where}
    other = {"conditions": f"{where}, against one process, two threads"}
    swept = {"sweep": gammas.speeds, **there}
    return {
        "pearl_over_speculative": ratio(race, "pearl", "speculative", **chosen, **swept),
        "serial_two_threads": ratio(race, both, "speculative", **chosen, **here),
        "pearl_over_two_threads": ratio(race, "pearl", both, **chosen, **other),
    }


def ratio(race: SpeedRace, one: str, other: str, **detail: Any) -> Measurement:
    same = race.same(one, other)
    detail = {"same_tokens": same, "tokens_per_second": race.table(), **detail}
    return Measurement(race.ratio(one, other), "ratio", same, detail)


def _acceptance(traces: Sequence[Trace], gamma: int) -> Measurement:
    rows = [metrics(trace) for trace in traces]
    rates = tuple(m.acceptance_rate for m in rows if m.acceptance_rate is not None)
    tested = Measurement(
        tuple(m.acceptance_rate_tested for m in rows if m.acceptance_rate_tested is not None), ""
    )
    return Measurement(rates, "share of drafted tokens", detail={"gamma": gamma, "of_tested": tested.median})


def costs(bench: Bench) -> dict[str, Measurement]:
    """Time forwards of one row by each model, and of several rows by the target."""
    loaded = LoadedPair.load(bench.pair)
    with one_core():
        timings = [measure_cost(loaded, repeats=40) for _ in range(bench.plan.repeats)]
    milliseconds = {
        "target_ms": statistics.median(cost.target.median for cost in timings),
        "drafter_ms": statistics.median(cost.drafter.median for cost in timings),
    }
    values = tuple(cost.c.median for cost in timings)
    rows = tuple(cost.rows_over_one.median for cost in timings)
    return {
        "c": Measurement(values, "target forward / drafter forward, one row", detail=milliseconds),
        "verification_cost": Measurement(rows, f"{ROWS} rows of the target / one row"),
    }


def fuzzy(bench: Bench) -> dict[str, Measurement]:
    """Compare EasySpec's fuzzy forwards of the drafter with exact ones, as in its Table 5."""
    drafter = load(str(bench.pair.drafter_path), name="drafter")
    sizes = {
        size: [similarity(drafter, prompt, size) for prompt in bench.prompts]
        for size in range(2, min(5, drafter.depth) + 1)
    }
    table = {
        str(size): {name: round(fmean(getattr(row, name) for row in rows), 3) for name in Similarity._fields}
        for size, rows in sizes.items()
    }
    values = tuple(row.attention for row in sizes[2])
    return {
        "fuzzy_similarity": Measurement(values, "cosine, attention outputs, size 2", detail={"sizes": table})
    }


VARIANTS: Mapping[str, Mapping[str, bool]] = {
    "vanilla": {"unpad_inputs": False, "unpad_kv": False},
    "inputs": {"unpad_inputs": True, "unpad_kv": False},
    "kv": {"unpad_inputs": False, "unpad_kv": True},
    "both": {"unpad_inputs": True, "unpad_kv": True},
}
"""Settings by variant; a variant's name lists the unpadded parts."""
PLAIN = "plain"
"""The base without drafts: batched greedy decoding, the denominator of the paper's tables."""


def prompts_of(plan: BenchPlan) -> list[str]:
    """Return bench prompts, then samples, then all of them again with one more request."""
    prompts = [*plan.questions(), *(row["prompt"] for row in samples())]
    longer = [f"{prompt} Then tell it again in other words." for prompt in prompts]
    return [*prompts, *longer][: plan.batch_prompts]


def batches(bench: Bench) -> dict[str, Measurement]:
    """Race EMS-SD over plain batches and over the padding vanilla method (its Tables 2 and 4)."""
    workers, plan = bench.workers, bench.plan
    prompts = prompts_of(plan)
    figures: dict[str, Measurement] = {}

    def decode_batch(
        traces: dict[str, Trace], base: str, name: str, size: int, _: Sequence[int]
    ) -> list[int]:
        variant = {"base": PLAIN} if name == PLAIN else {"base": base, **VARIANTS[name]}
        config: dict[str, Any] = {"batch": size, **variant}
        trace = workers.run("ems", *prompts, config=config, limits=Limits(plan.batch_tokens))
        traces[f"{name} {size}"] = trace
        return [token for i in range(len(prompts)) for token in trace.token_ids(i)]

    for base in plan.batch_bases:
        traces: dict[str, Trace] = {}
        contestants = {
            f"{name} {size}": partial(decode_batch, traces, base, name, size)
            for size in plan.batches
            for name in (PLAIN, *(VARIANTS if size > 1 else ("both",)))
        }
        race = SpeedRace(contestants, [()]).run(plan.batch_rounds, plan.seconds, bench.step)
        figures[f"ems_{base}_over_vanilla"] = _figure(race, plan.batches, traces)
    return figures


def _figure(race: SpeedRace, sizes: Sequence[int], traces: Mapping[str, Trace]) -> Measurement:
    largest = sizes[-1]
    names = list(traces)
    same = race.same(*names)
    table = {str(size): _row(race, size, sizes[0], traces) for size in sizes}
    detail = {"same_tokens": same, "batches": table, "conditions": "worker processes; prefill included"}
    values = race.ratio(f"both {largest}", f"vanilla {largest}")
    return Measurement(values, f"ratio, batch of {largest}", same, detail)


def _row(race: SpeedRace, size: int, smallest: int, traces: Mapping[str, Trace]) -> dict[str, Any]:
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


FIGURES: Mapping[str, Callable[[Bench], dict[str, Measurement]]] = {
    "against transformers": over_transformers,
    "PEARL against speculative": in_parallel,
    "EMS-SD in batches": batches,
    "cost of a forward": costs,
    "fuzzy forwards": fuzzy,
    "recording": lambda bench: recording.measure(bench.plan.repeats),
}
"""What is measured, in this order, by the title of its progress."""
