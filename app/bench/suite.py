"""All figures of the bench."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import engine
from app.bench import ems, memory, speed, tracing
from app.bench.figures import Figure
from app.bench.plan import Note, Plan
from engine.model.similarity import Similarity, similarity
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.training.measure import ROWS, LoadedPair, measure_cost


def measure(plan: Plan, note: Note) -> dict[str, Figure]:
    """Measure everything on the bundled pair, fp32 on the CPU."""
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
        note("tracing")
        configs = {
            "autoregressive": {},
            "speculative": {"gamma": gammas.speculative},
            "pearl": {"gamma": gammas.pearl},
        }
        figures |= tracing.measure(workers, prompts, plan, configs, step)
        note("EMS-SD in batches")
        figures |= ems.measure(workers, plan, step)
    note("cost of a forward")
    figures |= costs(pair, plan)
    note("fuzzy forwards")
    figures |= fuzzy(pair, prompts)
    note("memory")
    with tempfile.TemporaryDirectory() as folder:
        command = memory.compare(questions[0], plan.new_tokens, list(configs), Path(folder) / "traces.db")
        peaks = tuple(memory.peak_mib(command) for _ in range(plan.memory_runs))
    figures["peak_memory_mib"] = Figure(
        peaks,
        "MiB",
        detail={"of": "specscope compare: resident memory of the command and its worker processes"},
    )
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
