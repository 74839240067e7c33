"""The process group of a model that is split by tensors (`engine.model.shard.Ranks`).

Processes on CPUs exchange tensors by gloo, over sockets of this machine only. Processes on GPUs
would use NCCL; that has never run on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from engine.errors import SpecScopeError

if TYPE_CHECKING:
    from torch.distributed import Store

PATIENCE = timedelta(minutes=10)
"""The longest wait for another rank; a rank that dies ends the wait at once."""
LOOPBACK = "127.0.0.1"


class ProcessRanks:
    """One process's side of the group.

    Args:
        path: Path of the memory through which the ranks find each other.
        rank: Number of this rank, from 0.
        ways: Number of ranks.
        backend: `gloo` or `nccl`.
    """

    def __init__(self, path: str, rank: int, ways: int, backend: str) -> None:
        from torch.distributed import FileStore

        self.rank, self.ways = rank, ways
        self.spent = 0
        store = FileStore(path, ways)
        store.set_timeout(PATIENCE)
        self._group: Any = _GROUPS[backend](store, rank, ways)
        self.agree(False)  # connect now: later, the path may be gone
        self.spent = 0

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors, computed in place."""
        self._timed(lambda: self._group.allreduce([tensor]))
        return tensor

    def join(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, in order of rank."""
        tensors = [torch.empty_like(tensor) for _ in range(self.ways)]
        self._timed(lambda: self._group.allgather([tensors], [tensor.contiguous()]))
        return tensors

    def agree(self, stopped: bool) -> bool:
        """Return whether any rank was stopped."""
        votes = self.add(torch.tensor([float(stopped)], device=self._device))
        return bool(votes.item())

    @property
    def _device(self) -> str:
        return "cuda" if self._group.name() == "nccl" else "cpu"

    def _timed(self, start: Callable[[], Any]) -> None:
        """Wait for an exchange and add its time to `spent`.

        Raises:
            SpecScopeError: Another rank is gone or late.
        """
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
    options._timeout = PATIENCE
    return gloo(store, rank, ways, options)


def _nccl(store: Store, rank: int, ways: int) -> Any:
    from torch.distributed import ProcessGroupNCCL

    return ProcessGroupNCCL(store, rank, ways, ProcessGroupNCCL.Options())


_GROUPS: dict[str, Callable[[Store, int, int], Any]] = {"gloo": _gloo, "nccl": _nccl}
