"""What workers share: the exchange of a group, and memory without a file."""

from __future__ import annotations

import os
import random
import resource
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specscope.engine.errors import SpecScopeError
from specscope.engine.worker import exchange, shared
from specscope.engine.worker.exchange import Exchange, exchange_memory
from specscope.engine.worker.shared import SharedMemory


@pytest.fixture
def join():
    """Return a function that joins two or more workers to one exchange."""

    def make(ways, patience=5.0):
        with closing(exchange_memory(ways)) as memory:
            return [Exchange(memory.path, rank, ways, patience) for rank in range(ways)]

    return make


def together(workers, work):
    """Run `work` for all workers at the same time; return the list of results."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(work, workers))


def value(turn, index):
    return torch.full((3, 5), float(1000 * turn + index)) + torch.arange(5) / 8


@pytest.mark.parametrize(("ways", "count"), [(2, 2), (2, 5), (3, 4), (4, 2)])
def test_all_workers_get_the_tensors_of_the_turn(join, ways, count):
    like = torch.zeros(3, 5)

    def work(worker):
        luck = random.Random(worker.rank)
        for turn in range(400):
            if luck.random() < 0.05:
                time.sleep(luck.random() / 500)
            mine = {i: value(turn, i) for i in range(worker.rank, count, ways)}
            tensors = worker.swap(mine, count, like)
            assert len(tensors) == count
            for i, tensor in enumerate(tensors):
                assert torch.equal(tensor, value(turn, i)), (turn, i)
        return turn

    assert together(join(ways), work) == [399] * ways


def test_all_workers_stop_in_the_turn_in_which_one_was_stopped(join):
    def work(worker):
        return [worker.agree(stopped=worker.rank == 1 and turn == 7) for turn in range(12)]

    assert together(join(3), work) == [[turn == 7 for turn in range(12)]] * 3


def test_turns_of_an_earlier_run_do_not_count(join):
    one, two = join(2, patience=0.2)
    one.begin(1), two.begin(1)
    together(
        [one, two], lambda worker: worker.swap({worker.rank: value(1, worker.rank)}, 2, torch.zeros(3, 5))
    )
    with pytest.raises(SpecScopeError, match="rank 0"):
        two.agree(stopped=False)  # rank 0 has ended this run
    one.begin(2), two.begin(2)
    with pytest.raises(SpecScopeError, match=r"rank 1 of a group of 2 devices did not come within 0\.2 s"):
        one.swap({0: value(2, 0)}, 2, torch.zeros(3, 5))
    one.begin(3), two.begin(3)
    got = together(
        [one, two], lambda worker: worker.swap({worker.rank: value(3, worker.rank)}, 2, torch.zeros(3, 5))
    )
    assert all(torch.equal(got[rank][i], value(3, i)) for rank in (0, 1) for i in (0, 1))


def test_a_late_worker_is_named(join):
    _, two, three = join(3, patience=0.3)

    def work(worker):
        with pytest.raises(
            SpecScopeError, match=r"rank 0 of a group of 3 devices did not come within 0\.3 s"
        ):
            worker.agree(stopped=False)

    together([two, three], work)


def test_half_precision_is_exchanged_unchanged(join):
    like = torch.zeros(2, 4, dtype=torch.bfloat16)
    sent = [torch.randn(2, 4).bfloat16() for _ in range(2)]
    got = together(join(2), lambda worker: worker.swap({worker.rank: sent[worker.rank]}, 2, like))
    assert all(torch.equal(got[rank][i], sent[i]) for rank in (0, 1) for i in (0, 1))


def test_tensors_that_do_not_fit_are_an_error(join, monkeypatch):
    monkeypatch.setattr(exchange, "FLOATS", 64)
    one, _ = join(2)
    with pytest.raises(SpecScopeError, match="3 attention outputs of 40 numbers do not fit into 64"):
        one.swap({}, 3, torch.zeros(4, 10))


# Shared memory: it uses neither /dev/shm nor a file, and an error names the size.


def mapped(memory, size):
    return np.memmap(memory.path, dtype=np.uint8, mode="r+", shape=size)


def test_shared_memory_has_no_file_name_and_is_not_in_dev_shm():
    folders = (Path("/dev/shm"), Path(shared.tempfile.gettempdir()))
    before = [set(folder.glob("specscope-*")) for folder in folders]
    with closing(SharedMemory(1 << 20)) as memory:
        one, two = mapped(memory, 1 << 20), mapped(memory, 1 << 20)
        assert os.stat(memory.path).st_dev != os.stat("/dev/shm").st_dev
        assert [set(folder.glob("specscope-*")) for folder in folders] == before
    two[-1] = 7
    assert one[-1] == 7, "mappings stay after closing"


def test_refused_memory_is_a_one_line_error_with_its_size():
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(
            SpecScopeError, match=r"cannot share 67,108,864 bytes of memory .* \(File too large\)"
        ):
            SharedMemory(1 << 26)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_without_anonymous_files_the_disk_must_have_room_and_the_file_is_removed(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(shared.tempfile, "tempdir", str(tmp_path))
    with closing(SharedMemory(4096)) as memory:
        one, two = mapped(memory, 4096), mapped(memory, 4096)
        two[0] = 3
        assert one[0] == 3
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=65536))
    with pytest.raises(SpecScopeError, match=r"share 131,072 bytes in .*, which has 65,536 free; free some"):
        SharedMemory(131072)
    assert not list(tmp_path.iterdir())
