"""The runtimes by name: `place` starts one's workers and loads a pair of models on them."""

from __future__ import annotations

import os

from engine.cluster.local_devices import LocalDevices, devices_of
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


def place(
    pair: Pair,
    *,
    runtime: str,
    profile: str | Profile | None,
    profile_pair: str | None,
    tokens: str | Trace | Source,
    device: str,
    threads: int,
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
    if profile is not None:
        return _virtual(pair, profile, profile_pair, tokens)
    if tokens != "pair":
        raise UsageError("recorded or Bernoulli tokens need the runtime virtual and a profile")
    site = LocalDevices(pair, runtime, devices_of(device), threads)
    base = Layout(Separate(drafters=int(pair.drafter_path is not None)))
    return Placement(runtime, site, base, details={"host": processor(), "threads": threads})


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
