"""Which model lives on which device, and how its worker is reached: the one place that knows the runtimes by name."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from engine.cluster.local_devices import LocalDevices, devices_of
from engine.cluster.profile_devices import ProfileDevices
from engine.cluster.site import Assignment, Site
from engine.cluster.tokens import tokens_of
from engine.environment import processor
from engine.errors import UsageError
from engine.heads.find import HeadFile, load_head
from engine.model.pair import Pair
from engine.simulate.profile import Profile
from engine.trace.events import Device
from engine.trace.trace import Trace
from engine.types import Layout, check_range, drafter_key
from engine.workers.jobs import Connect, Facts, Load, Reply
from engine.workers.slab import Slab
from engine.workers.transports.group import GroupWorker
from engine.workers.transports.pipeline import PipelineWorker
from engine.workers.transports.virtual import VirtualLoop
from engine.workers.worker import Worker

RUNTIMES = ("local-process", "local-thread", "virtual")


@dataclass(frozen=True)
class RunWorkers:
    """The workers of one layout."""

    workers: Mapping[str, tuple[Worker, ...]]
    """Those of each model: `target`, `drafter`."""
    drafters: tuple[str, ...]
    """What each drafting worker calls its drafter."""
    devices: tuple[Device, ...]
    """What they sit on, with what they do there."""
    slabs: Mapping[str, Slab]
    """Rows of q, by the drafting worker's name."""

    @property
    def members(self) -> tuple[Worker, ...]:
        """All workers, those of groups one by one."""
        found = dict.fromkeys(worker for each in self.workers.values() for worker in each)
        return tuple(
            dict.fromkeys(
                m for w in found for m in (w.members if isinstance(w, GroupWorker | PipelineWorker) else (w,))
            )
        )


