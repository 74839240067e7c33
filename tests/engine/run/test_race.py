"""A race: results in the order in which they are ready, and work that is called off one by one."""

from __future__ import annotations

import asyncio

from specscope.engine.run.run import Race


def test_stopped_work_has_no_result_even_if_it_was_ready():
    ended: list[str] = []

    async def work(name: str, wait: float) -> str:
        try:
            await asyncio.sleep(wait)
            return name
        finally:
            ended.append(name)

    async def play() -> list[str]:
        taken: list[str] = []
        async with Race() as race:
            first, slow = race.start(work("first", 0)), race.start(work("slow", 60))
            race.start(work("second", 0.01))
            await first  # ready, but not taken
            race.stop(first)
            race.stop(slow)
            race.stop(None)
            async for results in race:
                taken += results
        return taken

    assert asyncio.run(play()) == ["second"]
    assert sorted(ended) == ["first", "second", "slow"]
