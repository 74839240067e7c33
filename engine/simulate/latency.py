"""Times of a pair of models under a profile: what virtual runs ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.model.fuzzy import PartTime, layer_groups
from engine.model.stage import layer_stages
from engine.simulate.roofline import Hardware, Model
from engine.trace.events import PartKind
from engine.types import check_range

if TYPE_CHECKING:
    from engine.heads.drafting import Work


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of one pair of models under a profile. Pure: the same question has the same answer."""

    pair: str
    """The pair's key in its profile."""
    target: Model
    drafter: Model | None
    """None in a pair of one model, such as EMS-SD's with LLMA."""
    hardware: Hardware
    sample_us: int
    """Microseconds to decide the tokens once the logits are there."""
    communicate_us: int
    """Microseconds to bring a draft to the target, or its verdict back."""
    start_us: int | None = None
    """Microseconds until the first KV row of a move arrives; None where no source says."""

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        """Return the microseconds of one forward; the formula is in `roofline.py`.

        Args:
            model: `target` or `drafter`; `drafter-2` and so on take the time of `drafter`.
            rows: New rows, of all sequences together; at least 1. Prefill is a forward of many rows.
            context: Rows already cached, of all sequences together; 0 or more.
            batch: Sequences the rows belong to, assumed equally long; at least 1.

        Raises:
            UsageError: An argument is out of range, or the pair has no such model.
        """
        shape = self._shape(model, rows, context, batch)
        return round(shape.forward_us(self.hardware, rows, context, batch))

    def parallel(
        self, model: str, rows: int, context: int, size: int, batch: int = 1, devices: int = 0
    ) -> int:
        """Return the microseconds of a forward whose attention runs layer-parallel (EasySpec, 3.1).

        The attention layers of a group (`layer_groups`) run at once, as many as there are devices; then one gather brings
        the outputs together: those of the other devices * rows * dim * element size / link, and one collective's wait. MLPs
        run in order, on every device the same ("identical copies"), and cost what they did. With size 1, or on one
        device, this is the ordinary forward.

        Args:
            model: As for a call, like `rows`, `context` and `batch`.
            rows: New rows.
            context: Rows already cached.
            size: Layer-parallel size, at most the model's layers.
            batch: Sequences.
            devices: Devices that share a group; 0 is as many as the size.

        Raises:
            UsageError: An argument is out of range, or the profile does not say what it takes.
        """
        shape = self._shape(model, rows, context, batch)
        groups = layer_groups(shape.layers, size)
        whole = shape.forward_us(self.hardware, rows, context, batch)
        if size == 1 or devices == 1:
            return round(whole)
        attention = shape.attention_us(self.hardware, rows, context, batch)
        together = [(len(g), ceil(len(g) / (devices or size))) for g in groups if len(g) > 1]
        gathers = sum(self._gather_us(shape, rows, layers - own) for layers, own in together)
        return round(whole - sum(layers - own for layers, own in together) * attention + gathers)

    def parts(
        self, model: str, rows: int, context: int, size: int, devices: int, batch: int = 1
    ) -> list[list[PartTime]]:
        """Return when each device computes which attention and exchanges outputs in a `parallel` forward, from its start.

        What belongs to no layer (the head, the hops) comes last.
        """
        shape = self._shape(model, rows, context, batch)
        asked = (self.hardware, rows, context, batch)
        attention, layer = shape.attention_us(*asked), shape.layer_us(*asked)
        found, now = [list[PartTime]() for _ in range(devices)], 0.0
        for group in layer_groups(shape.layers, size):
            if len(group) > 1:
                own = ceil(len(group) / devices)
                for i, number in enumerate(group):
                    start = now + i // devices * attention
                    found[i % devices].append(_part("attention", number, start, start + attention))
                now += own * attention
                gather = self._gather_us(shape, rows, len(group) - own)
                for each in found:
                    each.append(_part("exchange", group.start, now, now + gather))
                now += gather + len(group) * (layer - attention)
            else:
                now += layer
        return found

    def head(self, work: Work, rows: int, context: int, batch: int = 1) -> int:
        """Return the microseconds of a drafting head's forward; the formula is in `roofline.py`.

        Args:
            work: What it computes.
            rows: Its rows: tokens and masks of a layer, else nodes.
            context: Rows that its layer has cached.
            batch: Sequences.

        Raises:
            UsageError: An argument is out of range.
        """
        shape = self._shape("target", rows, context, batch)
        return max(1, round(shape.head_us(self.hardware, work, rows, context)))

    def _gather_us(self, shape: Model, rows: int, others: int) -> float:
        """Microseconds until a device has the attention outputs of so many layers that others computed."""
        return self.hardware.known("collective_us") + self.hardware.link_us(
            others * rows * shape.dim * shape.element
        )

    def stage(self, model: str, rows: int, context: int, number: int, count: int, batch: int = 1) -> int:
        """Return the microseconds of one stage's part of a forward of a model split over `count` GPUs by its layers.

        A forward over one row takes what was published, on however many GPUs it was published; a stage takes the share of its
        layers, and all stages together take the whole (PEARL, appendix G: t / g each).

        Args:
            model: As for a call, like `rows`, `context` and `batch`.
            rows: New rows.
            context: Rows already cached.
            number: The stage, from 0.
            count: How many there are, at most the model's layers.
            batch: Sequences.
        """
        shape = replace(self._shape(model, rows, context, batch), gpus=count)
        whole = shape.forward_us(self.hardware, rows, context, batch)
        layers = layer_stages(shape.layers, count)[number]
        return round(whole * layers.stop / shape.layers) - round(whole * layers.start / shape.layers)

    def attention_share(self, model: str, rows: int, context: int, batch: int = 1) -> float:
        """Return the fraction of a layer's time that is attention; arguments and errors as `parallel`."""
        shape = self._shape(model, rows, context, batch)
        asked = (self.hardware, rows, context, batch)
        return shape.attention_us(*asked) / shape.layer_us(*asked)

    def move_us(self, model: str, rows: int) -> int:
        """Return the microseconds to send a model's KV rows from one GPU to another (PEARL, appendix G).

        Bytes / link, and what Table 16 measured beyond that.

        Raises:
            UsageError: Rows are below 1, or the profile does not say what a move takes.
        """
        shape = self._shape(model, rows, 0, 1)
        if self.start_us is None:
            raise UsageError("the profile does not say step.move_ms, which moving a KV cache needs")
        return round(self.start_us + self.hardware.link_us(shape.kv_bytes * rows))

    @property
    def c(self) -> float:
        """T(target) / T(drafter), one row each: the published speeds, divided; 1 without a drafter."""
        return self.drafter.speed / self.target.speed if self.drafter else 1.0

    def _shape(self, model: str, rows: int, context: int, batch: int) -> Model:
        check_range("rows", rows, 1)
        check_range("context", context, 0)
        check_range("batch", batch, 1, rows)
        role = model.partition("-")[0]
        if role not in ("target", "drafter"):
            raise UsageError(f"a profile times no model {model!r}; choose target or drafter")
        if role == "drafter" and self.drafter is None:
            raise UsageError(f"the pair {self.pair} has no drafter; choose a pair that has one")
        return self.drafter if role == "drafter" and self.drafter else self.target


def _part(kind: PartKind, layer: int, start_us: float, end_us: float) -> PartTime:
    return PartTime(kind, layer, round(1000 * start_us), round(1000 * end_us))
