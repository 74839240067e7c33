"""Worker processes: death and SIGSTOP in a run, the end of a cluster, and a broken model."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import ModelError, WorkerDied
from specscope.engine.trace.events import Footer, Span
from specscope.engine.types import Limits
from tests.engine.runtimes.processes import PROMPT, SPLIT, TWO, at_span, gone, ranks, servers, stages

KILLED = (signal.SIGKILL, "was killed by SIGKILL")
STOPPED = (signal.SIGSTOP, "was stopped by a signal and was killed")
# method, config, workers' function, victim's key, spans before the signal, (signal, error)
VICTIMS = {
    "the drafter": ("speculative", {}, servers, "drafter", 8, KILLED),
    "the target of a pool": ("dsi", {}, servers, "target", 8, STOPPED),
    "the first stage": ("pearl", SPLIT, stages, 0, 30, STOPPED),
    "the last stage": ("pearl", SPLIT, stages, 1, 30, KILLED),
    "the first rank": ("easyspec", TWO, ranks, 0, 30, KILLED),
    "the second rank": ("easyspec", TWO, ranks, 1, 30, STOPPED),
}


def shared_memory():
    """Return the handles of shared memory that this process holds."""
    handles = Path("/proc/self/fd").iterdir()
    return {handle.name for handle in handles if handle.is_symlink() and "specscope" in os.readlink(handle)}


def works(cluster, method, config):
    """Return whether a short run on the cluster ends with the status done."""
    return cluster.run(method, PROMPT, config=config, limits=Limits(4)).status == "done"


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_or_stopped_worker_fails_its_run_with_an_error_that_names_it(victim):
    method, config, workers, key, spans, (number, how) = VICTIMS[victim]
    handles = shared_memory()  # of clusters that other tests keep open
    with specscope.open(device="cpu") as cluster:
        assert works(cluster, method, config), "also after the cluster of another victim"
        pid, events = workers(cluster)[key].pid, list[object]()
        others = [worker.pid for worker in servers(cluster).values() if worker.pid != pid]
        assert len(others) == 1
        assert shared_memory() <= handles, "the handles of mapped memory are closed"
        kill = at_span(spans, lambda: os.kill(pid, number))

        def listen(event):
            events.append(event)
            kill(event)

        start = time.perf_counter()
        with pytest.raises(WorkerDied, match=rf"CPU core \d+ \(process {pid}\) {how}"):
            cluster.run(method, PROMPT, config=config, limits=Limits(2000), listener=listen)
        assert time.perf_counter() - start < 10
        assert isinstance(events[-1], Footer)
        assert events[-1].status == "failed"
        assert how in events[-1].error
        assert sum(isinstance(e, Span) for e in events) >= spans, "the trace is kept"
        assert gone(pid)
        assert all(map(psutil.pid_exists, others))
        assert works(cluster, method, config), "with new workers"
    assert all(map(gone, others)), "closing ends all processes"
    assert shared_memory() <= handles


def test_a_model_that_cannot_be_loaded_is_an_error_at_opening(tmp_path):
    broken = tmp_path / "target"
    broken.mkdir()
    for file in Path(Pair.find("bundled").target_path).iterdir():
        data = file.read_bytes()
        (broken / file.name).write_bytes(data[:5000] if file.suffix == ".safetensors" else data)
    with pytest.raises(ModelError, match="safetensors"):
        specscope.open(target=str(broken), device="cpu")
