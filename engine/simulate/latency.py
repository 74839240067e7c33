"""Times of a pair of models under a profile, for virtual runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from specscope.engine.errors import UsageError
from specscope.engine.heads.work import Work
from specscope.engine.model.fuzzy import PartTime, layer_groups
from specscope.engine.model.stage import layer_stages
from specscope.engine.simulate.roofline import Hardware, PublishedModel
from specscope.engine.trace.events import PartKind
from specscope.engine.types import check_range

FITTED_SIZE = 4
"""Layer-parallel size of a profile's `fuzzy_ms`, EasySpec's default."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of one pair of models under a profile; all methods are pure functions."""

    pair: str
    target: PublishedModel
    drafter: PublishedModel | None
    """None in a pair without a drafter, such as EMS-SD's with LLMA."""
    hardware: Hardware
    sample_us: int
    """Microseconds to decide the tokens from the logits."""
    communicate_us: int
    """Microseconds to send a draft to the target, or its verdict back."""
    start_us: int | None = None
    """Microseconds until the first KV row of a move arrives; None without a source."""
    verify_us: float = 0.0
    """Microseconds that a target forward with more than one row per sequence takes longer than its
    roofline; 0 without a source."""

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        """Return the microseconds of one forward; the formula is in `roofline.py`.

        `model` is `target` or `drafter`; `drafter-2` and so on take the time of `drafter`. `rows`
        are the new rows, `context` the cached ones, of all `batch` sequences together, which are
        assumed equally long. A prefill is a forward of many rows.
        """
        return round(self._forward_us(model, self._shape(model, rows, context, batch), rows, context, batch))

    def fitted(self, verify_ms: float | None, fuzzy_ms: float | None) -> Latency:
        """Return these times with a published verification or fuzzy forward.

        `verify_ms` is a target forward over the rows of a draft; it replaces the roofline's one row
        by this time, for any number of rows above 1. `fuzzy_ms` is a one-row fuzzy forward of the
        drafter, layer-parallel size 4; it determines attention's share of a layer's launches. A
        UsageError for a time that is impossible with the one-row speeds begins with its key.
        """
        fitted = self
        if verify_ms is not None:
            extra = 1e3 * verify_ms - 1e6 / self.target.speed
            if extra < 0:
                raise UsageError(
                    f"verify_ms is {verify_ms:g}; one row takes {1e3 / self.target.speed:.4g}, so it must be at least that"
                )
            fitted = replace(fitted, verify_us=extra)
        if fuzzy_ms is not None:
            if self.drafter is None:
                raise UsageError(f"fuzzy_ms is {fuzzy_ms:g}; the pair has no drafter: leave it out")
            share = self._attention_launches(self.drafter, 1e3 * fuzzy_ms)
            if not 0 <= share <= 1:
                raise UsageError(
                    f"fuzzy_ms is {fuzzy_ms:g}; attention would have {100 * share:.0f} % of a layer's launches, it must "
                    "have 0 to 100 %"
                )
            fitted = replace(fitted, drafter=replace(self.drafter, attention_launches=share))
        return fitted

    def _attention_launches(self, shape: PublishedModel, fuzzy_us: float) -> float:
        groups = [len(g) for g in layer_groups(shape.layers, FITTED_SIZE) if len(g) > 1]
        gathers = sum(self._gather_us(shape, 1, layers - 1) for layers in groups)
        whole = shape.forward_us(self.hardware, 1, 0)
        attention = (whole + gathers - fuzzy_us) / sum(layers - 1 for layers in groups)
        streamed = replace(shape, attention_launches=0.0).attention_us(self.hardware, 1, 0)
        return (attention - streamed) / shape.launch_us(self.hardware)

    def _forward_us(self, model: str, shape: PublishedModel, rows: int, context: int, batch: int) -> float:
        several = rows > batch and model.partition("-")[0] == "target"
        return shape.forward_us(self.hardware, rows, context, batch) + (self.verify_us if several else 0.0)

    def parallel(
        self, model: str, rows: int, context: int, size: int, batch: int = 1, devices: int = 0
    ) -> int:
        """Return the microseconds of a forward whose attention runs layer-parallel (EasySpec, 3.1).

        The attention layers of a group (`layer_groups`) run at once, one per device; then one
        gather exchanges their outputs. It takes outputs of other devices * rows * dim * element
        size / link, and one collective's wait. MLPs run in order, the same on every device
        ("identical copies"), and cost the same as before. With size 1, or on one device, this is
        the ordinary forward. `devices` 0 stands for `size` devices.
        """
        shape = self._shape(model, rows, context, batch)
        groups = layer_groups(shape.layers, size)
        whole = self._forward_us(model, shape, rows, context, batch)
        if size == 1 or devices == 1:
            return round(whole)
        attention = shape.attention_us(self.hardware, rows, context, batch)
        together = [(len(g), ceil(len(g) / (devices or size))) for g in groups if len(g) > 1]
        gathers = sum(self._gather_us(shape, rows, layers - own) for layers, own in together)
        return round(whole - sum(layers - own for layers, own in together) * attention + gathers)

    def parts(
        self, model: str, rows: int, context: int, size: int, devices: int, batch: int = 1
    ) -> list[list[PartTime]]:
        """Return per device the attention and exchange times of a `parallel` forward.

        Times count from the forward's start. The output head and the hops run after all layers.
        """
        shape = self._shape(model, rows, context, batch)
        forward = (self.hardware, rows, context, batch)
        attention, layer = shape.attention_us(*forward), shape.layer_us(*forward)
        parts, now = [list[PartTime]() for _ in range(devices)], 0.0
        for group in layer_groups(shape.layers, size):
            if len(group) > 1:
                own = ceil(len(group) / devices)
                for i, number in enumerate(group):
                    start = now + i // devices * attention
                    parts[i % devices].append(_part("attention", number, start, start + attention))
                now += own * attention
                gather = self._gather_us(shape, rows, len(group) - own)
                for device in parts:
                    device.append(_part("exchange", group.start, now, now + gather))
                now += gather + len(group) * (layer - attention)
            else:
                now += layer
        return parts

    def head(self, work: Work, rows: int, context: int, batch: int = 1) -> int:
        """Return the microseconds of a drafting head's forward; the formula is in `roofline.py`.

        `rows` are tokens and masks of a layer, or without a layer nodes; `context` are rows cached
        by its layer.
        """
        shape = self._shape("target", rows, context, batch)
        return max(1, round(shape.head_us(self.hardware, work, rows, context, batch)))

    def _gather_us(self, shape: PublishedModel, rows: int, others: int) -> float:
        return self.hardware.known("collective_us") + self.hardware.link_us(
            others * rows * shape.dim * shape.element
        )

    def stage(self, model: str, rows: int, context: int, number: int, count: int, batch: int = 1) -> int:
        """Return the microseconds of stage `number` of a model split by layers over `count` GPUs.

        A one-row forward takes the published time; the number of GPUs in that publication does
        not matter. A stage takes its layers' share, and all stages together the whole forward
        (PEARL, appendix G: t / g each).
        """
        shape = replace(self._shape(model, rows, context, batch), gpus=count)
        whole = self._forward_us(model, shape, rows, context, batch)
        layers = layer_stages(shape.layers, count)[number]
        return round(whole * layers.stop / shape.layers) - round(whole * layers.start / shape.layers)

    def move_us(self, model: str, rows: int) -> int:
        """Return the microseconds to send KV rows from one GPU to another (PEARL, appendix G).

        It is bytes / link + `start_us`, which is from Table 16.
        """
        shape = self._shape(model, rows, 0, 1)
        if self.start_us is None:
            raise UsageError("the profile does not say step.move_ms, which moving a KV cache needs")
        return round(self.start_us + self.hardware.link_us(shape.kv_bytes * rows))

    @property
    def c(self) -> float:
        """T(target) / T(drafter), one row each, from the published speeds; 1 without a drafter."""
        return self.drafter.speed / self.target.speed if self.drafter else 1.0

    def _shape(self, model: str, rows: int, context: int, batch: int) -> PublishedModel:
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
