"""The GPUs of a profile, as a site: which seats a layout takes, and the virtual workers on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.cluster.site import Assignment, Loader, Pipeline, staged
from engine.errors import UsageError
from engine.simulate.latency import Latency
from engine.simulate.profile import Profile
from engine.trace.events import Device
from engine.types import Layout
from engine.workers.transports.sharing import Processor
from engine.workers.transports.virtual import VirtualWorker
from engine.workers.worker import Worker


@dataclass(frozen=True)
class ProfileDevices:
    """The GPUs of a profile. A model on several of them is one worker, drawn as one device."""

    profile: Profile
    latency: Latency
    loaders: Mapping[str, Loader]
    processors: dict[str, Processor] = field(default_factory=dict[str, Processor])

    def seats(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Give drafters the first GPUs and targets those after."""
        drafter = self.latency.drafter
        if layout.drafters and drafter is None:
            raise UsageError(
                f"the pair {self.latency.pair} of the profile {self.profile.name} has no drafter; "
                "choose another pair, or a method that drafts without one"
            )
        each = {"drafter": drafter.gpus if drafter else 0, "target": self.latency.target.gpus}
        drafting, needed = layout.drafters * each["drafter"], layout.targets * each["target"]
        there = len(self.profile.gpus)
        if layout.ranks > 1:
            return self._grouped(layout.ranks)
        if layout.stages > 1:
            return staged(self._groups(0, there, 1), layout.stages)
        if layout.shared and max(drafting, needed) <= there:
            (target,) = self._groups(min(each["drafter"], there - needed), 1, each["target"])
            return {"drafter": [target._replace(name=f"{target.name}/drafter")], "target": [target]}
        if layout.turns and drafting <= needed <= there < drafting + needed:
            targets = self._groups(0, layout.targets, each["target"])
            return {"drafter": targets[: layout.drafters], "target": targets}
        if drafting + needed > there:
            raise UsageError(
                f"{layout.targets} target server(s) of {each['target']} GPU(s) and {layout.drafters} drafter(s) of "
                f"{each['drafter']} need {drafting + needed} GPUs; the profile {self.profile.name} has {there}"
            )
        first = max(drafting, min(each["drafter"], there - needed))
        return {
            "drafter": self._groups(0, layout.drafters, each["drafter"]),
            "target": self._groups(first, layout.targets, each["target"]),
        }

    def servers(self, drafters: int) -> int:
        """Return how many groups of GPUs for a target are left."""
        width = self.latency.drafter.gpus if self.latency.drafter else 0
        return max(0, len(self.profile.gpus) - drafters * width) // self.latency.target.gpus

    def drafters(self) -> int:
        """Return those that tokens come from; none where the profile has none. All take the time of the profile's."""
        return len(self.loaders) - 1 if self.latency.drafter else 0

    def ranks(self) -> int:
        """Return the GPUs there are; 1 where the profile does not say what sharing a drafter's layers takes."""
        drafter = self.latency.drafter
        if drafter is None or drafter.gpus > 1 or drafter.measured or not self.profile.hardware.collective_us:
            return 1
        return len(self.profile.gpus)

    def depth(self) -> int:
        """Return the layers of the profile's drafter."""
        return self.latency.drafter.layers if self.latency.drafter else 0

    def pipeline(self) -> Pipeline:
        """Return as many GPUs as the target takes anyway, at least 2.

        Raises:
            UsageError: The target's times are those of tensor parallelism, the drafter takes several GPUs, or the profile
                does not say what moving a KV cache takes.
        """
        target, drafter = self.latency.target, self.latency.drafter
        where = f"the pair {self.latency.pair} of the profile {self.profile.name}"
        if target.split == "tensor" and target.gpus > 1:
            raise UsageError(
                f"{where} has times of a target under tensor parallelism; a pipeline needs one split by layers: "
                "choose another pair, or pearl-4xA100"
            )
        if drafter is not None and drafter.gpus > 1:
            raise UsageError(
                f"{where} has a drafter on {drafter.gpus} GPUs; in a pipeline it takes one: choose another pair"
            )
        if self.latency.start_us is None:
            raise UsageError(
                f"{where} does not say step.move_ms, which moving a KV cache takes: choose another profile"
            )
        return Pipeline(max(2, target.gpus), len(self.profile.gpus), target.layers)

    def _grouped(self, ranks: int) -> dict[str, list[Assignment]]:
        """Let the first GPUs draft together; the target takes its turns on as many as it is split over."""
        needed = max(ranks, self.latency.target.gpus)
        if needed > len(self.profile.gpus):
            raise UsageError(
                f"{ranks} GPUs are to share the drafter's layers and the target takes {self.latency.target.gpus}; "
                f"the profile {self.profile.name} has {len(self.profile.gpus)}"
            )
        devices = tuple(_group([gpu]).devices[0] for gpu in self.profile.gpus[:needed])
        lanes = (("drafter", ranks), ("target", self.latency.target.gpus))
        seat = Assignment(f"{devices[0].name}..{devices[-1].name}/{ranks}", devices, lanes=lanes)
        return {"drafter": [seat], "target": [seat]}

    def _groups(self, first: int, count: int, width: int) -> list[Assignment]:
        starts = range(first, first + count * width, width)
        return [_group(self.profile.gpus[start : start + width]) for start in starts]

    def start_worker(self, seat: Assignment) -> Worker:
        """Start a virtual worker; those that sit on one device share its speed."""
        processor = self.processors.setdefault(seat.devices[0].name, Processor())
        return VirtualWorker(
            seat.name, seat.devices, self.latency, processor=processor, lanes=dict(seat.lanes)
        )

    def loader(self, model: str, seat: Assignment) -> Loader:  # noqa: ARG002 - the same tokens everywhere
        """Return where a model's tokens come from."""
        return self.loaders[model]


def _group(gpus: Sequence[str]) -> Assignment:
    """Return the seat of devices next to each other: `gpu0`, or `gpu1-2`."""
    name = gpus[0] if len(gpus) == 1 else f"{gpus[0]}-{gpus[-1].lstrip('gpu:c')}"
    return Assignment(
        name, (Device(name, "", name.replace("gpu", "GPU ").replace("cpu:", "CPU core "), "virtual"),)
    )
