"""The GPUs of a profile as a device pool: assignments, virtual workers, token sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.local_devices import loader_of
from specscope.engine.cluster.memory import Memory, Part
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.pool import (
    Assignment,
    Loader,
    ModelPart,
    StageLimits,
    pipeline_assignments,
    single,
)
from specscope.engine.errors import UsageError
from specscope.engine.layout import Colocated, LayerParallel, Layout, Pipelined, Separate
from specscope.engine.model.language import LanguageModel
from specscope.engine.model.memoized import MemoizedModel
from specscope.engine.runtimes.virtual import Processor, VirtualWorker
from specscope.engine.simulate.latency import Latency
from specscope.engine.simulate.oracle import Source, bernoulli_models
from specscope.engine.simulate.profile import Profile
from specscope.engine.simulate.recorded import recorded_pair
from specscope.engine.trace.events import Device
from specscope.engine.trace.trace import Trace
from specscope.engine.types import MOST_DRAFTERS, drafter_key
from specscope.engine.worker.worker import Worker


@dataclass(frozen=True)
class ProfileDevices:
    """The GPUs of a profile. A model on several GPUs has one worker, shown as one device."""

    profile: Profile
    latency: Latency
    loaders: Mapping[str, Loader]
    processors: dict[str, Processor] = field(default_factory=dict[str, Processor])
    memory: Memory = field(default_factory=Memory)
    """This machine's, in which all models compute."""

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        if layout.needs_drafter and self.latency.drafter is None:
            raise UsageError(
                f"the pair {self.latency.pair} of the profile {self.profile.name} has no drafter; "
                "choose another pair, or a method that drafts without one"
            )
        match layout.arrangement:
            case Colocated():
                return self._colocated()
            case LayerParallel(ranks):
                return self._layer_parallel(ranks)
            case Pipelined(stages):
                return pipeline_assignments(self._assignments(0, len(self.profile.gpus), 1), stages)
            case Separate() as separate:
                return self._separate(separate)

    @property
    def _drafter_gpus(self) -> int:
        return self.latency.drafter.gpus if self.latency.drafter else 1

    def _colocated(self) -> dict[str, list[Assignment]]:
        count, width, target_width = len(self.profile.gpus), self._drafter_gpus, self.latency.target.gpus
        if max(width, target_width) > count:
            return self._separate(Separate())  # raises: it needs even more
        (target,) = self._assignments(min(width, count - target_width), 1, target_width)
        return {"drafter": [target._replace(name=f"{target.name}/drafter")], "target": [target]}

    def _separate(self, separate: Separate) -> dict[str, list[Assignment]]:
        targets, drafters = separate.targets, separate.drafters
        width, target_width = self._drafter_gpus, self.latency.target.gpus
        drafting, verifying, count = drafters * width, targets * target_width, len(self.profile.gpus)
        if separate.turns and drafting <= verifying <= count < drafting + verifying:
            shared = self._assignments(0, targets, target_width)
            return {"drafter": shared[:drafters], "target": shared}
        if drafting + verifying > count:
            raise UsageError(
                f"{targets} target server(s) of {target_width} GPU(s) and {drafters} drafter(s) of "
                f"{width} need {drafting + verifying} GPUs; the profile {self.profile.name} has {count}"
            )
        first = max(drafting, min(width, count - verifying))
        return {
            "drafter": self._assignments(0, drafters, width),
            "target": self._assignments(first, targets, target_width),
        }

    def _layer_parallel(self, ranks: int) -> dict[str, list[Assignment]]:
        """Draft on the first GPUs together; the target runs on its number of them in turn."""
        gpus = self.latency.target.gpus
        needed = max(ranks, gpus)
        if needed > len(self.profile.gpus):
            raise UsageError(
                f"{ranks} GPUs are to share the drafter's layers and the target takes {gpus}; "
                f"the profile {self.profile.name} has {len(self.profile.gpus)}"
            )
        devices = tuple(_device([gpu]) for gpu in self.profile.gpus[:needed])
        lanes = (("drafter", ranks), ("target", gpus))
        name = f"{devices[0].name}..{devices[-1].name}/{ranks}"
        assignment = Assignment(name, devices, lanes=lanes)
        return {"drafter": [assignment], "target": [assignment]}

    def _assignments(self, first: int, count: int, width: int) -> list[Assignment]:
        starts = range(first, first + count * width, width)
        return [single(_device(self.profile.gpus[start : start + width])) for start in starts]

    def servers(self, drafters: int) -> int:
        free = len(self.profile.gpus) - drafters * self._drafter_gpus
        return max(0, free) // self.latency.target.gpus

    def drafters(self) -> int:
        """Return the number of drafters with tokens; all take the time of the profile's drafter."""
        return len(self.loaders) - 1 if self.latency.drafter else 0

    def ranks(self) -> int:
        drafter = self.latency.drafter
        if drafter is None or drafter.gpus > 1 or drafter.measured or not self.profile.hardware.collective_us:
            return 1
        return len(self.profile.gpus)

    def depth(self) -> int:
        return self.latency.drafter.layers if self.latency.drafter else 0

    def stage_limits(self) -> StageLimits:
        """Return the GPUs that the profile gives the target as usual, at least 2.

        Raises:
            UsageError: The target's times are for tensor parallelism, the drafter takes several
                GPUs, or the profile has no time for moving a KV cache.
        """
        target, drafter = self.latency.target, self.latency.drafter
        where = f"the pair {self.latency.pair} of the profile {self.profile.name}"
        if target.split == "tensor" and target.gpus > 1:
            raise UsageError(
                f"{where} has times of a target under tensor parallelism; a pipeline needs one split by layers: "
                "choose another pair, or pearl-4xA100"
            )
        if drafter is not None and drafter.gpus > 1:
            raise UsageError(
                f"{where} has a drafter on {drafter.gpus} GPUs; in a pipeline it takes one: choose another pair"
            )
        if self.latency.start_us is None:
            raise UsageError(
                f"{where} does not say step.move_ms, which moving a KV cache takes: choose another profile"
            )
        return StageLimits(max(2, target.gpus), len(self.profile.gpus), target.layers)

    def parts(self, models: Sequence[ModelPart]) -> list[Part]:  # noqa: ARG002 - its GPUs hold no models
        return []

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None: ...

    def start_worker(self, assignment: Assignment) -> Worker:
        processor = self.processors.setdefault(assignment.devices[0].name, Processor())
        return VirtualWorker(
            assignment.name,
            assignment.devices,
            self.latency,
            processor=processor,
            lanes=dict(assignment.lanes),
        )

    def loader(self, model: str, assignment: Assignment) -> Loader:  # noqa: ARG002 - the same tokens everywhere
        return self.loaders[model]


