"""What the workers of a group exchange in a fuzzy forward.

They use shared memory with turn counters and two buffers.

Each worker writes its part into the buffer of the turn, raises its counter, and waits until all counters are there. Two
buffers are enough: nobody writes into one again before all have read it, which their next turn tells. Waiting spins: a
turn is a few microseconds of work, waking a sleeping process takes longer than that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np
import torch

from engine.errors import SpecScopeError
from engine.workers.shared import Shared

FLOATS = 1 << 22
"""Numbers in a buffer: the attention outputs of one group of layers, all rows together."""
PATIENCE = 5.0
"""Seconds to wait for the others."""
_LINE = 8
"""64-bit numbers in a cache line: each worker has one of its own for its turn and what it says of stopping."""
_PAUSE = 0.1
"""Seconds between two looks that count at most; during a longer pause the machine slept."""
_SPINS = 64
"""Looks at the others' counters before the processor is offered to somebody else."""


def exchange_memory(ways: int) -> Shared:
    """Return the memory that a group of so many workers exchanges through."""
    return Shared(8 * _LINE * ways + 2 * 4 * FLOATS)


class Exchange:
    """One worker's side.

    Args:
        path: Of the shared memory.
        rank: Which of the workers this one is, from 0.
        ways: How many they are.
        patience: Seconds to wait for the others.
    """

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
        """Start counting turns anew, behind all of earlier runs, however those ended."""
        self._turn = run << 32

    def swap(self, mine: Mapping[int, torch.Tensor], count: int, like: torch.Tensor) -> list[torch.Tensor]:
        """Write this worker's tensors and return everybody's; see `engine.model.fuzzy.DeviceGroup`.

        Raises:
            SpecScopeError: A worker does not come, or there is more to exchange than the file holds.
        """
        size = like.numel()
        if count * size > FLOATS:
            raise SpecScopeError(
                f"{count} attention outputs of {size} numbers do not fit into {FLOATS}; draft fewer tokens at once"
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
        """Return whether any worker was asked to stop; all get the same answer.

        Raises:
            SpecScopeError: A worker does not come.
        """
        says = self._head[:, 1 + (self._turn + 1 & 1)]
        says[self.rank] = stopped
        self._take_turn()
        return bool(says.any())

    def _take_turn(self) -> None:
        """Tell that this worker has written, and wait until all have."""
        self._turn += 1
        self._fence()
        self._turns[self.rank] = self._turn
        others = [i for i in range(self.ways) if i != self.rank]
        waited, before, looks = 0.0, time.monotonic(), 0
        while others:
            others = [i for i in others if self._turns[i] < self._turn]
            looks += 1
            if others and looks % _SPINS == 0:
                time.sleep(0)  # lets another thread run, too
                now = time.monotonic()
                waited, before = waited + min(now - before, _PAUSE), now
                if waited > self._patience:
                    raise SpecScopeError(
                        f"rank {others[0]} of a group of {self.ways} devices did not come within {self._patience:g} s"
                    )
        self._fence()

    def _fence(self) -> None:
        """Keep the processor from moving reads or writes across this line: a release followed by an acquire is a barrier."""
        for _ in range(2):
            with self._lock:
                pass
