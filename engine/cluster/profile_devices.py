"""The GPUs of a profile as a device pool: virtual workers, their times, and token sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.assignment import Assignment, Loader
from specscope.engine.cluster.local_devices import loader_of
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.pool import Pool
from specscope.engine.cluster.probing import CONTEXT
from specscope.engine.drafting.admission import Costs
from specscope.engine.drafting.pace import Curve
from specscope.engine.errors import UsageError
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

ROWS = (1, *range(8, 4097, 8))
"""Numbers of rows at which a profile's formula is evaluated."""


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a profile: a worker computes at once, and takes the profile's time."""

    profile: Profile
    latency: Latency
    loaders: Mapping[str, Loader]
    block: bool = False
    """Whether the drafter is a block drafter, see `Source`."""
    processors: dict[str, Processor] = field(default_factory=dict[str, Processor])

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(name, "", name.replace("gpu", "GPU ").replace("cpu:", "CPU core "), "virtual")
            for name in self.profile.gpus
        )

    @property
    def where(self) -> str:
        return f"the profile {self.profile.name} has"

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None: ...

    def start(self, assignment: Assignment) -> Worker:
        name, devices, lanes = assignment.name, assignment.devices, dict(assignment.lanes)
        processor = self.processors.setdefault(devices[0].name, Processor())
        return VirtualWorker(name, devices, self.latency, processor, lanes, block=self.block)

    def loader(self, model: str, assignment: Assignment) -> Loader:  # noqa: ARG002 - the same tokens everywhere
        return self.loaders[model]

    def close(self) -> None: ...


def profile_devices(pair: Pair, options: Options) -> Pool:
    """Return the pool of the options' profile; all drafters take the time of the profile's one."""
    profile = options.profile if isinstance(options.profile, Profile) else Profile.load(str(options.profile))
    latency = profile.latency(options.profile_pair)
    loaders, source = tokens_of(pair, options.tokens)
    target, drafter = latency.target, latency.drafter
    where = f"the pair {latency.pair} of the profile {profile.name}"
    return Pool(
        pair,
        options,
        Gpus(profile, latency, loaders, block=options.block),
        target=target.gpus,
        drafter=drafter.gpus if drafter else 1,
        drafters=len(loaders) - 1 if drafter else 0,
        gathers=drafter is not None and not drafter.measured and bool(profile.hardware.collective_us),
        details={"tokens": source, "profile_pair": latency.pair} | _assumed(latency),
        profile=profile.name,
        latency=latency,
        c=latency.c,
        costs=partial(profile_costs, latency),
        depth=drafter.layers if drafter else 0,
        layers=target.layers,
        undrafted=""
        if drafter
        else f"{where} has no drafter; choose another pair, or a method that drafts without one",
        unstaged=_unstaged(latency, where),
    )


def _assumed(latency: Latency) -> dict[str, str]:
    computed = [model.title for model in (latency.target, latency.drafter) if model and model.computed]
    times = f"computed from the data sheet of {latency.hardware.name}, not published: {', '.join(computed)}"
    return {"times": times} if computed else {}


def _unstaged(latency: Latency, where: str) -> str:
    """Return why the target cannot be split into stages; empty if it can."""
    target, drafter = latency.target, latency.drafter
    if target.split == "tensor" and target.gpus > 1:
        return (
            f"{where} has times of a target under tensor parallelism; a pipeline needs one split by layers: "
            "choose another pair, or pearl-4xA100"
        )
    if drafter is not None and drafter.gpus > 1:
        return (
            f"{where} has a drafter on {drafter.gpus} GPUs; in a pipeline it takes one: choose another pair"
        )
    if latency.start_us is None:
        return f"{where} does not say step.move_ms, which moving a KV cache takes: choose another profile"
    return ""


def profile_costs(latency: Latency) -> Costs:
    """Return the times of sequences that are verified together, `CONTEXT` cached rows in all."""

    def curve(model: str) -> Curve:
        return tuple((rows, latency(model, rows, CONTEXT, rows) / 1e6) for rows in ROWS)

    judging = latency.sample_us + latency.communicate_us + latency.verify_us
    return Costs(curve("target"), curve("drafter") if latency.drafter else (), judging / 1e6)


def tokens_of(pair: Pair, tokens: str | Trace | Source) -> tuple[Mapping[str, Loader], str]:
    torch.set_num_threads(1)
    if tokens == "pair":
        cpu = Device("cpu:0", "", "", "cpu")
        return {m: _remembering(loader_of(pair, m, cpu, Options())) for m in pair.models}, f"{pair.name} pair"
    if isinstance(tokens, Source):
        models, source = tokens.models, tokens.name
    elif isinstance(tokens, Trace):
        models, source = recorded_pair(tokens), f"recorded run {tokens.header.run_id}"
    else:
        avoid = {*pair.tokenizer.all_special_ids, *pair.eos}
        scripted = _scripted(tokens)
        models, source = scripted(len(pair.tokenizer), avoid=avoid), tokens
    names = ("target", *map(drafter_key, range(len(models) - 1)))
    loaders: list[Loader] = [lambda model=model, **_: model for model in models]
    return dict(zip(names, loaders, strict=True)), source


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