def _device(gpus: Sequence[str]) -> Device:
    """Return adjacent GPUs as one device: `gpu0`, or `gpu1-2`."""
    name = gpus[0] if len(gpus) == 1 else f"{gpus[0]}-{gpus[-1].lstrip('gpu:c')}"
    return Device(name, "", name.replace("gpu", "GPU ").replace("cpu:", "CPU core "), "virtual")


def tokens_of(pair: Pair, tokens: str | Trace | Source) -> tuple[Mapping[str, Loader], str]:
    torch.set_num_threads(1)
    if tokens == "pair":
        cpu = Device("cpu:0", "", "", "cpu")
        return {m: _remembering(loader_of(pair, m, cpu, Options())) for m in pair.models}, f"{pair.name} pair"
    if isinstance(tokens, Source):
        models, source = tokens
    elif isinstance(tokens, Trace):
        models, source = recorded_pair(tokens), f"recorded run {tokens.header.run_id}"
    else:
        avoid = {*pair.tokenizer.all_special_ids, *pair.eos}
        scripted = _scripted(tokens)
        models, source = scripted(len(pair.tokenizer), avoid=avoid), tokens
    names = ("target", *map(drafter_key, range(len(models) - 1)))
    return {name: partial(_same, model) for name, model in zip(names, models, strict=True)}, source


def _same(model: LanguageModel, **_: object) -> LanguageModel:
    return model


def _remembering(loader: Loader) -> Loader:
    """Return a loader of one model for all virtual workers; it computes no forward twice."""

    @cache
    def once() -> LanguageModel:
        model = loader()
        windows = getattr(getattr(model, "shape", None), "windows", ())
        return model if any(windows) else MemoizedModel(model)

    return lambda **_: once()  # also for stages: the profile has their share of the time


def _scripted(tokens: str) -> Callable[..., tuple[LanguageModel, ...]]:
    """Return `bernoulli_models` with its rates and options; one rate holds for all drafters."""
    kind, _, rest = tokens.partition(":")
    numbers, *options = rest.split(":")
    try:
        rates = tuple(map(float, numbers.split(",")))
        named = {name: float(value) for name, _, value in (option.partition("=") for option in options)}
    except ValueError:
        rates, named = (), {}
    fits = kind == "bernoulli" and 1 <= len(rates) <= MOST_DRAFTERS and all(0 <= rate <= 1 for rate in rates)
    if not fits or not named.keys() <= {"doubt", "misses"}:
        raise UsageError(
            f"tokens is {tokens!r}; it must be pair or bernoulli:RATE with a rate from 0 to 1, or with one for each of "
            f"at most {MOST_DRAFTERS} drafters, and then perhaps :doubt=D and :misses=R: bernoulli:0.6,0.9:doubt=0.5"
        )
    return partial(bernoulli_models, rates * MOST_DRAFTERS if len(rates) == 1 else rates, **named)
