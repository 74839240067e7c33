"""Runs of every method, in virtual time.

Scripted models have the same rows on every processor. Of the bundled pair, whose floats differ in
the last digits between processors, only texts, decisions and rounds are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from zlib import crc32

import specscope
from specscope.engine.cluster.session import Cluster
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.run.serving import Load
from specscope.engine.simulate.profile import profiles
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.whatif.replay import Change, what_if
from tests.golden.texts import Outputs, decided, flat, of_trace

PROMPT = "Once upon a time there was a small town"
PROMPTS = (PROMPT, "The sea is salty because", "Hello, my name is")
TOKENS = "bernoulli:0.8"
LIMITS = Limits(40)
GREEDY, SAMPLED = Sampling(seed=3), Sampling(temperature=0.9, seed=3)
Config = dict[str, Any]
VARIANTS: dict[str, list[Config]] = {
    "pearl": [
        {"gamma": 3, "placement": "pipeline"},
        {"gamma": 3, "placement": "co-located"},
        {"gamma": 3, "guesses": 2},
        {"gamma": 3, "pre_verify": False},
        {"gamma": 3, "post_verify": False},
    ],
    "dsi": [{"acceptance": "rejection"}, {"drafts": "sampled"}],
    "ems": [{"base": "speculative", "batch": 3}, {"base": "speculative", "width": 2}, {"unpad_kv": False}],
    "easyspec": [{"size": 2, "width": 2, "gamma": 3}, {"calibrate": False}],
    "assisted": [{"schedule": "constant"}],
}
"""Settings besides the defaults."""
WHAT_IFS = {
    "gamma": Change(config={"gamma": 2}),
    "profile": Change(profile="pearl-4xA100"),
    "method": Change(method="pearl", config={"gamma": 3}),
}
EIGHT, ONE = "8xA100", "A100-40G"
"""Profiles, of eight devices and of one, on which every method runs."""
SHARE = 4
"""Of other profiles one of so many pairs with a method is run; a new method adds its own pairs."""


def scripted() -> Outputs:
    """Yield sampled runs of all settings on `EIGHT`, and greedy ones of the defaults elsewhere."""
    for profile in profiles():
        name, sampling = ("sampled", SAMPLED) if profile == EIGHT else ("greedy", GREEDY)
        whole = profile in (EIGHT, ONE)
        with opened(profile) as cluster:
            for method, config in _settings(profile):
                trace = _run(cluster, method, config, sampling)
                if trace is not None:
                    words = [profile, method, *(f"{key}={value}" for key, value in config.items()), name]
                    yield from of_trace(" ".join(words), trace, view=whole, exports=whole and not config)


def opened(profile: str) -> Cluster:
    return specscope.open("bundled", profile=profile, runtime="virtual", tokens=TOKENS)


def _settings(profile: str) -> Iterator[tuple[str, Config]]:
    """Yield the methods of a profile, on `EIGHT` with each of their settings."""
    for method in METHODS:
        if profile in (EIGHT, ONE) or crc32(f"{profile}: {method}".encode()) % SHARE == 0:
            variants = VARIANTS.get(method, []) if profile == EIGHT else []
            yield from ((method, config) for config in [{}, *variants])


def _run(
    cluster: Cluster, method: str, config: Config, sampling: Sampling, limits: Limits = LIMITS
) -> Trace | None:
    """Return a run; None if the cluster cannot run the method with these settings."""
    prompts = PROMPTS if METHODS[method].batched else PROMPTS[:1]
    with contextlib.suppress(UsageError):
        cluster.check(method)
        return cluster.run(method, *prompts, config=config, sampling=sampling, limits=limits)
    return None


def bundled() -> Outputs:
    """Yield what the bundled pair decides: for heads, which compute in int8, the greedy text."""
    with specscope.open("bundled", profile=EIGHT, runtime="virtual") as cluster:
        for method, entry in METHODS.items():
            head = bool(entry.layout(entry.configure({})).head)
            trace = _run(cluster, method, {}, GREEDY if head else SAMPLED, Limits(24))
            if trace is not None:
                text = flat({"texts": [trace.text]}) if head else decided(trace)
                yield f"bundled {method} {'greedy' if head else 'sampled'}", text


def under_load() -> Outputs:
    load = Load((0.0, 0.01, 0.4), batch=2)
    with opened(ONE) as cluster:
        for method in METHODS:
            with contextlib.suppress(UsageError):
                cluster.check(method, load)
                trace = cluster.run(method, *PROMPTS, sampling=SAMPLED, limits=LIMITS, load=load)
                yield from of_trace(f"load {method}", trace, exports=False)


def recorded() -> Trace:
    """Return a run that can be replayed, with a known id and time."""
    with opened("pearl-3xA100") as cluster:
        trace = cluster.run("speculative", PROMPT, config={"gamma": 5}, limits=LIMITS)
    return replace(
        trace, header=replace(trace.header, run_id="recorded", created="2026-01-02T03:04:05.678+00:00")
    )


def what_ifs() -> Outputs:
    trace = recorded()
    for name, change in WHAT_IFS.items():
        yield from of_trace(f"what-if {name}", what_if(trace, change).replay)
