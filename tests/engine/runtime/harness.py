"""Clusters for tests: scripted models in virtual time with round numbers for latencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.model.pair import Pair
from engine.placement import Placement
from engine.runtime.events import Device
from engine.runtime.slab import Slab
from engine.runtime.virtual import VirtualLoop, VirtualWorker
from engine.session import Cluster
from engine.simulate.oracle import scripted_pair
from engine.types import Limits

NextToken = Callable[[np.ndarray], int]


@dataclass(frozen=True)
class Flat:
    """Constant latencies, in microseconds."""

    target_us: int = 1000
    drafter_us: int = 250
    sample_us: int = 0
    communicate_us: int = 0
    pair: str = "flat"

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        return self.target_us if model == "target" else self.drafter_us

    @property
    def c(self) -> float:
        return self.target_us / self.drafter_us


class TestCluster(Cluster):
    """A cluster whose limits carry no EOS of the bundled pair."""

    __test__ = False

    @staticmethod
    def limits(max_new_tokens: int, **more: object) -> Limits:
        return Limits(max_new_tokens, **more)  # type: ignore[arg-type]

    def _with_eos(self, limits: Limits) -> Limits:
        return limits


def scripted_cluster(target: NextToken, drafter: NextToken, latency: Flat | None = None) -> TestCluster:
    """A virtual cluster whose target and drafter are functions of the token path."""
    latency = latency or Flat()
    models = dict(zip(("target", "drafter"), scripted_pair(target, drafter), strict=True))
    devices = {m: Device(f"gpu-{m}", m, f"GPU · {m}", "virtual") for m in models}
    workers = {m: VirtualWorker(devices[m], {m: lambda m=m: models[m]}, latency) for m in models}
    slab = Slab("gpu-drafter", workers["target"].facts["target"].vocab_size, shared=False)
    for worker in workers.values():
        worker.host.connect({slab.name: slab.array})
    return TestCluster(
        Pair.find("bundled"),
        Placement(
            "virtual",
            dict(workers),
            tuple(devices.values()),
            slab.shape[1],
            slab,
            VirtualLoop,
            "flat",
            latency.c,
        ),
    )
