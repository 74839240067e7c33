"""Runs of scripted models in virtual time, for the views of one method each."""

from __future__ import annotations

from specscope.engine.drafting.suffix import Finished
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from tests.engine.methods.test_ssd import START, WRONG, ranked_cluster
from tests.engine.worker.harness import Flat, scripted_cluster

PROMPT = [1, 2, 3]


def say(path) -> int:
    return (int(path[-1]) * 7 + len(path)) % 500 + 10


def drafting(right):
    """Return a drafter that is right where `right` is true, and drafts 5 elsewhere."""

    def draft(path):
        index = len(path) - len(PROMPT)
        return say(path) if index < len(right) and right[index] else 5

    return draft


def dsi(right, new, sp=3, lookahead=2, drafter=200) -> Trace:
    """Run DSI: 0.8 ms a target forward, 0.2 ms a drafter forward."""
    with scripted_cluster(say, drafting(right), Flat(800, drafter, preempts=True)) as cluster:
        config = {"lookahead": lookahead, "sp": sp}
        return cluster.run("dsi", PROMPT, config=config, limits=cluster.limits(new))


def easyspec(new=12, drafter=say, **config) -> Trace:
    """Run EasySpec: calibrations of 0.25 ms, fuzzy forwards of 0.1 ms."""
    with scripted_cluster(say, drafter, Flat(1000, 250, fuzzy_us=100)) as cluster:
        return cluster.run("easyspec", PROMPT, config={"size": 3, **config}, limits=cluster.limits(new))


def counts_up(path) -> int:
    """10, 11, ... 29, 10, ..."""
    return (int(path[-1]) - 9) % 20 + 10


def ahead(method: str = "lookahead", new: int = 60, **config: object) -> Trace:
    """Return a run that uses a pool of n-grams."""
    with scripted_cluster(counts_up, counts_up) as cluster:
        settings = {"level": 4, "window": 5, "guesses": 3} | config
        return cluster.run(method, [10, 11], config=settings, limits=cluster.limits(new))


def expecting(method: str = "suffix", new: int = 50, drafter=counts_up, **config: object) -> Trace:
    """Return a run that drafts from its own text and from finished ones."""
    finished = Finished([range(10, 16), range(14, 22), range(70, 80)])
    with scripted_cluster(counts_up, drafter) as cluster:
        limits = cluster.limits(new)
        return cluster.run(method, [9, 10, 11], config=config, limits=limits, finished=finished)


def ssd(latency=None, **config) -> Trace:
    """Decode 22 tokens with drafts that are wrong at known places."""
    with ranked_cluster(WRONG, latency) as cluster:
        return cluster.run("ssd", START, config={"gamma": 3, "forks": 1, **config}, limits=Limits(22))
