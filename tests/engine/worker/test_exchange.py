"""The exchange of a group: each turn has its own values, and a late worker is named in an error."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch

from specscope.engine.errors import SpecScopeError
from specscope.engine.worker import exchange
from specscope.engine.worker.exchange import Exchange, exchange_memory


@pytest.fixture
def join():
    """Return a function that joins two or more workers to one exchange."""

    def make(ways: int, patience: float = 5.0) -> list[Exchange]:
        with closing(exchange_memory(ways)) as memory:
            return [Exchange(memory.path, rank, ways, patience) for rank in range(ways)]

    return make


def together(workers: list[Exchange], work):
    """Run `work` for all workers at the same time; return the list of results."""
    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(work, workers))


def value(turn: int, index: int) -> torch.Tensor:
    return torch.full((3, 5), float(1000 * turn + index)) + torch.arange(5) / 8


@pytest.mark.parametrize(("ways", "count"), [(2, 2), (2, 5), (3, 4), (4, 2)])
def test_all_workers_get_the_tensors_of_the_turn(join, ways, count):
    like = torch.zeros(3, 5)

    def work(worker: Exchange) -> int:
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
    def work(worker: Exchange) -> list[bool]:
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

    def work(worker: Exchange) -> None:
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
