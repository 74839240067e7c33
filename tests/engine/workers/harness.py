"""Clusters for tests: scripted models in virtual time with round numbers for latencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.cluster.placement import Placement
from engine.cluster.session import Cluster
from engine.cluster.site import Assignment, Loader, Pipeline, staged
from engine.errors import UsageError
from engine.heads.drafting import Work
from engine.model.fuzzy import PartTime
from engine.model.language import LanguageModel
from engine.model.pair import Pair
from engine.simulate.oracle import scripted_pair
from engine.trace.events import Device
from engine.types import Layout, Limits, drafter_key
from engine.workers.transports.sharing import Processor
from engine.workers.transports.virtual import VirtualLoop, VirtualWorker

NextToken = Callable[[np.ndarray], int]


@dataclass(frozen=True)
class Flat:
    """Constant latencies, in microseconds."""

    target_us: int = 1000
    drafter_us: int = 250
    sample_us: int = 0
    communicate_us: int = 0
    pair: str = "flat"
    preempts: bool = False
    fuzzy_us: int = 100
    row_move_us: int = 0

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        return self.target_us if model == "target" else self.drafter_us

    def head(self, work: Work, rows: int, context: int, batch: int = 1) -> int:
        return self.drafter_us

    def parallel(
        self, model: str, rows: int, context: int, size: int, batch: int = 1, devices: int = 0
    ) -> int:
        return self.fuzzy_us

    def stage(self, model: str, rows: int, context: int, number: int, count: int, batch: int = 1) -> int:
        return self(model, rows, context) // count

    def move_us(self, model: str, rows: int) -> int:
        return self.row_move_us * rows

    def parts(
        self, model: str, rows: int, context: int, size: int, devices: int, batch: int = 1
    ) -> list[list[PartTime]]:
        """Layer 1 + i on device i in the first half, then an exchange."""
        half, end = 500 * self.fuzzy_us, 1000 * self.fuzzy_us
        exchange = PartTime("exchange", 1, half, end)
        return [[PartTime("attention", 1 + i, 0, half), exchange] for i in range(devices)]

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


@dataclass(frozen=True)
class Racks:
    """As many virtual devices as a layout asks for: `gpu-drafter`, `gpu-target`, then `gpu-target-1` and so on."""

    models: dict[str, LanguageModel]
    latency: Flat
    devices: int = 64
    processors: dict[str, Processor] = field(default_factory=dict)

    def seats(self, layout: Layout) -> dict[str, list[Assignment]]:
        if layout.targets + layout.drafters > self.devices:
            raise UsageError(
                f"{layout.targets + layout.drafters} devices are needed; there are {self.devices}"
            )
        if layout.stages > 1:
            devices = [Device(f"gpu{i}", "", f"GPU {i}", "virtual") for i in range(self.devices)]
            return staged([Assignment(device.name, (device,)) for device in devices], layout.stages)
        if layout.shared:
            device = Device("gpu-target", "", "GPU target", "virtual")
            return {
                "drafter": [Assignment("gpu-target/drafter", (device,))],
                "target": [Assignment("gpu-target", (device,))],
            }
        if layout.ranks > 1:
            devices = tuple(Device(f"gpu{i}", "", f"GPU {i}", "virtual") for i in range(layout.ranks))
            seat = Assignment(f"gpu0..{layout.ranks}", devices, lanes=(("target", 2),))
            return {"drafter": [seat], "target": [seat]}
        counts = {"drafter": layout.drafters, "target": layout.targets}
        return {model: [_seat(f"gpu-{model}", i) for i in range(n)] for model, n in counts.items()}

    def servers(self, drafters: int) -> int:
        return self.devices - drafters

    def drafters(self) -> int:
        return len(self.models) - 1

    def ranks(self) -> int:
        return self.devices

    def depth(self) -> int:
        return 0

    def pipeline(self) -> Pipeline:
        return Pipeline(2, self.devices)

    def start_worker(self, seat: Assignment) -> VirtualWorker:
        processor = self.processors.setdefault(seat.devices[0].name, Processor())
        return VirtualWorker(
            seat.name, seat.devices, self.latency, self.latency.preempts, processor, dict(seat.lanes)
        )

    def loader(self, model: str, seat: Assignment) -> Loader:
        return lambda **_: self.models[model]


def _seat(name: str, number: int) -> Assignment:
    name += f"-{number}" if number else ""
    return Assignment(name, (Device(name, "", name.replace("gpu-", "GPU "), "virtual"),))


def scripted_cluster(
    target: NextToken, drafter: NextToken, latency: Flat | None = None, further: Sequence[NextToken] = ()
) -> TestCluster:
    """A virtual cluster whose target and drafters are functions of the token path."""
    latency = latency or Flat()
    models = dict(zip(("target", "drafter"), scripted_pair(target, drafter), strict=True))
    for i, other in enumerate(further, 1):
        models[drafter_key(i)] = scripted_pair(target, other)[1]
    site = Racks(models, latency)
    return TestCluster(
        Pair.find("bundled"), Placement("virtual", site, Layout(), VirtualLoop, "flat", latency.c)
    )
