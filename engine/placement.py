"""Which model lives on which device, and how its worker is reached: the one place that knows the runtimes by name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from engine.environment import processor
from engine.errors import UsageError
from engine.model.load import load
from engine.model.pair import Pair
from engine.model.slots import LanguageModel
from engine.runtime.events import Device, Trace
from engine.runtime.process import ProcessWorker, Setup
from engine.runtime.slab import Slab
from engine.runtime.thread import ThreadWorker
from engine.runtime.virtual import VirtualLoop, VirtualWorker
from engine.runtime.worker import Worker
from engine.types import check_range

Loader = Callable[[], LanguageModel]
RUNTIMES = ("local-process", "local-thread", "virtual")


@dataclass
class Placement:
    """Workers by model name, and what else a run must know about where it runs."""

    runtime: str
    workers: Mapping[str, Worker]
    devices: tuple[Device, ...]
    vocab_size: int
    """The target's."""
    slab: Slab | None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    profile: str = ""
    c: float = 0.0
    """T(target) / T(drafter) where a profile says it; 0 = to be measured."""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def all_workers(self) -> list[Worker]:
        """Each worker once."""
        return list(dict.fromkeys(self.workers.values()))

    def close(self) -> None:
        """End all workers."""
        for worker in self.all_workers:
            worker.close()
        if self.slab is not None:
            self.slab.unlink()


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
    if runtime == "virtual":
        return _virtual(pair, profile or "", profile_pair, tokens)
    if tokens != "pair":
        raise UsageError("recorded or Bernoulli tokens need the runtime virtual and a profile")
    devices = _devices(pair, device)
    return (
        _processes(pair, devices, threads) if runtime == "local-process" else _threads(pair, devices, threads)
    )


def _devices(pair: Pair, device: str) -> dict[str, Device]:
    models = ("drafter", "target") if pair.drafter_path else ("target",)
    gpus = torch.cuda.device_count()
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"there is no device {device!r}; choose auto, cpu or cuda")
    if device == "cuda" and not gpus:
        raise UsageError("device is cuda, but this machine has no CUDA device; use cpu")
    if device != "cpu" and gpus:
        names = {m: i % gpus for i, m in enumerate(models)}
        return {
            m: Device(
                f"cuda:{i}" if gpus > 1 else f"cuda:0/{m}",
                m,
                f"GPU {i} ({torch.cuda.get_device_name(i)}) · {m}",
                "cuda",
            )
            for m, i in names.items()
        }
    return {
        m: Device(f"cpu:{i}", m, f"CPU core {i} · {m}", "cpu")
        for m, i in zip(models, _cores(len(models)), strict=True)
    }


def _cores(n: int) -> list[int]:
    allowed = (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )
    return [allowed[i % len(allowed)] for i in range(n)]


def _loader(pair: Pair, model: str, device: Device) -> Loader:
    path = pair.target_path if model == "target" else pair.drafter_path
    on_gpu = device.kind == "cuda"
    return partial(
        load,
        str(path),
        device=device.name.split("/")[0] if on_gpu else "cpu",
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        name=model,
    )


def _processes(pair: Pair, devices: dict[str, Device], threads: int) -> Placement:
    started: dict[str, ProcessWorker] = {}
    try:
        for model, device in devices.items():
            core = int(device.name.partition(":")[2]) if device.kind == "cpu" and threads == 1 else None
            started[model] = ProcessWorker(
                Setup(device, {model: _loader(pair, model, device)}, threads, core)
            )
        for worker in started.values():
            worker.ready()
        vocab = started["target"].facts["target"].vocab_size
        slab = Slab(devices["drafter"].name, vocab, shared=True) if "drafter" in devices else None
        for worker in started.values():
            worker.connect([slab] if slab else [])
        if slab:
            slab.unlink()
    except BaseException:
        for worker in started.values():
            worker.close()
        raise
    return Placement(
        "local-process", started, tuple(devices.values()), vocab, slab, details=_measured(threads)
    )


def _threads(pair: Pair, devices: dict[str, Device], threads: int) -> Placement:
    torch.set_num_threads(threads)
    started = {m: ThreadWorker(d, {m: _loader(pair, m, d)}, threads) for m, d in devices.items()}
    vocab = started["target"].facts["target"].vocab_size
    slab = Slab(devices["drafter"].name, vocab, shared=False) if "drafter" in devices else None
    for worker in started.values():
        worker.connect({slab.name: slab.array} if slab else {})
    return Placement(
        "local-thread", started, tuple(devices.values()), vocab, slab, details=_measured(threads)
    )


def _measured(threads: int) -> dict[str, Any]:
    return {"host": processor(), "threads": threads}


def _virtual(pair: Pair, profile: str, profile_pair: str | None, tokens: str | Trace) -> Placement:
    from engine.simulate.oracle import bernoulli_pair, recorded_pair
    from engine.simulate.profile import Profile

    chosen = Profile.load(profile)
    latency = chosen.latency(profile_pair)
    loaders: dict[str, Loader]
    source = (
        "bundled pair"
        if tokens == "pair"
        else tokens
        if isinstance(tokens, str)
        else f"recorded run {tokens.header.run_id}"
    )
    devices = {
        m: Device(d.name, d.role, d.label, "virtual") for d in chosen.devices for m in d.role.split("+")
    }
    if isinstance(tokens, Trace):
        target, drafter = recorded_pair(tokens)
        loaders = {"target": lambda: target, "drafter": lambda: drafter}
    elif tokens == "pair":
        torch.set_num_threads(1)
        here = Device("cpu:0", "target", "", "cpu")
        models = ("drafter", "target") if pair.drafter_path else ("target",)
        loaders = {m: _loader(pair, m, here) for m in models}
        source = f"{pair.name} pair"
    else:
        target, drafter = bernoulli_pair(
            _rate(tokens), len(pair.tokenizer), avoid={*pair.tokenizer.all_special_ids, *pair.eos}
        )
        loaders = {"target": lambda: target, "drafter": lambda: drafter}
    workers: dict[str, VirtualWorker] = {}
    hosts: list[VirtualWorker] = []
    for name in dict.fromkeys(d.name for d in devices.values()):
        mine = {m: loaders[m] for m, d in devices.items() if d.name == name and m in loaders}
        worker = VirtualWorker(next(d for d in devices.values() if d.name == name), mine, latency)
        hosts.append(worker)
        workers |= dict.fromkeys(mine, worker)
    vocab = workers["target"].facts["target"].vocab_size
    slab = Slab(devices["drafter"].name, vocab, shared=False)
    for worker in hosts:
        worker.host.connect({slab.name: slab.array})
    details = {"tokens": source, "profile_pair": latency.pair}
    return Placement(
        "virtual",
        workers,
        tuple(dict.fromkeys(devices.values())),
        vocab,
        slab,
        VirtualLoop,
        profile,
        latency.c,
        details,
    )


def _rate(tokens: str) -> float:
    kind, _, rate = tokens.partition(":")
    try:
        value = float(rate)
    except ValueError:
        value = -1.0
    if kind != "bernoulli" or not 0 <= value <= 1:
        raise UsageError(f"tokens is {tokens!r}; it must be pair or bernoulli:RATE with a rate from 0 to 1")
    return value
