"""Out of memory: one line with what was asked for, is free and would fit; the next run works."""

import contextlib
import pickle
import re
import resource
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch

import specscope
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster import local_devices
from specscope.engine.errors import OutOfMemory, SpecScopeError, WorkerDied
from specscope.engine.layout import Packing
from specscope.engine.runtimes.ensemble import merged
from specscope.engine.trace.events import Footer
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker import memory
from specscope.engine.worker.forwards import Forwards
from specscope.engine.worker.jobs import Begin, LoadModel, Reply
from specscope.engine.worker.memory import out_of_memory
from tests.engine.worker.harness import chains, scripted_cluster

JOB = chains("drafter", (), ())
FORWARDS = Forwards()
FORWARDS.run = Begin(Sampling(), 2, 99, 9, Packing())
PROMPT = [5, 6, 7, 8]
HUGE = 2**50


def numpy_fails(*_, **__):
    np.zeros(HUGE, dtype=np.uint8)


CUDA = "CUDA out of memory. Tried to allocate 1048576.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
ASKED = "1125899.9 GB more were asked for, "


def raised(fail):
    """Return the error of a function whose frame holds a tensor."""

    def work():
        kept = torch.ones(7)
        fail()
        del kept

    with pytest.raises((MemoryError, RuntimeError)) as caught:
        work()
    return caught.value


@pytest.mark.parametrize(
    ("fail", "asked"),
    [
        (lambda: torch.empty(HUGE, dtype=torch.uint8), ASKED),
        (numpy_fails, ASKED),
        (Mock(side_effect=torch.OutOfMemoryError(CUDA)), ASKED),
        (Mock(side_effect=MemoryError), ""),
        (Mock(side_effect=RuntimeError(CUBLAS)), ""),
    ],
)
def test_errors_of_allocators_name_device_model_bytes_and_what_is_free(monkeypatch, fail, asked):
    monkeypatch.setattr(memory, "_free", lambda: 3_000_000)
    error = raised(fail)
    found = out_of_memory(error, "cpu:1/drafter", JOB, FORWARDS)
    assert str(found) == f"cpu:1 has no memory for a forward of the drafter: {asked}3.0 MB are free"
    trace = error.__traceback__
    while trace is not None:
        assert "kept" not in trace.tb_frame.f_locals, "intermediate results are freed"
        trace = trace.tb_next
    load = out_of_memory(raised(fail), "cuda:0", LoadModel("target", Forwards), FORWARDS)
    assert str(load).startswith("cuda:0 has no memory for loading the target: ")
    again = pickle.loads(pickle.dumps(found))
    assert (str(again), vars(again)) == (str(found), vars(found))
    other = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert out_of_memory(other, "cpu:0", JOB, FORWARDS) is None


def test_a_shortage_explains_the_errors_of_the_other_members():
    shortage, death, other = OutOfMemory("no memory", 5, 1), WorkerDied("killed"), SpecScopeError("late")
    with pytest.raises(WorkerDied, match="rank 1 of 2: killed"):
        merged("cpu:0", JOB, [other, WorkerDied("killed")])
    with pytest.raises(OutOfMemory, match="rank 2 of 3: no memory") as error:
        merged("cpu:0", JOB, [Reply((), ()), death, shortage])
    assert error.value.budget == 5


def test_in_virtual_time_a_shortage_ends_the_run_and_the_next_one_works():
    fails, events = [numpy_fails], list[object]()

    def target(path):
        if len(path) > 9 and fails:
            fails.pop()()
        return 7

    with scripted_cluster(target, lambda path: 7) as cluster:
        with pytest.raises(OutOfMemory, match="gpu-target has no memory for a forward of the target"):
            cluster.run("speculative", PROMPT, limits=Limits(12), listener=events.append)
        assert isinstance(events[-1], Footer)
        assert events[-1].status == "failed"
        assert cluster.run("speculative", PROMPT, limits=Limits(12)).status == "done"


@contextlib.contextmanager
def limited(pid, more):
    """Let a process take `more` bytes of address space."""
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    size = psutil.Process(pid).memory_info().vms + more
    resource.prlimit(pid, resource.RLIMIT_AS, (size, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def test_a_process_without_memory_ends_the_run_and_not_itself():
    pair = replace(Pair.find("bundled"), drafter_path=None)
    with specscope.open(pair, device="cpu") as cluster:
        (worker,) = cluster.placement.workers
        text = cluster.run("autoregressive", PROMPT, limits=Limits(8)).text
        pid = worker.pid
        with limited(pid, 20_000_000):
            message = (
                r"cpu:\d+ has no memory for a forward of the target: 45\.\d MB more were asked for, "
                r"[12]\d\.\d MB are free; try --max-new-tokens (\d+)"
            )
            with pytest.raises(OutOfMemory, match=message) as error:
                cluster.run("autoregressive", PROMPT, limits=Limits(2100))
            assert "\n" not in str(error.value)
            new = int(re.search(message, str(error.value))[1])
            assert 400 < new < 1000
            assert cluster.run("autoregressive", PROMPT, limits=Limits(new // 2)).status == "done"
        assert cluster.run("autoregressive", PROMPT, limits=Limits(8)).text == text
        assert worker.pid == pid


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [("auto", "try --dtype bfloat16 or a smaller model"), ("bfloat16", "try a smaller model")],
)
def test_a_load_without_memory_says_what_takes_less(monkeypatch, dtype, advice):
    real = local_devices.load

    def load(path, **options):
        return numpy_fails() if options["name"] == "drafter" else real(path, **options)

    monkeypatch.setattr(local_devices, "load", load)
    message = rf"cpu:\d+ has no memory for loading the drafter: .* are free; {advice}"
    with pytest.raises(OutOfMemory, match=message):
        specscope.open("bundled", device="cpu", runtime="local-thread", dtype=dtype)
