"""A device shared by drafter and target: exact equal shares, and PEARL on it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.runtimes.virtual import Processor, VirtualLoop
from specscope.engine.types import Limits, Sampling
from tests.engine.worker.harness import Flat, scripted_cluster


def ends(pieces: list[tuple[int, int]]) -> list[int]:
    """Return the end of each (start, microseconds) forward on one device."""
    loop, processor = VirtualLoop(), Processor()
    done: dict[int, int] = {}

    async def one(i: int, start: int, us: int) -> None:
        await loop.until(start)
        await processor.work(loop.clock, us)
        done[i] = loop.clock.now

    async def everything() -> None:
        for task in [loop.create_task(one(i, *piece)) for i, piece in enumerate(pieces)]:
            await task

    try:
        loop.run_until_complete(everything())
    finally:
        loop.close()
    return [done[i] for i in range(len(pieces))]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([(0, 100)], [100]),
        ([(0, 100), (0, 100)], [200, 200]),
        ([(0, 100), (0, 300)], [200, 400]),
        ([(0, 100), (50, 100)], [150, 200]),
        ([(0, 10), (0, 10), (0, 10)], [30, 30, 30]),
        ([(0, 100), (100, 100)], [100, 200]),
    ],
)
def test_equal_shares(pieces, expected):
    assert ends(pieces) == expected


def slowly(pieces: list[tuple[int, int]]) -> list[Fraction]:
    """Return the exact ends, computed from event to event in fractions."""
    now, left, waiting = Fraction(0), dict[int, Fraction](), dict(enumerate(pieces))
    done: dict[int, Fraction] = {}
    while waiting or left:
        arrivals = [Fraction(start) for start, _ in waiting.values()]
        finish = now + min(left.values()) * len(left) if left else None
        then = min([*arrivals, *([finish] if finish is not None else [])])
        for i in left:
            left[i] -= (then - now) / len(left)
        now = then
        for i in [i for i, rest in left.items() if rest == 0]:
            done[i] = now
            del left[i]
        for i in [i for i, (start, _) in waiting.items() if start <= now]:
            left[i] = Fraction(waiting.pop(i)[1])
    return [done[i] for i in range(len(pieces))]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), min_size=1, max_size=5))
def test_any_arrivals_end_within_a_microsecond_per_piece_of_the_exact_time(pieces):
    for mine, exact in zip(ends(pieces), slowly(pieces), strict=True):
        assert 0 <= mine - exact <= len(pieces)


def next_token(path) -> int:
    return (int(path[-1]) * 7 + 3) % 50 + 10


def test_pearl_on_one_device_takes_the_time_of_both_one_after_the_other():
    # 4 drafts of 250 during a forward of 1000 take 1000 on two devices and 2000 on one.
    with scripted_cluster(next_token, next_token, Flat(1000, 250)) as cluster:
        limits = Limits(21)
        apart = cluster.run("pearl", [1, 2, 3], config={"gamma": 4}, limits=limits)
        shared = cluster.run(
            "pearl", [1, 2, 3], config={"gamma": 4, "placement": "co-located"}, limits=limits
        )
    assert shared.token_ids() == apart.token_ids()
    assert [(r.mode, r.emitted) for r in shared.rounds] == [(r.mode, r.emitted) for r in apart.rounds]
    prefill = (1000, 1250)  # both models at once: 1000 apart; 250 at half speed, then the rest, on one device
    assert apart.commits[-1].time == 1000 * (prefill[0] + 6 * 1000)
    # the last round has room for one draft only
    assert shared.commits[-1].time == 1000 * (prefill[1] + 5 * 2000 + 1250)
    assert {d.role for d in shared.header.devices} == {"drafter+target"}


def test_sampled_text_does_not_depend_on_the_placement():
    with scripted_cluster(next_token, next_token, Flat(1000, 250)) as cluster:
        texts = {
            cluster.run(
                "pearl",
                [1, 2, 3],
                config={"gamma": 3, "placement": placement},
                sampling=Sampling(1.0),
                limits=Limits(12),
            ).token_ids()[-1]
            for placement in ("separate", "co-located")
        }
    assert len(texts) == 1
