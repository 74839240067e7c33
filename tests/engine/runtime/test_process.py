"""Worker processes: death, cancel, and what stays behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import engine
from engine.errors import ModelError, WorkerDied
from engine.runtime.events import Footer, Span
from engine.types import Limits

pytestmark = pytest.mark.alone

PROMPT = "Tell me a story about a lighthouse."


def _workers(cluster):
    workers = cluster.placement.crew(cluster.placement.base).workers
    return {model: worker for model, (worker,) in workers.items()}


@pytest.mark.parametrize(
    ("method", "model"), [("speculative", "drafter"), ("pearl", "target"), ("dsi", "target")]
)
def test_a_killed_worker_ends_its_run_with_an_error_that_names_it(method, model):
    events: list[object] = []
    with engine.open(device="cpu") as cluster:
        assert cluster.c > 1  # measured before the worker dies
        worker = _workers(cluster)[model]

        def listen(event: object) -> None:
            events.append(event)
            if isinstance(event, Span) and sum(isinstance(e, Span) for e in events) == 8:
                os.kill(worker.pid, signal.SIGKILL)

        start = time.perf_counter()
        with pytest.raises(WorkerDied, match=rf"CPU core \d+ \(process {worker.pid}\) was killed by SIGKILL"):
            cluster.run(method, PROMPT, limits=Limits(2000), listener=listen)
        assert time.perf_counter() - start < 10
        assert isinstance(events[-1], Footer)
        assert events[-1].status == "failed"
        assert "SIGKILL" in events[-1].error
        with pytest.raises(WorkerDied):
            cluster.run(method, PROMPT, limits=Limits(4))
    with engine.open(device="cpu") as cluster:
        assert cluster.run("speculative", PROMPT, limits=Limits(4)).status == "done"


def test_cancel_stops_both_devices_within_one_forward():
    with engine.open(device="cpu") as cluster:
        stop, spans = threading.Event(), []
        at = []

        def listen(event: object) -> None:
            if isinstance(event, Span):
                spans.append(event)
                if len(spans) == 20:
                    at.append(time.perf_counter_ns())
                    stop.set()

        began = time.perf_counter_ns()
        trace = cluster.run(
            "pearl", PROMPT, config={"gamma": 32}, limits=Limits(2000), listener=listen, cancel=stop
        )
        assert trace.status == "cancelled"
        asked = at[0] - began
        # 20 ms to notice, then at most the forward under way; a chunk of 32 drafts alone would take longer
        late = [s for s in trace.spans if s.start > asked + 60_000_000]
        assert not late


def test_nothing_is_left_behind():
    before = set(Path("/dev/shm").glob("specscope-*"))
    with engine.open(device="cpu") as cluster:
        pids = [w.pid for w in _workers(cluster).values()]
        assert set(Path("/dev/shm").glob("specscope-*")) == before, "the slab has no name once it is mapped"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_model_that_cannot_be_loaded_is_said_at_opening(tmp_path):
    from engine.model.pair import Pair

    good = Pair.find("bundled")
    broken = tmp_path / "target"
    broken.mkdir()
    for file in Path(good.target_path).iterdir():
        data = file.read_bytes()
        (broken / file.name).write_bytes(data[:5000] if file.suffix == ".safetensors" else data)
    with pytest.raises(ModelError, match="safetensors"):
        engine.open(target=str(broken), drafter=str(good.drafter_path), device="cpu")
