"""What workers of a group exchange: every turn's own values, whoever is slow; and an error that names who does not come."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch

from engine.errors import SpecScopeError
from engine.workers import exchange
from engine.workers.exchange import Exchange, exchange_memory


@pytest.fixture
def join():
    """Make the two or more ends of one exchange."""

    def make(ways: int, patience: float = 5.0) -> list[Exchange]:
        with closing(exchange_memory(ways)) as memory:
            return [Exchange(memory.path, rank, ways, patience) for rank in range(ways)]

    return make


def together(ends: list[Exchange], work):
    """Run `work` for each end at the same time; return what each returned."""
    with ThreadPoolExecutor(len(ends)) as pool:
        return list(pool.map(work, ends))


def value(turn: int, index: int) -> torch.Tensor:
    return torch.full((3, 5), float(1000 * turn + index)) + torch.arange(5) / 8


@pytest.mark.parametrize(("ways", "count"), [(2, 2), (2, 5), (3, 4), (4, 2)])
def test_all_get_what_each_wrote_in_that_turn(join, ways, count):
    like = torch.zeros(3, 5)

    def work(end: Exchange) -> int:
        luck = random.Random(end.rank)
        for turn in range(400):
            if luck.random() < 0.05:
                time.sleep(luck.random() / 500)
            mine = {i: value(turn, i) for i in range(end.rank, count, ways)}
            got = end.swap(mine, count, like)
            assert len(got) == count
            for i, tensor in enumerate(got):
                assert torch.equal(tensor, value(turn, i)), (turn, i)
        return turn

    assert together(join(ways), work) == [399] * ways


def test_all_agree_to_stop_when_one_was_asked(join):
    def work(end: Exchange) -> list[bool]:
        return [end.agree(stopped=end.rank == 1 and turn == 7) for turn in range(12)]

    assert together(join(3), work) == [[turn == 7 for turn in range(12)]] * 3


def test_turns_of_an_earlier_run_are_not_taken_for_new_ones(join):
    one, two = join(2, patience=0.2)
    one.begin(1), two.begin(1)
    together([one, two], lambda end: end.swap({end.rank: value(1, end.rank)}, 2, torch.zeros(3, 5)))
    with pytest.raises(SpecScopeError, match="rank 0"):
        two.agree(stopped=False)  # the run ended there for rank 0
    one.begin(2), two.begin(2)
    with pytest.raises(SpecScopeError, match=r"rank 1 of a group of 2 devices did not come within 0\.2 s"):
        one.swap({0: value(2, 0)}, 2, torch.zeros(3, 5))
    one.begin(3), two.begin(3)
    got = together([one, two], lambda end: end.swap({end.rank: value(3, end.rank)}, 2, torch.zeros(3, 5)))
    assert all(torch.equal(got[rank][i], value(3, i)) for rank in (0, 1) for i in (0, 1))


def test_who_does_not_come_is_named(join):
    _, two, three = join(3, patience=0.3)

    def work(end: Exchange) -> None:
        with pytest.raises(
            SpecScopeError, match=r"rank 0 of a group of 3 devices did not come within 0\.3 s"
        ):
            end.agree(stopped=False)

    together([two, three], work)


def test_half_precision_arrives_unchanged(join):
    like = torch.zeros(2, 4, dtype=torch.bfloat16)
    sent = [torch.randn(2, 4).bfloat16() for _ in range(2)]
    got = together(join(2), lambda end: end.swap({end.rank: sent[end.rank]}, 2, like))
    assert all(torch.equal(got[rank][i], sent[i]) for rank in (0, 1) for i in (0, 1))


def test_more_than_the_file_holds_is_said(join, monkeypatch):
    monkeypatch.setattr(exchange, "FLOATS", 64)
    one, _ = join(2)
    with pytest.raises(SpecScopeError, match="3 attention outputs of 40 numbers do not fit into 64"):
        one.swap({}, 3, torch.zeros(4, 10))
