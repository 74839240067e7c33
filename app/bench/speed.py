"""Speed over transformers, and speed of PEARL over serial speculative decoding."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import engine
from app.bench.figures import Figure, Plan
from app.bench.race import Generate, Race, Transformers, quiet
from engine.checkpoints.pair import Pair
from engine.trace.trace import Trace
from engine.types import Limits

if TYPE_CHECKING:
    from engine import Cluster

Step = Callable[[], None]


class Gammas(NamedTuple):
    """The best draft lengths on two worker processes."""

    speculative: int
    pearl: int
    speeds: dict[str, dict[str, float]]
    """Median tokens per second, by method and draft length."""


def decode(
    cluster: Cluster, plan: Plan, method: str, keep: list[Trace] | None = None, **config: Any
) -> Generate:
    """Return a contestant that decodes greedily with a method and appends its traces to `keep`."""

    def generate(ids: Sequence[int]) -> list[int]:
        trace = cluster.run(method, ids, config=config, limits=Limits(plan.new_tokens))
        if keep is not None:
            keep.append(trace)
        return trace.token_ids()

    return generate


@contextlib.contextmanager
def one_core() -> Generator[str]:
    """Pin this thread and its children to one core, with one intra-op thread.

    Yields a description of the conditions.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if not hasattr(os, "sched_setaffinity"):
            yield "one thread each, same process"
            return
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores)})
        try:
            yield "one thread each, same process, pinned to the same core"
        finally:
            os.sched_setaffinity(0, cores)
    finally:
        torch.set_num_threads(threads)


def sweep(workers: Cluster, prompts: Sequence[Sequence[int]], plan: Plan, step: Step) -> Gammas:
    tried = [("speculative", g) for g in plan.speculative_gammas]
    tried += [("pearl", g) for g in plan.pearl_gammas]
    contestants = {f"{method} {g}": decode(workers, plan, method, gamma=g) for method, g in tried}
    race = Race(contestants, prompts).run(plan.sweep_rounds, plan.seconds, step)
    speeds: dict[str, dict[str, float]] = {"speculative": {}, "pearl": {}}
    for method, g in tried:
        speeds[method][str(g)] = race.speed(f"{method} {g}")
    best = {method: int(max(by_gamma, key=by_gamma.__getitem__)) for method, by_gamma in speeds.items()}
    rounded = {m: {g: round(s, 1) for g, s in by_gamma.items()} for m, by_gamma in speeds.items()}
    return Gammas(best["speculative"], best["pearl"], rounded)


def over_transformers(
    pair: Pair, prompts: Sequence[Sequence[int]], plan: Plan, gamma: int, step: Step
) -> dict[str, Figure]:
    """Compare with transformers, with all forwards in this process on one core."""
    with (
        quiet(),
        one_core() as conditions,
        engine.open(pair, runtime="local-thread", device="cpu") as ours,
    ):
        theirs = Transformers(pair, plan.new_tokens)
        shared = {"conditions": f"{conditions}; prefill included on both sides"}
        plain = Race(
            {"autoregressive": decode(ours, plan, "autoregressive"), "generate": theirs.generate}, prompts
        ).run(plan.rounds, plan.seconds, step)
        traces: list[Trace] = []
        assisted = Race(
            {
                "speculative": decode(ours, plan, "speculative", traces, gamma=gamma),
                "assisted, defaults": theirs.assisted(),
                "assisted, our gamma": theirs.assisted(gamma),
            },
            prompts,
        ).run(plan.rounds, plan.seconds, step)
    best = assisted.fastest(["assisted, defaults", "assisted, our gamma"])
    return {
        "autoregressive_over_generate": _ratio(plain, "autoregressive", "generate", **shared),
        "speculative_over_assisted": _ratio(
            assisted, "speculative", best, gamma=gamma, faster_baseline=best, **shared
        ),
        "acceptance_rate": _acceptance(traces[-len(prompts) :], gamma),
    }


def in_parallel(
    pair: Pair, workers: Cluster, prompts: Sequence[Sequence[int]], plan: Plan, gammas: Gammas, step: Step
) -> dict[str, Figure]:
    """Compare on two cores: PEARL, and speculative decoding with one or two cores per model."""
    both = "speculative, two threads"
    threads = torch.get_num_threads()
    with engine.open(
        pair, runtime="local-thread", device="cpu", threads=min(2, os.cpu_count() or 1)
    ) as serial:
        race = Race(
            {
                "speculative": decode(workers, plan, "speculative", gamma=gammas.speculative),
                "pearl": decode(workers, plan, "pearl", gamma=gammas.pearl),
                both: decode(serial, plan, "speculative", gamma=gammas.speculative),
            },
            prompts,
        ).run(plan.rounds, plan.seconds, step)
    torch.set_num_threads(threads)
    chosen = {"gammas": {"speculative": gammas.speculative, "pearl": gammas.pearl}}
    where = "two worker processes, a core each; prefill included on both sides"
    return {
        "pearl_over_speculative": _ratio(
            race, "pearl", "speculative", **chosen, sweep=gammas.speeds, conditions=where
        ),
        "serial_two_threads": _ratio(
            race, both, "speculative", **chosen, conditions=f"one process, two threads, against {where}"
        ),
        "pearl_over_two_threads": _ratio(
            race, "pearl", both, **chosen, conditions=f"{where}, against one process, two threads"
        ),
    }


def _ratio(race: Race, one: str, other: str, **detail: Any) -> Figure:
    same = race.same(one, other)
    detail = {"same_tokens": same, "tokens_per_second": race.table(), **detail}
    return Figure(race.ratio(one, other), "ratio", same, detail)


def _acceptance(traces: Sequence[Trace], gamma: int) -> Figure:
    from traces.metrics import measure

    rows = [measure(trace) for trace in traces]
    rates = tuple(m.acceptance_rate for m in rows if m.acceptance_rate is not None)
    tested = Figure(tuple(m.acceptance_rate_tested for m in rows if m.acceptance_rate_tested is not None), "")
    return Figure(rates, "share of drafted tokens", detail={"gamma": gamma, "of_tested": tested.median})
