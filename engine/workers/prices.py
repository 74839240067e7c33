"""What each job costs in virtual time, asked of a latency model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.model.fuzzy import PartTime
from engine.workers.jobs import Grow, Import, Job, Prefill, Score, Stage
from engine.workers.replies import Stamp

if TYPE_CHECKING:
    from engine.heads.work import Work


class LatencyModel(Protocol):
    """Durations in whole microseconds; `engine.simulate.latency` implements it for profiles."""

    @property
    def sample_us(self) -> int:
        """Judging a draft."""
        ...

    @property
    def communicate_us(self) -> int:
        """Moving a draft to the device that judges it."""
        ...

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        """One forward of `rows` new rows after `context` cached ones."""
        ...

    def head(self, work: Work, rows: int, context: int, batch: int = 1) -> int:
        """One forward of a drafting head on the target's devices."""
        ...

    def parallel(
        self, model: str, rows: int, context: int, size: int, batch: int = 1, devices: int = 0
    ) -> int:
        """One fuzzy forward: attention layers in groups of `size`, shared by `devices` devices."""
        ...

    def stage(self, model: str, rows: int, context: int, number: int, count: int, batch: int = 1) -> int:
        """One stage of a forward of a model whose layers are split over `count` devices."""
        ...

    def move_us(self, model: str, rows: int) -> int:
        """Moving KV rows to another device."""
        ...

    def parts(
        self, model: str, rows: int, context: int, size: int, devices: int, batch: int = 1
    ) -> Sequence[Sequence[PartTime]]:
        """Parts of a `parallel` forward per device, in nanoseconds from its start."""
        ...


class Price(NamedTuple):
    """How long a forward holds its devices."""

    us: int
    computes: bool = True
    """Whether the forward shares its device's speed with other workers on it."""
    parts: Sequence[Sequence[PartTime]] = ()
    """Parts of a fuzzy forward per device, in nanoseconds from its start."""


def price(job: Job, stamp: Stamp, latency: LatencyModel, devices: int) -> Price:
    """Return the price of one of a job's forwards.

    Args:
        job: Runs the forward.
        stamp: The forward's rows, context and batch.
        latency: How long things take.
        devices: Devices that the forward keeps busy.
    """
    model: str = getattr(job, "model", "target")
    forward = model, stamp.rows, stamp.context
    match job:
        case Import():  # holds the device that waits for the rows; the sender goes on
            return Price(latency.move_us(model, stamp.rows), computes=False)
        case Prefill(stage=Stage(number, count)) | Score(stage=Stage(number, count)):
            return Price(latency.stage(*forward, number, count, stamp.batch))
        case _ if stamp.work is not None:
            return Price(latency.head(stamp.work, stamp.rows, stamp.context, stamp.batch))
        case Grow(fuzzy=size) if size > 1 and stamp.kind == "draft":
            us = latency.parallel(*forward, size, stamp.batch, devices=devices)
            parts = latency.parts(*forward, size, devices, stamp.batch) if devices > 1 else ()
            return Price(us, parts=parts)
        case _:
            return Price(latency(*forward, stamp.batch))
