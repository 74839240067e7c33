"""The runtimes by name: `place` starts one's workers and loads a pair of models on them."""

from __future__ import annotations

import os

from engine.cluster.local_devices import DTYPES, LocalDevices, devices_of
from engine.cluster.placement import Placement
from engine.cluster.profile_devices import ProfileDevices
from engine.cluster.tokens import tokens_of
from engine.environment import processor
from engine.errors import UsageError
from engine.layout import Layout, Separate
from engine.pairs.pair import Pair
from engine.simulate.oracle import Source
from engine.simulate.profile import Profile
from engine.trace.trace import Trace
from engine.types import check_range
from engine.workers.transports.virtual import VirtualLoop

RUNTIMES = ("local-process", "local-thread", "virtual")
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
    if forward not in FORWARDS:
        raise UsageError(f"there is no forward {forward!r}; choose one of {', '.join(FORWARDS)}")
    if dtype not in DTYPES:
        raise UsageError(f"there is no dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    if profile is not None and (forward, dtype) != ("eager", "auto"):
        raise UsageError(
            f"forward {forward} and dtype {dtype} are for local devices; the runtime virtual takes "
            "eager and auto only"
        )
    if profile is not None:
        return _virtual(pair, profile, profile_pair, tokens)
    if tokens != "pair":
        raise UsageError("recorded or Bernoulli tokens need the runtime virtual and a profile")
    site = LocalDevices(pair, runtime, devices_of(device), threads, forward == "static", dtype)
    base = Layout(Separate(drafters=int(pair.drafter_path is not None)))
    details = {"host": processor(), "threads": threads, "forward": forward, "dtype": dtype}
    return Placement(runtime, site, base, details=details)


def _virtual(
    pair: Pair, profile: str | Profile, profile_pair: str | None, tokens: str | Trace | Source
) -> Placement:
    profile = Profile.load(profile) if isinstance(profile, str) else profile
    latency = profile.latency(profile_pair)
    loaders, source = tokens_of(pair, tokens)
    return Placement(
        "virtual",
        ProfileDevices(profile, latency, loaders),
        Layout(Separate(drafters=int("drafter" in loaders), turns=True)),
        VirtualLoop,
        profile.name,
        latency.c,
        {"tokens": source, "profile_pair": latency.pair},
        states=tokens == "pair",
    )
