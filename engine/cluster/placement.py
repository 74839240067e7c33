"""The workers of a layout: started on assigned devices, with their models loaded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from specscope.engine.cluster.assignment import (
    Assignment,
    ModelPart,
    drafter_names,
    head_name,
    head_place,
    labelled_devices,
    names_on_workers,
    parts_on,
)
from specscope.engine.cluster.memory import ModelBytes, RunSize, check_caches
from specscope.engine.cluster.pool import Pool
from specscope.engine.errors import OutOfMemory, SpecScopeError, StarterDied
from specscope.engine.heads.find import HeadFile, load_head
from specscope.engine.layout import Layout
from specscope.engine.runtimes.ensemble import Ensemble, group_of, pipeline_of, ranks_of
from specscope.engine.runtimes.virtual import VirtualLoop
from specscope.engine.trace.events import Device
from specscope.engine.worker.jobs import CacheMemory, Connect, Facts, LoadModel, Reply
from specscope.engine.worker.shared import QBuffer
from specscope.engine.worker.worker import Worker

Work: TypeAlias = Coroutine[Any, Any, Any]
POLL_S = 0.05
"""Seconds between two looks at whether the caller's task was cancelled."""


@dataclass(frozen=True)
class RunWorkers:
    """The workers of one layout."""

    by_model: Mapping[str, tuple[Worker, ...]]
    drafters: tuple[str, ...]
    """Each drafting worker's name for its drafter."""
    devices: tuple[Device, ...]
    q_buffers: Mapping[str, QBuffer]
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Models of the layout by the name of the single worker that holds them."""

    @property
    def distinct(self) -> tuple[Worker, ...]:
        return tuple(dict.fromkeys(worker for workers in self.by_model.values() for worker in workers))

    @property
    def members(self) -> tuple[Worker, ...]:
        """Every single worker once, members of groups instead of the groups."""
        members = (worker.members if isinstance(worker, Ensemble) else (worker,) for worker in self.distinct)
        return tuple(dict.fromkeys(member for group in members for member in group))


def on_one_gpu(devices: Sequence[Device]) -> bool:
    """Return whether all devices, such as `cuda:0` and `cuda:0/2`, are one GPU."""
    return len({(device.name.split("/")[0], device.kind) for device in devices}) == 1 and (
        devices[0].kind == "cuda"
    )


class Placement:
    """Workers on devices. A worker starts, and a model loads, when a layout first needs it.

    Args:
        pool: The devices.
        base: The layout that is loaded now; the pool's if None.
    """

    def __init__(self, pool: Pool, base: Layout | None = None) -> None:
        self.pool = pool
        self.base = base or pool.base
        self.runtime, self.profile, self.details = pool.options.runtime, pool.profile, pool.details
        self.vocab_size = 0
        self._forget()
        try:
            self.workers_for(self.base)
        except BaseException:
            self.close()
            raise

    def _forget(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._groups: dict[str, Ensemble] = {}
        self._facts: dict[tuple[str, str], Facts] = {}
        self._held: list[ModelBytes] = []
        self._q_buffers: dict[str, QBuffer] = {}
        self._connected: set[str] = set()

    @property
    def workers(self) -> list[Worker]:
        return list(self._workers.values())

    @property
    def devices(self) -> list[Device]:
        return [device for worker in self.workers for device in worker.devices]

    @property
    def clock_errors(self) -> dict[str, int]:
        """Most nanoseconds by which times of each device are wrong, by its name."""
        errors = dict[str, int]()
        for (_, name), facts in self._facts.items():
            for device in self._workers[name].devices:
                errors[device.name] = max(facts.clock_error, errors.get(device.name, 0))
        return errors

    def layers(self, model: str) -> int:
        """Return the layers of a loaded model; 0 if it is not loaded or has none."""
        return next((facts.depth for (name, _), facts in self._facts.items() if name == model), 0)

    def workers_for(self, layout: Layout, head: HeadFile | None = None) -> RunWorkers:
        """Return the workers of a layout, with their models and the head, if any, loaded.

        Raises:
            UsageError: The layout needs more devices than the pool has.
            ModelError: A model cannot be loaded.
            SpecScopeError: Others use the devices.
        """
        if any(worker.ended for worker in self.workers):  # between runs: no run of anybody failed
            self.restart()
        try:
            return self._workers_for(layout, head)
        except StarterDied:  # all of its workers end with it; another one starts them
            self.restart()
            return self._workers_for(layout, head)

    def _workers_for(self, layout: Layout, head: HeadFile | None) -> RunWorkers:
        assigned = {model: each for model, each in self.pool.assign(layout).items() if each}
        if head is not None:
            assigned["drafter"] = [head_place(target, head) for target in assigned["target"]]
        drafters = drafter_names(layout, len(assigned.get("drafter", ())), head)
        missing = self._missing(assigned, drafters, head)
        self.pool.site.reserve(assigned)
        self.pool.memory.check(self.pool.parts(missing), self._held)
        for each in assigned.values():
            for member in (member for assignment in each for member in assignment.members):
                if member.name not in self._workers:
                    self._workers[member.name] = self.pool.site.start(member)
        workers = {model: tuple(map(self._worker, each)) for model, each in assigned.items()}
        # after the groups, whose ranks load parts of a model
        self._load(missing, head, assigned)
        self.vocab_size = next(
            f.vocab_size for (model, _), f in self._facts.items() if model.split()[0] == "target"
        )
        drafting = [worker.name for worker in workers.get("drafter", ())]
        self._connect(drafting)
        q_buffers = {name: self._q_buffers[name] for name in drafting}
        models = names_on_workers(assigned, drafters)
        return RunWorkers(workers, drafters, labelled_devices(assigned, drafters), q_buffers, models)

    def check_caches(self, workers: RunWorkers, run: RunSize) -> list[CacheMemory]:
        """Check that a run's KV caches fit into free memory (see `engine.cluster.memory`)."""
        return check_caches(self.workers, workers.models, self.pool.memory, self._held, run)

    def _worker(self, assignment: Assignment) -> Worker:
        name = assignment.name
        if not assignment.group:
            return self._workers[name]
        if name not in self._groups:
            members = [self._workers[member.name] for member in assignment.group]
            make = ranks_of if assignment.sharded else group_of
            self._groups[name] = pipeline_of(members) if assignment.split else make(name, members)
        return self._groups[name]

    def _missing(
        self, assigned: Mapping[str, Sequence[Assignment]], drafters: Sequence[str], head: HeadFile | None
    ) -> list[ModelPart]:
        parts = parts_on(assigned, drafters)
        loaded = [part for part in parts if head is None or part.model not in drafters]
        return [part for part in loaded if (part.name, part.place.name) not in self._facts]

    def _load(
        self,
        parts: Sequence[ModelPart],
        head: HeadFile | None,
        assigned: Mapping[str, Sequence[Assignment]],
    ) -> None:
        try:
            self._load_all([(self._job(part), part.place) for part in parts])
        finally:
            loaded = [part for part in parts if (part.name, part.place.name) in self._facts]
            self._held += self.pool.parts(loaded)
        if head is not None:  # after the target, which it belongs to
            (target,) = assigned["target"]
            beside = ModelPart("target", target, len(target.members) - 1).name
            loader = partial(load_head, str(head.path), origin=str(head.target))
            load = LoadModel(head_name(head), loader, beside=beside)
            self._load_all([(load, member) for each in assigned["drafter"] for member in each.members])

    def _job(self, part: ModelPart) -> LoadModel:
        loader, assignment = self.pool.site.loader(part.model, part.place), part.assignment
        if assignment.sharded:
            return LoadModel(part.name, loader, group=assignment.name)
        if part.stage is None:
            return LoadModel(part.name, loader)
        layers = assignment.layers[part.member] if assignment.layers else part.stage[:2]
        return LoadModel(part.name, partial(loader, stage=layers))

    def _load_all(self, jobs: Sequence[tuple[LoadModel, Assignment]]) -> None:
        """Load the models that are not loaded yet, on all workers at once."""
        loading: dict[tuple[str, str], Callable[[], Reply]] = {}
        for job, assignment in jobs:
            key = job.model, assignment.name
            if key not in self._facts and key not in loading:
                loading[key] = self._workers[assignment.name].prepare(job)
        errors = list[SpecScopeError]()
        for key, wait in loading.items():  # every worker's reply must be received
            try:
                self._facts[key] = wait().value
            except SpecScopeError as error:
                errors.append(error)
        for error in errors:
            if isinstance(error, OutOfMemory):
                halved = "--dtype bfloat16 or " if self._exact else ""
                raise OutOfMemory(f"{error}; try {halved}a smaller model (specscope plan shows the sizes)")
            raise error

    @property
    def _exact(self) -> bool:
        dtype, on_cpu = self.details.get("dtype"), self.workers[0].devices[0].kind == "cpu"
        return dtype == "float32" or (dtype == "auto" and on_cpu)

    def _connect(self, drafting: Sequence[str]) -> None:
        """Give all workers new q buffers if a worker is new or drafts for the first time.

        A q buffer can be mapped only until its handle is closed.
        """
        names = {*self._q_buffers, *drafting}
        if names == {*self._q_buffers} and self._connected == {*self._workers}:
            return
        self._q_buffers = {name: QBuffer(name, self.vocab_size) for name in names}
        try:
            job = Connect(tuple((q.name, q.path, q.shape) for q in self._q_buffers.values()))
            for wait in [worker.prepare(job) for worker in self.workers]:
                wait()
        finally:
            for q_buffer in self._q_buffers.values():
                q_buffer.close()
        self._connected = {*self._workers}

    def on_loop(self, work: Work) -> Any:
        """Run a coroutine on a new event loop of this runtime; all workers answer on it."""
        return _run_here_or_apart(self._on_loop, work)

    def _on_loop(self, work: Work) -> Any:
        with asyncio.Runner(loop_factory=VirtualLoop if self.profile else None) as runner:
            workers = self.workers
            for worker in workers:
                worker.attach(runner.get_loop())
            try:
                return runner.run(work)
            finally:
                for worker in workers:
                    worker.detach()

    def restart(self) -> None:
        for worker in self.workers:
            worker.close()
        self._forget()

    def close(self) -> None:
        self.restart()
        self.pool.site.close()


def _run_here_or_apart(run: Callable[[Work], Any], work: Work) -> Any:
    """Return `run(work)`; where a loop runs in this thread already, from a thread of its own.

    An event loop cannot start inside another one. KeyboardInterrupt and other errors raised in the
    caller cancel the work, as does a cancellation of the caller's task, which `asyncio.run` makes
    of the first Ctrl-C. The caller always waits for the thread, also after a second Ctrl-C: the
    next run needs the same workers.
    """
    if asyncio._get_running_loop() is None:
        return run(work)
    started: futures.Future[Callable[[], object]] = futures.Future()

    async def noted() -> Any:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        started.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work

    caller = asyncio.current_task()
    before = caller.cancelling() if caller else 0
    raised: BaseException | None = None
    asked = False
    with futures.ThreadPoolExecutor(1, "specscope-loop") as thread:
        ended = thread.submit(run, noted())
        while not ended.done():
            try:
                unwanted = raised is not None or (caller is not None and caller.cancelling() > before)
                if unwanted and started.done() and not asked:
                    asked = True
                    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                        started.result()()
                futures.wait([ended], POLL_S)
            except BaseException as error:  # noqa: BLE001 - raised below, once the work has ended
                raised = error
    if raised is not None:
        raise raised
    return ended.result()
