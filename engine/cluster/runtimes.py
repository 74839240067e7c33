"""The runtimes by name: `place` starts one's workers and loads a pair of models on them."""

from __future__ import annotations

import os
from functools import partial

from engine.cluster.local_devices import DTYPES, LocalDevices, devices_of
from engine.cluster.memory import Memory, parse_limits
from engine.cluster.placement import Placement
from engine.cluster.profile_devices import ProfileDevices
from engine.cluster.ray_placement import ray_placement
from engine.cluster.splitting import TOKENS, split_by_memory
from engine.cluster.tokens import tokens_of
from engine.environment import processor
from engine.errors import UsageError, shown
from engine.layout import Layout, Separate
from engine.pairs.pair import Pair
from engine.simulate.oracle import Source
from engine.simulate.profile import Profile
from engine.trace.trace import Trace
from engine.types import check_range
from engine.workers.transports.virtual import VirtualLoop

RUNTIMES = ("local-process", "local-thread", "ray", "virtual")
FORWARDS = ("eager", "static")


def place(
    pair: Pair,
    *,
    runtime: str,
    profile: str | Profile | None,
    profile_pair: str | None,
    tokens: str | Trace | Source,
    device: str,
    threads: int,
    forward: str = "eager",
    dtype: str = "auto",
    tp: int = 1,
    drafter_tp: int = 1,
    address: str | None = None,
    memory: str = "",
) -> Placement:
    """Start the workers of a runtime and load the pair on them (arguments as for `engine.open`)."""
    if runtime not in RUNTIMES:
        raise UsageError(f"there is no runtime {runtime!r}; choose one of {', '.join(RUNTIMES)}")
    if (profile is not None) != (runtime == "virtual"):
        need = (
            "needs a profile"
            if profile is None
            else f"measures; the profile {getattr(profile, 'name', profile)!r} is for virtual"
        )
        raise UsageError(f"the runtime {runtime} {need}")
    check_range("threads", threads, 1, os.cpu_count() or 1)
    if address is not None and runtime != "ray":
        raise UsageError(f"address is {address!r}, but the runtime is {runtime}; use the runtime ray")
    if forward not in FORWARDS:
        raise UsageError(f"there is no forward {forward!r}; choose one of {', '.join(FORWARDS)}")
    _check_dtype(dtype)
    if profile is not None and (forward, dtype) != ("eager", "auto"):
        raise UsageError(
            f"forward {forward} and dtype {dtype} are for local devices; the runtime virtual takes "
            "eager and auto only"
        )
    if max(tp, drafter_tp) > 1 and runtime not in ("local-process", "ray"):
        raise UsageError(
            f"tp is {tp} and drafter_tp is {drafter_tp}, but models are split by tensors over processes: "
            f"use the runtime local-process or ray instead of {runtime}, or leave both at 1"
        )
    if memory and runtime in ("virtual", "ray"):
        raise UsageError(
            f"memory {shown(memory)} is for local devices; leave it out with the runtime {runtime}"
        )
    if profile is not None:
        return _virtual(pair, profile, profile_pair, tokens)
    if tokens != "pair":
        raise UsageError("recorded or Bernoulli tokens need the runtime virtual and a profile")
    if runtime == "ray":
        return ray_placement(
            pair,
            base_layout(pair),
            address,
            device=device,
            threads=threads,
            forward=forward,
            dtype=dtype,
            tp=tp,
            drafter_tp=drafter_tp,
            check=partial(_check_tp, pair),
        )
    site = local_site(
        pair,
        runtime=runtime,
        device=device,
        threads=threads,
        forward=forward,
        dtype=dtype,
        tp=tp,
        drafter_tp=drafter_tp,
        memory=memory,
    )
    split = {"tp": tp, "drafter_tp": drafter_tp} if max(tp, drafter_tp) > 1 else {}
    split |= {"stages": [len(span) for span in site.spans]} if site.spans else {}
    details = {"host": processor(), "threads": threads, "forward": forward, "dtype": dtype} | split
    return Placement(runtime, site, base_layout(pair), details=details)


def base_layout(pair: Pair) -> Layout:
    """Return the layout that `engine.open` loads: the target, and a drafter if the pair has one."""
    return Layout(Separate(drafters=int(pair.drafter_path is not None)))


def local_site(
    pair: Pair,
    *,
    runtime: str = "local-process",
    device: str = "auto",
    threads: int = 1,
    forward: str = "eager",
    dtype: str = "auto",
    tp: int = 1,
    drafter_tp: int = 1,
    memory: str = "",
    tokens: int = TOKENS,
) -> LocalDevices:
    """Return this machine as a site, with the target split by layers if it fits on no device.

    Args as for `engine.open`, and:
        tokens: Number of tokens whose keys and values must fit as well.

    Raises:
        UsageError: A setting is wrong, or two do not go together.
        ModelError: The target does not fit on all devices together.
    """
    _check_dtype(dtype)
    devices = devices_of(device)
    _check_tp(pair, len(devices), tp, drafter_tp)
    limits = Memory(parse_limits(memory, devices)) if memory else Memory()
    site = LocalDevices(
        pair, runtime, devices, threads, forward == "static", dtype, tp, drafter_tp, memory=limits
    )
    site = split_by_memory(site, base_layout(pair), tokens)
    if site.spans and site.static:
        raise UsageError(
            f"the target is split by layers over {len(site.spans)} devices, and a split target has eager forwards "
            "only; leave forward static out"
        )
    return site


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise UsageError(f"there is no dtype {dtype!r}; choose one of {', '.join(DTYPES)}")


def _check_tp(pair: Pair, devices: int, tp: int, drafter_tp: int) -> None:
    """Check that this machine can split the models by tensors.

    Raises:
        UsageError: It has too few devices, or there is no drafter to split.
    """
    check_range("tp", tp, 1, devices)
    check_range("drafter_tp", drafter_tp, 1, devices)
    if drafter_tp > 1 and pair.drafter_path is None:
        raise UsageError(f"drafter_tp is {drafter_tp}, but there is no drafter; name one with --drafter")


def _virtual(
    pair: Pair, profile: str | Profile, profile_pair: str | None, tokens: str | Trace | Source
) -> Placement:
    profile = Profile.load(profile) if isinstance(profile, str) else profile
    latency = profile.latency(profile_pair)
    loaders, source = tokens_of(pair, tokens)
    drafts = "drafter" in loaders and latency.drafter is not None
    return Placement(
        "virtual",
        ProfileDevices(profile, latency, loaders),
        Layout(Separate(drafters=int(drafts), turns=True)),
        VirtualLoop,
        profile.name,
        latency.c,
        {"tokens": source, "profile_pair": latency.pair},
        states=tokens == "pair",
    )
