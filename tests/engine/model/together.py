"""Ranks of a split model in one process: threads that meet at every exchange of tensors."""

import threading
from typing import Any

import torch


class Meeting:
    """The place where N threads exchange tensors."""

    def __init__(self, ways):
        self.barrier = threading.Barrier(ways, timeout=60)
        self.tensors: list[Any] = [None] * ways


class ThreadRanks:
    """One thread's side of a meeting (`specscope.engine.model.shard.Ranks`)."""

    def __init__(self, meeting, rank):
        self.rank, self.ways = rank, len(meeting.tensors)
        self.spent = 0
        self.calls: list[str] = []
        """Names of the functions that were called, in order."""
        self._meeting = meeting

    def _exchange(self, name, value):
        self.calls.append(name)
        self.spent += 1
        self._meeting.tensors[self.rank] = value
        self._meeting.barrier.wait()
        values = list(self._meeting.tensors)
        self._meeting.barrier.wait()
        return values

    def add(self, tensor):
        return torch.stack(self._exchange("add", tensor)).sum(0)

    def join(self, tensor):
        return self._exchange("join", tensor)

    def agree(self, stopped):
        return any(self._exchange("agree", stopped))


def on_ranks(ways, act):
    """Return what `act` returns on each of N ranks that run at once; an error of one is raised."""
    meeting = Meeting(ways)
    results: list[Any] = [None] * ways
    errors: list[BaseException] = []

    def run(rank):
        try:
            results[rank] = act(ThreadRanks(meeting, rank))
        except BaseException as error:  # noqa: BLE001
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ways)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results
