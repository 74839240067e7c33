"""Measures a profile of this machine: forwards on a grid, a hop to a worker, judging, a copy.

Forwards are timed as a worker runs them: on one core with one intra-op thread, or on a GPU, with
the engine's decoder. Every turn times all cells of the grid once, so that other load affects all
cells alike; the first turn warms up and is not counted. A cell's time is the median of its turns;
the file's comments have the smallest and the largest.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.local_devices import devices_of
from specscope.engine.cluster.options import Options
from specscope.engine.environment import processor
from specscope.engine.model.cache import Cache
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.shape import ModelShape
from specscope.engine.model.slots import Rows
from specscope.engine.runtimes.process import ProcessWorker, Setup
from specscope.engine.sampling.accept import judge
from specscope.engine.sampling.draws import Draws
from specscope.engine.trace.events import Device
from specscope.engine.types import Draft, DraftToken, RowRef, Sampling
from specscope.engine.worker.jobs import Connect

READ = 32
"""Forwards of at most this many rows per sequence compute logits of all rows, like a verification.

Longer ones compute none, like a prefill.
"""
KV_LIMIT = 2**31
"""Largest KV cache in bytes; batches that need more are left out."""
DRAFTS = 4
"""Drafted tokens of the timed judgement, at temperature 1."""

Report = Callable[[str], None]


class Cell(NamedTuple):
    """One forward of the grid; rows and context per sequence."""

    rows: int
    context: int
    batch: int


class Times(NamedTuple):
    """Microseconds of repeated measurements."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, turns: Sequence[float]) -> Times:
        return cls(median(turns), min(turns), max(turns))


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """The grid to measure, and the number of turns."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    turns: int

    def within(self, models: Sequence[Decoder]) -> CalibrationPlan:
        """Return the cells that fit the models' contexts and the memory.

        Batches of one sequence are always kept.
        """
        positions = min(model.context for model in models)
        rows = tuple(n for n in self.rows if n <= positions)
        contexts = tuple(n for n in self.contexts if n + max(rows) <= positions)
        row = max(model.shape.kv_numbers * model.dtype.itemsize for model in models)
        fits = KV_LIMIT // (row * (max(contexts) + max(rows)))
        return CalibrationPlan(
            rows, contexts, tuple(n for n in self.batches if n == 1 or n <= fits), self.turns
        )


FULL = CalibrationPlan((1, 2, 4, 8, 16, 32, 128), (0, 128, 512), (1, 4, 16), 7)
QUICK = CalibrationPlan((1, 4, 16), (0, 128), (1, 4), 3)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measurements of a pair on this machine."""

    pair: Pair
    devices: tuple[str, ...]
    processor: str
    date: str
    shapes: Mapping[str, ModelShape]
    dtype: str
    forwards: Mapping[str, Mapping[Cell, Times]]
    hop: Times
    """Round trip of an empty job to a worker process."""
    sample: Times
    link_gb_s: float
    """Speed of a copy in memory, 10^9 bytes per second."""


def calibrate(pair: Pair, plan: CalibrationPlan, device: str = "auto", report: Report = print) -> Calibration:
    """Measure a pair on this machine.

    `device` is `cpu`, `cuda`, or `auto` for CUDA if there is a GPU; `report` takes lines of
    progress.
    """
    devices = devices_of(device)
    place, dtype = devices[0].kind, Options().dtype_on(devices[0])
    names = tuple(each.name.replace("cuda:", "gpu") for each in devices)
    with _one_thread(names):
        report(f"loading {pair.name} on {names[0]}")
        paths = {"target": pair.target_path, "drafter": pair.drafter_path}
        models = {
            name: load(path, place, dtype, name, forward="compiled" if place == "cuda" else "eager")
            for name, path in paths.items()
            if path is not None
        }
        plan = plan.within([*models.values()])
        forwards = _forwards(models, plan, report)
        report("timing a hop to a worker, judging and a copy")
        return Calibration(
            pair=pair,
            devices=names,
            processor=torch.cuda.get_device_name(0) if place == "cuda" else processor(),
            date=datetime.now(UTC).date().isoformat(),
            shapes={name: model.shape for name, model in models.items()},
            dtype=str(dtype).removeprefix("torch."),
            forwards=forwards,
            hop=_hop(names),
            sample=_sample(pair.vocab_size, place),
            link_gb_s=_link(place),
        )


@contextmanager
def _one_thread(names: Sequence[str]) -> Generator[None]:
    threads = torch.get_num_threads()
    pinned = names[0].startswith("cpu:") and hasattr(os, "sched_setaffinity")
    cores = os.sched_getaffinity(0) if pinned else {0}
    torch.set_num_threads(1)
    if pinned:
        os.sched_setaffinity(0, {int(names[0].removeprefix("cpu:"))})
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if pinned:
            os.sched_setaffinity(0, cores)


def _forwards(
    models: Mapping[str, Decoder], plan: CalibrationPlan, report: Report
) -> dict[str, dict[Cell, Times]]:
    turns: dict[str, dict[Cell, list[float]]] = {name: {} for name in models}
    for turn in range(plan.turns + 1):
        report(f"turn {turn} of {plan.turns}" if turn else "warming up")
        for name, model in models.items():
            for cell, us in _turn(model, plan):
                if turn:
                    turns[name].setdefault(cell, []).append(us)
    return {name: {cell: Times.of(us) for cell, us in cells.items()} for name, cells in turns.items()}


