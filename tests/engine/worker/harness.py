"""Clusters for tests: scripted models in virtual time with round numbers for latencies."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.assignment import Assignment, single
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.placement import Placement
from specscope.engine.cluster.pool import Pool
from specscope.engine.cluster.session import Cluster
from specscope.engine.drafting.tree import Wide
from specscope.engine.errors import WorkerDied
from specscope.engine.layout import Colocated, LayerParallel, Layout, Separate
from specscope.engine.model.fuzzy import PartTime
from specscope.engine.model.language import LanguageModel
from specscope.engine.runtimes.virtual import Processor, VirtualWorker
from specscope.engine.simulate.oracle import Scripted
from specscope.engine.trace.events import Device
from specscope.engine.types import Limits, drafter_key
from specscope.engine.worker.jobs import Job, Preparation, Propose, Reply, Stamp
from specscope.engine.worker.worker import Ticket

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
    """Whether a stopped job leaves its device in the middle of a forward."""
    fuzzy_us: int = 100
    row_move_us: int = 0

    def __call__(self, model, rows, context, batch=1):
        return self.target_us if model == "target" else self.drafter_us

    def head(self, work, rows, context, batch=1):
        return self.drafter_us

    def parallel(self, model, rows, context, size, batch=1, devices=0):
        return self.fuzzy_us

    def stage(self, model, rows, context, number, count, batch=1):
        return self(model, rows, context) // count

    def move_us(self, model, rows):
        return self.row_move_us * rows

    def parts(self, model, rows, context, size, devices, batch=1):
        """Layer 1 + i on device i in the first half, then an exchange."""
        half, end = 500 * self.fuzzy_us, 1000 * self.fuzzy_us
        exchange = PartTime("exchange", 1, half, end)
        return [[PartTime("attention", 1 + i, 0, half), exchange] for i in range(devices)]

    @property
    def c(self):
        return self.target_us / self.drafter_us


class PreemptedWorker(VirtualWorker):
    """A stopped job leaves its device in the middle of a forward, as DSI's theorems assume."""

    async def _wait(self, over, pending):
        await asyncio.wait([over, pending.stop], return_when=asyncio.FIRST_COMPLETED)


class TestCluster(Cluster):
    """A cluster whose limits carry no EOS of the bundled pair."""

    __test__ = False

    @staticmethod
    def limits(max_new_tokens, **more):
        return Limits(max_new_tokens, **more)  # type: ignore[arg-type]

    def _with_eos(self, limits):
        return limits


@dataclass(frozen=True)
class Rack:
    """Virtual devices `gpu0`, `gpu1` and so on with these models."""

    models: dict[str, LanguageModel]
    latency: Flat
    processors: dict[str, Processor] = field(default_factory=dict)
    where = "there are"
    devices = tuple(Device(f"gpu{i}", "", f"GPU {i}", "virtual") for i in range(64))

    def reserve(self, assigned):
        pass

    def start(self, assignment):
        name, devices, lanes = assignment.name, assignment.devices, dict(assignment.lanes)
        if self.latency.preempts:
            return PreemptedWorker(name, devices, self.latency, lanes=lanes)
        processor = self.processors.setdefault(devices[0].name, Processor())
        return VirtualWorker(name, devices, self.latency, processor, lanes)

    def loader(self, model, assignment):
        return lambda **_: self.models[model]

    def close(self):
        pass


class Racks(Pool):
    """A pool whose devices have the names of their roles: `gpu-drafter`, `gpu-target-1`."""

    def assign(self, layout):
        match layout.arrangement:
            case Colocated():
                (target,) = named("target", 1)
                return {"drafter": [target._replace(name="gpu-target/drafter")], "target": [target]}
            case LayerParallel(ranks):
                group = Assignment(f"gpu0..{ranks}", self.devices[:ranks], lanes=(("target", 2),))
                return {"drafter": [group], "target": [group]}
            case Separate(targets, drafters):
                return {"drafter": named("drafter", drafters), "target": named("target", targets)}
            case _:
                return super().assign(layout)


def named(model, count):
    """Return the assignments of a model's workers."""
    names = [f"gpu-{model}-{i}" if i else f"gpu-{model}" for i in range(count)]
    return [single(Device(name, "", name.replace("gpu-", "GPU "), "virtual")) for name in names]


def racks(models, latency):
    """Return a virtual placement of these models."""
    options = Options("virtual", profile="flat")
    site, drafters = Rack(models, latency), len(models) - 1
    pool = Racks(bundled(), options, site, drafters=drafters, profile="flat", c=latency.c)
    return Placement(pool, Layout())


class AnsweredWorker:
    """A stand-in for a worker on one device; the test answers its jobs."""

    def __init__(self, name, value=None):
        self.name, self.devices = name, (Device(name, "", name, name.partition(":")[0]),)
        self.value = value
        """The answer to jobs between runs."""
        self.prepared, self.jobs = list[Preparation](), list[Job]()
        self.replies = list[asyncio.Future[Reply]]()

    def prepare(self, job):
        self.prepared.append(job)
        return lambda: Reply(self.value, ())

    def submit(self, job):
        self.jobs.append(job)
        self.replies.append(asyncio.get_running_loop().create_future())
        return Ticket(self.replies[-1], lambda: None)

    def answer(self, value=None, kind="verify"):
        self.replies[-1].set_result(Reply(value, (Stamp(kind, 0, 1, 1, 0),)))

    def kill(self, why):
        self.replies[-1].set_exception(WorkerDied(f"{self.name} {why}"))


def chains(model, prefixes, counts, **more):
    """Return the job that drafts `counts` tokens after the prefixes; greedy by default."""
    fields = {"sampled": False, "rows": ((),) * len(prefixes), "chain": True, **more}
    return Propose(model, tuple(prefixes), Wide(1, max(counts, default=0)), tuple(counts), **fields)  # type: ignore[arg-type]


def scripted_pair(target, drafter, vocab_size=1024):
    """Return (target, drafter) given by functions of the tokens so far, (L,) int64."""
    return (
        Scripted("target", lambda path, _: target(path), vocab_size),
        Scripted("drafter", lambda path, _: drafter(path), vocab_size),
    )


@cache
def bundled():
    """Return the bundled pair, read once."""
    return Pair.find("bundled")


def scripted_cluster(target, drafter, latency=None, further=()):
    """A virtual cluster whose target and drafters are functions of the token path."""
    latency = latency or Flat()
    models = dict(zip(("target", "drafter"), scripted_pair(target, drafter), strict=True))
    for i, other in enumerate(further, 1):
        models[drafter_key(i)] = scripted_pair(target, other)[1]
    return TestCluster(bundled(), racks(models, latency))
