"""Requests that arrive while others decode.

Continuous batching with chunked prefill. A request waits for a free KV slot. Then its
prompt is cached in chunks, each in the forward that verifies the drafts of the others
(Sarathi-Serve, arXiv:2403.02310). The logits of the prompt's last token give the first token, as in
vLLM. Then its sequence decodes: the method's own coroutine, which sees a run of this sequence
alone. The coroutines run in lockstep: when all of them wait for a model, their drafts are one call,
and so are their verifications. A sequence that ends frees its slot (Orca, OSDI 2022).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from specscope.engine.bounds import MOST_SEQUENCES
from specscope.engine.errors import UsageError, named_fields, shown
from specscope.engine.layout import LayerParallel, Layout, Packing, Pipelined, Separate
from specscope.engine.run.dispatch import Dispatcher
from specscope.engine.run.gathering import Gathering
from specscope.engine.run.lengths import RoundLengths
from specscope.engine.run.policies import FIXED, MINEDRAFT, POLICIES, with_policy
from specscope.engine.run.run import Run
from specscope.engine.types import Draft, Prefix, check_choice, check_range
from specscope.engine.worker.jobs import Chunk

CHUNK = 256
"""Prompt tokens that a forward caches at most."""
LATEST = 1e9
"""Latest arrival in seconds: 30 years. A trace has nanoseconds of 63 bits."""


@named_fields
@dataclass(frozen=True, slots=True)
class Load:
    """Requests in time."""

    arrivals: tuple[float, ...]
    """Seconds after the run's start at which each prompt arrives, in any order."""
    batch: int = 8
    """Sequences of a forward at most: those decoded at once, or with MineDraft half of them."""
    chunk: int = CHUNK
    policy: str = FIXED

    def __post_init__(self) -> None:
        check_choice(f"there is no policy {shown(self.policy)}", self.policy, POLICIES)
        check_range("batch", self.batch, 1, MOST_SEQUENCES)
        check_range("chunk", self.chunk, 1, 2**20)
        for time in self.arrivals:
            if not (math.isfinite(time) and 0 <= time <= LATEST):
                raise UsageError(
                    f"an arrival is {shown(time)}; it must be a time in seconds, at least 0 and at most {LATEST:g}"
                )

    @property
    def times(self) -> list[int]:
        return [round(1e6 * time) * 1000 for time in self.arrivals]

    @property
    def slots(self) -> int:
        """KV slots: the sequences decoded at once."""
        return 2 * self.batch if self.policy == MINEDRAFT else self.batch

    def facts(self) -> dict[str, Any]:
        policy = {} if self.policy == FIXED else {"policy": self.policy}
        return {"arrivals": self.times, "batch": self.batch, "chunk": self.chunk, **policy}


def under_load(method: str, layout: Layout, load: Load, prompts: int) -> Layout:
    """Return a method's layout with the batch of a load.

    UsageError if the sequences cannot go in lockstep, the method pads, or there are not as many
    arrivals as prompts.
    """
    if isinstance(layout.arrangement, Pipelined):
        raise UsageError(
            f"{method} cannot run under load in a pipeline, whose drafter moves between devices with one sequence: "
            "choose another placement"
        )
    if not _in_lockstep(layout):
        raise UsageError(
            f"{method} cannot run under load: it starts and stops forwards of one sequence at any time, and sequences "
            "share forwards only if they go in lockstep; choose another method"
        )
    if layout.packing != Packing():
        raise UsageError(f"{method} cannot pad under load; leave unpad_inputs and unpad_kv on")
    if len(load.arrivals) != prompts:
        raise UsageError(f"there are {len(load.arrivals)} arrivals and {prompts} prompts; give one for each")
    return replace(with_policy(method, layout, load.policy), batch=load.slots)


def _in_lockstep(layout: Layout) -> bool:
    match layout.arrangement:
        case Separate(targets, drafters, turns):
            return targets == 1 and (turns or not drafters or layout.lockstep)
        case models:
            return isinstance(models, LayerParallel) or layout.lockstep


class _Part(NamedTuple):
    """Tokens `start` to `end` of a sequence's prompt."""

    sequence: int
    start: int
    end: int