@dataclass
class Placement:
    """Workers on devices, started when a layout first needs them."""

    runtime: str
    site: Site
    base: Layout
    """What `engine.open` starts with: the target, and the drafter where there is one."""
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    profile: str = ""
    c: float = 0.0
    """T(target) / T(drafter) where a profile says it; 0 = to be measured."""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    vocab_size: int = 0
    """The target's."""
    states: bool = True
    """Whether the target has hidden states; not where tokens are drawn or recorded."""

    def __post_init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._groups: dict[str, GroupWorker | PipelineWorker] = {}
        self._facts: dict[tuple[str, str], Facts] = {}
        self._slabs: dict[str, Slab] = {}
        try:
            self.crew(self.base)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[Worker]:
        """All that were started."""
        return list(self._workers.values())

    @property
    def depth(self) -> int:
        """Layers of the drafter; 0 without one, or where it has none. In a virtual run those that are computed and timed."""
        return self._layers("drafter", self.site.depth())

    def stages(self, asked: int) -> int:
        """Return over how many devices a target is split by its layers: as many as asked for, or the site's choice for 0.

        Raises:
            UsageError: There are fewer devices or layers, or the site cannot split a target.
        """
        usual, devices, layers = self.site.pipeline()
        layers = self._layers("target", layers)
        most = min(devices, layers or devices)
        there = f"there are {devices} devices" + (f", and the target has {layers} layers" if layers else "")
        if most < 2:
            raise UsageError(
                f"a pipeline takes at least 2 devices and 2 layers; {there}: choose another placement"
            )
        if asked and not 2 <= asked <= most:
            raise UsageError(f"stages is {asked}; it must be at least 2 and at most {most}: {there}")
        return asked or min(usual, most)

    def _layers(self, model: str, timed: int) -> int:
        """Return a model's layers, of those that are computed and those that are timed the fewer; 0 where it has none."""
        loaded = next((facts.depth for (name, _), facts in self._facts.items() if name == model), 0)
        return min(filter(None, (loaded, timed)), default=0)

    def crew(self, layout: Layout, head: HeadFile | None = None) -> RunWorkers:
        """Return the workers of a layout, with their models loaded.

        Args:
            layout: What is needed.
            head: The drafting head, where the layout has one: it drafts on the target's worker.

        Raises:
            UsageError: The layout needs more devices than there are.
            ModelError: A model cannot be loaded.
        """
        seats = {model: found for model, found in self.site.seats(layout).items() if found}
        if head is not None:
            seats["drafter"] = seats["target"]
        every = (each for found in seats.values() for seat in found for each in seat.singles)
        for seat in dict.fromkeys(every):
            if seat.name not in self._workers:
                self._workers[seat.name] = self.site.start_worker(seat)
        drafters = _drafter_names(layout, len(seats.get("drafter", ())), head)
        self._load(seats, drafters, head)
        self.vocab_size = next(f.vocab_size for (model, _), f in self._facts.items() if model == "target")
        workers = {model: tuple(self._worker(seat) for seat in found) for model, found in seats.items()}
        drafting = [worker.name for worker in workers.get("drafter", ())]
        self._connect(drafting)
        slabs = {name: self._slabs[name] for name in drafting}
        return RunWorkers(workers, drafters, _labelled(seats, drafters), slabs)

    def _worker(self, seat: Assignment) -> Worker:
        """Return the worker of a seat; one for several seats is made of theirs."""
        if not seat.members:
            return self._workers[seat.name]
        if seat.name not in self._groups:
            members = [self._workers[m.name] for m in seat.members]
            self._groups[seat.name] = (
                PipelineWorker(members) if seat.split else GroupWorker(seat.name, members)
            )
        return self._groups[seat.name]

    def _load(
        self, seats: Mapping[str, Sequence[Assignment]], drafters: Sequence[str], head: HeadFile | None
    ) -> None:
        jobs = list[tuple[Load, Assignment]]()
        for model, seat in _placed(seats, drafters):
            if head is not None and model in drafters:
                continue
            for each, stage in zip(seat.singles, seat.stages, strict=True):
                loader = self.site.loader(model, each)
                if stage is None:
                    jobs.append((Load(model, loader), each))
                else:
                    jobs.append((Load(stage.of(model), partial(loader, stage=stage[:2])), each))
        self._fetch(jobs)
        if head is not None:  # once the target is there
            load = Load(_name(head), partial(load_head, str(head.path)), beside="target")
            self._fetch([(load, seat) for seat in seats.get("drafter", ())])

    def _fetch(self, jobs: Sequence[tuple[Load, Assignment]]) -> None:
        """Load what is not loaded yet, on all workers at once."""
        loading: dict[tuple[str, str], Callable[[], Reply]] = {}
        for job, seat in jobs:
            if (job.model, seat.name) not in {*self._facts, *loading}:
                loading[job.model, seat.name] = self._workers[seat.name].prepare(job)
        for key, wait in loading.items():
            self._facts[key] = wait().value

    def _connect(self, drafting: Sequence[str]) -> None:
        """Give all workers new slabs when one drafts for the first time or is new.

        A slab can be mapped only until its handle is closed.
        """
        known = {*self._slabs, *drafting}
        if known == {*self._slabs} and self._connected == {*self._workers}:
            return
        self._slabs = {name: Slab(name, self.vocab_size) for name in known}
        try:
            job = Connect(tuple((s.name, s.path, s.shape) for s in self._slabs.values()))
            for wait in [worker.prepare(job) for worker in self.workers]:
                wait()
        finally:
            for slab in self._slabs.values():
                slab.close()
        self._connected = {*self._workers}

    _connected: set[str] = field(default_factory=set[str], init=False)

    def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on an event loop of this runtime, on which all workers answer."""
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            workers = self.workers
            for worker in workers:
                worker.attach(runner.get_loop())
            try:
                return runner.run(work)
            finally:
                for worker in workers:
                    worker.detach()

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.close()


def _drafter_names(layout: Layout, count: int, head: HeadFile | None) -> tuple[str, ...]:
    """Return what so many drafting workers call their models: each has another one, but at the ends of a pipeline."""
    if head is not None:
        return (_name(head),) * count
    return tuple(drafter_key(0 if layout.stages > 1 else number) for number in range(count))


def _name(head: HeadFile) -> str:
    """Return what workers call a head: several may be loaded beside one target."""
    return f"head {head.config.kind}"


def _labelled(seats: Mapping[str, Sequence[Assignment]], drafters: Sequence[str]) -> tuple[Device, ...]:
    models: dict[Device, dict[str, str]] = {}
    for key, seat in sorted(_placed(seats, drafters), key=lambda placed: placed[0]):
        role = "drafter" if key in drafters else key
        number = key.partition("drafter-")[2]
        for device in seat.of(role):
            models.setdefault(device, {}).setdefault(role, f"{role} {number}".strip())
    return tuple(
        replace(device, role="+".join(names), label=f"{device.label} · {' and '.join(names.values())}")
        for device, names in sorted(models.items(), key=lambda item: _counting(item[0].name))
    )


def _placed(
    seats: Mapping[str, Sequence[Assignment]], drafters: Sequence[str]
) -> Iterator[tuple[str, Assignment]]:
    """Yield each seat with what its worker calls the model."""
    for model, found in seats.items():
        names = drafters if model == "drafter" else [model] * len(found)
        yield from zip(names, found, strict=True)


def _counting(name: str) -> list[str | int]:
    """Return a key that sorts names as people count: `cpu:2` before `cpu:10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def place(
    pair: Pair,
    *,
    runtime: str,
    profile: str | None,
    profile_pair: str | None,
    tokens: str | Trace,
    device: str,
    threads: int,
) -> Placement:
    """Start the workers of a runtime and load the pair on them (arguments as in `engine.open`)."""
    if runtime not in RUNTIMES:
        raise UsageError(f"there is no runtime {runtime!r}; choose one of {', '.join(RUNTIMES)}")
    if (profile is not None) != (runtime == "virtual"):
        need = "needs a profile" if profile is None else f"measures; the profile {profile!r} is for virtual"
        raise UsageError(f"the runtime {runtime} {need}")
    check_range("threads", threads, 1, os.cpu_count() or 1)
    if profile is not None:
        return _virtual(pair, profile, profile_pair, tokens)
    if tokens != "pair":
        raise UsageError("recorded or Bernoulli tokens need the runtime virtual and a profile")
    site = LocalDevices(pair, runtime, devices_of(device), threads)
    details = {"host": processor(), "threads": threads}
    return Placement(runtime, site, _base(pair), details=details)


def _base(pair: Pair) -> Layout:
    return Layout(drafters=int(pair.drafter_path is not None))


def _virtual(pair: Pair, name: str, profile_pair: str | None, tokens: str | Trace) -> Placement:
    profile = Profile.load(name)
    latency = profile.latency(profile_pair)
    loaders, source = tokens_of(pair, tokens)
    site = ProfileDevices(profile, latency, loaders)
    details = {"tokens": source, "profile_pair": latency.pair}
    base = Layout(drafters=int("drafter" in loaders), turns=True)
    return Placement(
        "virtual", site, base, VirtualLoop, profile.name, latency.c, details, states=tokens == "pair"
    )
