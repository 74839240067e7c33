"""Times of a model's forwards, measured on its worker."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np

from specscope.engine.model.slots import Rows, Slots
from specscope.engine.model.stage import StageIO

if TYPE_CHECKING:
    from specscope.engine.model.decoder import Decoder
    from specscope.engine.model.language import LanguageModel
    from specscope.engine.worker.jobs import Measure


def measure(
    model: LanguageModel, job: Measure, stopped: Callable[[], bool], agree: Callable[[bool], bool] = bool
) -> tuple[float, ...]:
    """Return the median seconds of forwards of each number of rows, as far as the time allows.

    The model gets a cache of its own. Numbers that do not fit into the context are left out.
    `agree` maps whether this device stops to whether all ranks of a split model do.
    """
    counts = [rows for rows in job.rows if rows + 1 < model.context]
    context = min(job.context, model.context - 1 - max(counts))
    cache = model.new_cache(1, context + max(counts))
    rows = Rows.timed(0, context, 0, model.vocab_size)
    model.forward(cache, rows, np.empty(0, dtype=np.int64), stage_io=_stage_io(model, job, context))
    times: list[list[float]] = [[] for _ in counts]
    begun = time.perf_counter()
    for _ in range(job.repeats):
        for count, seconds in zip(counts, times, strict=True):
            if times[0] and agree(stopped() or time.perf_counter() - begun > job.seconds):
                break
            seconds.append(seconds_of(model, cache, context, count, _stage_io(model, job, count)))
    return tuple(statistics.median(seconds) for seconds in times if seconds)


def _stage_io(model: LanguageModel, job: Measure, rows: int) -> StageIO | None:
    if job.stage is None:
        return None
    stage = cast("Decoder", model)
    return StageIO(bytes(0 if stage.is_first else rows * stage.shape.width * stage.dtype.itemsize))


def seconds_of(
    model: LanguageModel, cache: Slots, context: int, rows: int, stage_io: StageIO | None
) -> float:
    job = Rows.timed(0, rows, context, model.vocab_size)
    begun = time.perf_counter()
    cache.keep(0, np.arange(context))
    out = model.forward(cache, job, np.arange(rows), stage_io=stage_io)
    if out.logits.shape[1]:
        out.logits.argmax(-1).tolist()
    return time.perf_counter() - begun