class Serving:
    """Serves the requests of a run, whose models make their calls through `gathering`.

    Each round is one step of the dispatcher. `clock` returns nanoseconds since the run's start.
    `scored` is whether the method drafts while its earlier drafts are scored: first tokens are then
    judged with these scores. `lengths` chooses the lengths of drafts; without it, the method does.
    """

    def __init__(
        self,
        run: Run,
        load: Load,
        decode: Callable[[Run], Awaitable[None]],
        gathering: Gathering,
        dispatcher: Dispatcher,
        clock: Callable[[], int],
        *,
        scored: bool,
        lengths: RoundLengths | None = None,
    ) -> None:
        self._scored, self._lengths = scored, lengths
        self._run, self._load, self._decode = run, load, decode
        self._gathering, self._dispatcher, self._clock = gathering, dispatcher, clock
        self._times = load.times
        self._waiting = sorted(range(len(self._times)), key=self._times.__getitem__)
        self._cached: dict[int, int] = {}
        """Prompt tokens cached, of each sequence that has a slot but does not decode."""
        self._ended: list[int] = []
        self._undrafted = set[int]()
        """Sequences that decode and were not drafted yet."""

    async def serve(self) -> None:
        async with asyncio.TaskGroup() as decoders:
            while True:
                await self._free_slots()
                self._admit()
                await self._gathering.complete()
                if self._ended:
                    continue  # a slot is free
                if self._gathering.decoding or self._cached:
                    await self._round(decoders)
                elif self._waiting:
                    await asyncio.sleep((self._times[self._waiting[0]] - self._clock()) / 1e9)
                else:
                    return

    async def _free_slots(self) -> None:
        ended, self._ended = self._ended, []
        if ended and self._waiting:
            await self._run.retire(ended)

    def _admit(self) -> None:
        """Give free slots to requests that have arrived, the longest waiting first."""
        while (
            self._waiting
            and len(self._gathering.decoding) + len(self._cached) < self._load.slots
            and self._times[self._waiting[0]] <= self._clock()
        ):
            self._cached[self._waiting.pop(0)] = 0

    def _begin(self, parts: Sequence[_Part], decoders: asyncio.TaskGroup) -> None:
        for part in parts:
            if part.end == self._prompt(part.sequence):
                del self._cached[part.sequence]
                self._gathering.decoding.add(part.sequence)
                self._undrafted.add(part.sequence)
                decoders.create_task(self._decode_one(part.sequence))

    async def _decode_one(self, number: int) -> None:
        """Draw the first token from the forward that ends the prompt; then decode."""
        run, nothing = self._run.of(number), Draft.empty()
        if self._scored:
            run.commit(await run.target.score(run.x, nothing).judge(nothing, mode="plain"))
        else:
            run.commit(await run.target.verify(run.x, nothing))
        if not run.done:
            await self._decode(run)
        self._ended.append(number)
        self._gathering.end(number)

    async def _round(self, decoders: asyncio.TaskGroup) -> None:
        """Verify drafts and cache parts of prompts in one forward; draft before it or beside it."""
        gathering, parts = self._gathering, self._next_parts()
        self._cached |= {p.sequence: p.end for p in parts}
        self._begin(parts, decoders)
        await gathering.complete()
        if self._load.policy == MINEDRAFT:
            async with asyncio.TaskGroup() as work:
                self._verify(parts, work)
                work.create_task(self._draft_second_batch(self._second_batch()))
        else:
            self._limit_drafts(parts)
            parts = await self._draft(parts)
            async with asyncio.TaskGroup() as work:
                self._verify(parts, work)
        await gathering.complete()  # the round is committed
        self._dispatcher.step += 1

    async def _draft(self, parts: list[_Part]) -> list[_Part]:
        """Draft for all sequences that decode; score their earlier drafts meanwhile, if they ask.

        Parts of prompts are cached with such scores; the parts that are left are returned.
        """
        gathering = self._gathering
        while (scores := gathering.waits("scores")) or gathering.waits("drafter"):
            async with asyncio.TaskGroup() as work:
                if scores:
                    work.create_task(gathering.make("scores", chunks=self._chunks(parts)))
                work.create_task(gathering.make("drafter"))
                if scores:
                    self._prefill(parts, work)
                    parts = []
            await gathering.complete()
        return parts

    def _limit_drafts(self, parts: Sequence[_Part]) -> None:
        """Choose the lengths of the round's drafts, if the policy has lengths."""
        if self._lengths is None:
            return
        remaining = {number: self._run.of(number).remaining for number in self._gathering.decoding}
        waiting = self._gathering.waiting("drafter").items()
        asked = {number: min(levels, remaining[number]) for number, (_, levels) in waiting}
        self._gathering.allowed = self._lengths.choose(asked, sum(p.end - p.start for p in parts))

    def _second_batch(self) -> Collection[int]:
        """Return the sequences that are drafted while others are verified (MineDraft).

        New sequences wait a round, and so join the first batch, until both have the same size.
        """
        waiting = self._gathering.waiting("drafter")
        new = [number for number in waiting if number in self._undrafted]
        surplus = max(0, len(waiting) - len(self._gathering.waiting("target"))) // 2
        self._undrafted.difference_update(new)
        return waiting.keys() - new[len(new) - min(surplus, len(new)) :]

    async def _draft_second_batch(self, sequences: Collection[int]) -> None:
        while self._gathering.waits("drafter", sequences):
            await self._gathering.make("drafter", sequences)
            await self._gathering.complete(sequences)

    def _verify(self, parts: Sequence[_Part], work: asyncio.TaskGroup) -> None:
        gathering = self._gathering
        # the target is first: heads read the states that it leaves on their worker
        if gathering.waits("target"):
            work.create_task(self._verify_drafts(parts))
        elif parts:
            work.create_task(self._run.target.cache(self._chunks(parts)))
        if gathering.waits("judge"):
            work.create_task(gathering.make("judge"))
        self._prefill(parts, work)

    async def _verify_drafts(self, parts: Sequence[_Part]) -> None:
        found = await self._gathering.make("target", chunks=self._chunks(parts))
        if self._lengths is not None:
            self._lengths.learn(verdict for verdicts in found.values() for verdict in verdicts)

    def _chunks(self, parts: Sequence[_Part]) -> tuple[Chunk, ...]:
        return tuple(Chunk(Prefix(p.sequence, self._tokens(p.sequence)[: p.end]), p.start) for p in parts)

    def _prefill(self, parts: Sequence[_Part], work: asyncio.TaskGroup) -> None:
        # a prefill leaves out its last token: here any
        prefixes = [Prefix(p.sequence, np.append(self._tokens(p.sequence)[: p.end], 0)) for p in parts]
        for drafter in self._run.drafters if parts else ():
            work.create_task(drafter.model.prefill(prefixes))

    def _next_parts(self) -> list[_Part]:
        left, parts = self._load.chunk, list[_Part]()
        for number, cached in self._cached.items():
            count = min(left, self._prompt(number) - cached)
            if count > 0:
                parts.append(_Part(number, cached, cached + count))
                left -= count
        return parts

    def _tokens(self, number: int) -> np.ndarray:
        return self._run.sequence(number).x.tokens

    def _prompt(self, number: int) -> int:
        return self._run.sequence(number).prompt_length
