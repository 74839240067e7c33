"""Worker processes for tests: the workers of a layout, and a listener that acts inside a run."""

import time
from dataclasses import replace

import psutil

from specscope.engine.cluster.local_devices import devices_of
from specscope.engine.layout import LayerParallel, Layout, Pipelined
from specscope.engine.runtimes.ensemble import Ensemble
from specscope.engine.trace.events import Span

PROMPT = "Tell me a story about a lighthouse."
SPLIT = {"gamma": 4, "placement": "pipeline", "stages": 2}
TWO = {"devices": 2, "size": 2}


def servers(cluster):
    """Return the drafter's worker and the target's."""
    workers = cluster.placement.workers_for(cluster.placement.base).by_model
    return {model: worker for model, (worker,) in workers.items()}


def stages(cluster):
    """Return the workers of a pipelined target."""
    (worker,) = cluster.placement.workers_for(Layout(Pipelined(2))).by_model["target"]
    assert isinstance(worker, Ensemble)
    return worker.members


def ranks(cluster):
    """Return the workers of a group that drafts together."""
    (group,) = cluster.placement.workers_for(Layout(LayerParallel(2))).by_model["drafter"]
    assert isinstance(group, Ensemble)
    return group.members


def six_cores(device):
    """Return six devices on the cores that this machine has."""
    cores = devices_of(device)
    return tuple(replace(cores[i % len(cores)], name=f"{cores[i % len(cores)].name}/{i}") for i in range(6))


def worker_processes(program):
    """Return the worker processes of a program, in the order of their start."""
    started = psutil.Process(program).children(recursive=True)
    ours = [process for process in started if "specscope.engine.runtimes" in process.cmdline()]
    workers = [p for p in ours if p.ppid() != program or p.cmdline()[-1] != "forks"]
    return sorted(workers, key=lambda process: (process.create_time(), process.pid))


def gone(pid):
    """Return whether a process has ended and its id is free: its parent has waited for it."""
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.005)  # a worker's parent is told of its end
    return not psutil.pid_exists(pid)


def rested(process):
    """Return the CPU seconds of a process once it rests."""
    spent = -1.0
    while spent != (spent := sum(process.cpu_times()[:2])):
        time.sleep(0.3)
    return spent


def at_span(count, act):
    """Return a listener that calls `act` at span number `count`."""
    spans = 0

    def listen(event):
        nonlocal spans
        spans += isinstance(event, Span)
        if spans == count and isinstance(event, Span):
            act()

    return listen
