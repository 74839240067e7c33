"""Exchange of tensors between workers: of a group in fuzzy forwards, of ranks of a split model.

The workers of a group share memory with a turn counter for each worker and two buffers. In a turn,
each worker writes its attention outputs to the turn's buffer, increments its counter, and waits for
all other counters. Two buffers are enough: a worker that has reached the next turn has read the
buffer of this one. Waiting spins, because a turn takes a few microseconds and waking a sleeping
process takes longer.

Ranks (`specscope.engine.model.shard.Ranks`) form a process group. Processes on CPUs exchange
tensors by gloo, over sockets of this machine only. Processes on GPUs would use NCCL; that has never
run on a GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specscope.engine.errors import SpecScopeError
from specscope.engine.worker.shared import SharedMemory

if TYPE_CHECKING:
    from torch.distributed import Store

FLOATS = 1 << 22
"""Numbers in a buffer: the attention outputs of one group of layers for all rows."""
PATIENCE = 5.0
RANK_PATIENCE = timedelta(minutes=10)
"""The longest wait for another rank; a rank that dies ends the wait at once."""
LOOPBACK = "127.0.0.1"
_LINE = 8
"""64-bit numbers in a cache line: each worker has one line, with its turn and two stop flags."""
_PAUSE = 0.1
"""The most seconds counted between two checks: in a longer pause the machine slept."""
_SPINS = 64
"""Checks of the counters before another thread may run."""


def exchange_memory(ways: int) -> SharedMemory:
    return SharedMemory(8 * _LINE * ways + 2 * 4 * FLOATS)


class Exchange:
    """The side of one of `ways` workers; `path` is the shared memory, `patience` in seconds."""

    def __init__(self, path: str, rank: int, ways: int, patience: float = PATIENCE) -> None:
        self.rank = rank
        self.ways = ways
        self._patience = patience
        head, data = (ways, _LINE), (2, FLOATS)
        self._head = np.asarray(np.memmap(path, dtype=np.int64, mode="r+", shape=head))
        self._data = np.asarray(
            np.memmap(path, dtype=np.float32, mode="r+", offset=self._head.nbytes, shape=data)
        )
        self._turns = self._head[:, 0]
        self._lock = threading.Lock()
        self._turn = 0

    def begin(self, run: int) -> None:
        """Set the turn counter above its values in all earlier runs, finished or not."""
        self._turn = run << 32

    def swap(self, mine: Mapping[int, torch.Tensor], count: int, like: torch.Tensor) -> list[torch.Tensor]:
        """Write this worker's tensors; return all workers' tensors (see `DeviceGroup.swap`).

        Raises:
            SpecScopeError: A worker is late by `patience`, or the tensors do not fit into a buffer.
        """
        size = like.numel()
        if count * size > FLOATS:
            raise SpecScopeError(
                f"{count} attention outputs of {size} numbers do not fit into {FLOATS}; draft fewer tokens or sequences at once"
            )
        board = self._data[self._turn + 1 & 1, : count * size].reshape(count, size)
        for index, tensor in mine.items():
            board[index] = tensor.float().flatten().cpu().numpy()
        self._take_turn()
        return [
            mine[i] if i in mine else torch.from_numpy(board[i].copy()).view(like.shape).to(like)
            for i in range(count)
        ]

    def agree(self, stopped: bool) -> bool:
        """Return whether any worker was stopped; all workers get the same answer."""
        flags = self._head[:, 1 + (self._turn + 1 & 1)]
        flags[self.rank] = stopped
        self._take_turn()
        return bool(flags.any())

    def _take_turn(self) -> None:
        self._turn += 1
        self._fence()
        self._turns[self.rank] = self._turn
        others = [i for i in range(self.ways) if i != self.rank]
        waited, before, checks = 0.0, time.monotonic(), 0
        while others:
            others = [i for i in others if self._turns[i] < self._turn]
            checks += 1
            if others and checks % _SPINS == 0:
                time.sleep(0)  # let another thread run
                now = time.monotonic()
                waited, before = waited + min(now - before, _PAUSE), now
                if waited > self._patience:
                    raise SpecScopeError(
                        f"rank {others[0]} of a group of {self.ways} devices did not come within {self._patience:g} s"
                    )
        self._fence()

    def _fence(self) -> None:
        """Barrier (release, then acquire): no read or write moves past this call."""
        for _ in range(2):
            with self._lock:
                pass


class ProcessRanks:
    """The side of one of `ways` ranks, which find each other through the memory at `path`."""

    def __init__(self, path: str, rank: int, ways: int, backend: str) -> None:
        from torch.distributed import FileStore

        self.rank, self.ways = rank, ways
        self.spent = 0
        store = FileStore(path, ways)
        store.set_timeout(RANK_PATIENCE)
        self._group: Any = _GROUPS[backend](store, rank, ways)
        self.agree(False)  # connect now: later, the path may be gone
        self.spent = 0

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        self._timed(lambda: self._group.allreduce([tensor]))
        return tensor

    def join(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        tensors = [torch.empty_like(tensor) for _ in range(self.ways)]
        self._timed(lambda: self._group.allgather([tensors], [tensor.contiguous()]))
        return tensors

    def agree(self, stopped: bool) -> bool:
        votes = self.add(torch.tensor([float(stopped)], device=self._device))
        return bool(votes.item())

    @property
    def _device(self) -> str:
        return "cuda" if self._group.name() == "nccl" else "cpu"

    def _timed(self, start: Callable[[], Any]) -> None:
        """Wait for an exchange and add its time to `spent`."""
        began = time.perf_counter_ns()
        try:
            start().wait()
        except RuntimeError as error:
            why = " ".join(str(error).split())
            raise SpecScopeError(f"rank {self.rank} of {self.ways} lost another rank: {why}") from None
        finally:
            self.spent += time.perf_counter_ns() - began


def _gloo(store: Store, rank: int, ways: int) -> Any:
    from torch.distributed import ProcessGroupGloo

    gloo: Any = ProcessGroupGloo  # its stubs lack the constructor with options
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = RANK_PATIENCE
    return gloo(store, rank, ways, options)


def _nccl(store: Store, rank: int, ways: int) -> Any:
    from torch.distributed import ProcessGroupNCCL

    return ProcessGroupNCCL(store, rank, ways, ProcessGroupNCCL.Options())


_GROUPS: dict[str, Callable[[Store, int, int], Any]] = {"gloo": _gloo, "nccl": _nccl}