def _turn(model: Decoder, plan: CalibrationPlan) -> Iterator[tuple[Cell, float]]:
    """Time every cell once. Each batch has one cache with growing contexts."""
    for batch in plan.batches:
        cache, cached = model.new_cache(batch, max(plan.contexts) + max(plan.rows)), 0
        for context in plan.contexts:
            if context > cached:
                model.forward(
                    cache, _rows(model, batch, context - cached, cached), np.empty(0, dtype=np.int64)
                )
                cached = context
            for rows in plan.rows:
                yield Cell(rows, context, batch), _forward(model, cache, Cell(rows, context, batch))


def _forward(model: Decoder, cache: Cache, cell: Cell) -> float:
    job = _rows(model, cell.batch, cell.rows, cell.context)
    want = np.arange(len(job) if cell.rows <= READ else 0)
    us = _timed(lambda: model.forward(cache, job, want), model)
    for slot in range(cell.batch):
        cache.truncate(slot, cell.context)
    return us


def _rows(model: Decoder, batch: int, count: int, start: int) -> Rows:
    return Rows.join([Rows.timed(slot, count, start, model.vocab_size) for slot in range(batch)])


def _timed(work: Callable[[], object], model: Decoder | None = None) -> float:
    wait = torch.cuda.synchronize if model is not None and model.device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter_ns()
    work()
    wait()
    return (time.perf_counter_ns() - start) / 1e3


def _hop(names: Sequence[str], turns: int = 50) -> Times:
    name = names[-1]
    core = int(name.removeprefix("cpu:")) if name.startswith("cpu:") else None
    worker = ProcessWorker(Setup(name, Device(name, "", name, "cpu"), 1, core))
    try:
        empty = Connect(())
        worker.prepare(empty)()  # the process starts
        return Times.of([_timed(lambda: worker.prepare(empty)()) for _ in range(turns)])
    finally:
        worker.close()


def _sample(vocab: int, place: str, turns: int = 20) -> Times:
    """Time the judgement of a chain whose q is near p, so that most tokens are accepted."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(DRAFTS + 1, vocab, generator=generator).to(place)
    q = (logits[:DRAFTS].cpu() * 0.9).softmax(-1)
    best = [int(row.argmax()) for row in q]
    draft = Draft(tuple(DraftToken(token, i - 1, RowRef("q", i)) for i, token in enumerate(best)))

    def work() -> None:
        judge(
            logits,
            draft,
            lambda token: q[token.q.row] if token.q else None,
            position=1,
            sampling=Sampling(temperature=1.0),
            draws=Draws(0, 0),
        )

    work()
    return Times.of([_timed(work) for _ in range(turns)])


def _link(place: str, size: int = 2**25) -> float:
    """Return the speed of a copy, between two GPUs if possible, in 10^9 bytes per second."""
    source = torch.zeros(size, dtype=torch.uint8, device=place)
    other = torch.empty_like(
        source, device="cuda:1" if torch.cuda.device_count() > 1 and place == "cuda" else place
    )

    def work() -> None:
        other.copy_(source)
        if place == "cuda":
            torch.cuda.synchronize()

    work()
    return size / median(_timed(work) for _ in range(10)) / 1e3


def profile_text(calibration: Calibration, name: str) -> str:
    origin = f"measured on {calibration.processor} on {calibration.date}"
    source = f"source = {json.dumps(origin)}"
    drafts = "drafter" in calibration.shapes
    lines = [
        f"# Times of {calibration.pair.name} on this machine, {origin} with `specscope calibrate`.",
        "# A time is the median of several turns; its smallest and largest are in the comment. Times between the points of a",
        "# table are interpolated linearly; see docs/profiles.md.",
        "",
        f"name = {json.dumps(name)}",
        f"title = {json.dumps(f'{calibration.processor}: {calibration.pair.name}, measured here')}",
        source,
        'default = "pair"',
        f"gpus = {json.dumps(list(calibration.devices))} # the devices of this machine",
        "",
        "[hardware]",
        f"name = {json.dumps(calibration.processor)}",
        f"link_gb_s = {calibration.link_gb_s:.4g} # a copy in memory",
        source,
        "",
        "[step]",
        f"communicate_ms = {calibration.hop.median / 1e3:.4g} # a job to a worker and back; {_range(calibration.hop)}",
        f"sample_ms = {calibration.sample.median / 1e3:.4g} # judging {DRAFTS} drafts at temperature 1; {_range(calibration.sample)}",
        f"move_ms = {calibration.hop.median / 1e3:.4g} # the same hop",
        source,
        *(line for model in calibration.shapes for line in _model_text(calibration, model, source)),
        "",
        "[pairs.pair]",
        f"title = {json.dumps(calibration.pair.name)}",
        'target = "target"',
        *(['drafter = "drafter"'] if drafts else []),
        source,
    ]
    return "\n".join(lines) + "\n"


def _model_text(calibration: Calibration, model: str, source: str) -> Iterator[str]:
    shape = calibration.shapes[model]
    yield from ("", f"[models.{model}]", f"title = {json.dumps(f'{model} of {calibration.pair.name}')}")
    sizes = {
        "layers": shape.layers,
        "dim": shape.width,
        "ffn": shape.inner,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab": shape.vocab,
    }
    yield from (f"{key} = {size} # config.json" for key, size in sizes.items())
    yield f"dtype = {json.dumps(calibration.dtype)} # of a worker on this machine"
    yield source
    yield f"measured = [ # rows and cached rows per sequence, sequences, microseconds; up to {READ} rows with logits"
    for cell, us in calibration.forwards[model].items():
        yield f"    [{cell.rows}, {cell.context}, {cell.batch}, {us.median:.1f}], # {_range(us)}"
    yield "]"


def _range(us: Times) -> str:
    return f"{us.least:.1f} to {us.most:.1f} us"
