"""A model on its worker: its jobs, and what the worker caches for it.

A method sees it as a `TargetModel` (`targets.py`) or a `DraftModel` (`drafters.py`). Under load,
calls of several sequences become one (`specscope.engine.run.gathering.Gathering`): one forward
scores their drafts, beside their next drafts, and its logits are judged together, once, when all of
these drafts are done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from specscope.engine.run.dispatch import Dispatcher, Submission
from specscope.engine.run.gathering import AtOnce, Gathering
from specscope.engine.run.rounds import Ahead
from specscope.engine.run.scores import judge_job, rows_of
from specscope.engine.types import NO_TREE, Draft, Judgement, Prefix, Tree, Typical
from specscope.engine.worker.jobs import (
    PREFILL_ROWS,
    Abandon,
    Chunk,
    Export,
    Import,
    Job,
    Prefill,
    Reply,
    Retire,
    Score,
)
from specscope.engine.worker.worker import Worker


class Model:
    """One model on one worker.

    Args:
        dispatcher: Submits the jobs.
        worker: The worker that holds the model.
        name: The model's name on its worker: `target`, `drafter`, or the name of a drafting head.
        role: `target` or `drafter`, for the spans.
        remaining: Returns how many tokens the output can still take after a prefix.
        calls: Makes its drafts and verifications: at once, or under load those of several sequences
            in one.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        worker: Worker,
        name: str,
        role: str,
        remaining: Callable[[Prefix], int],
        calls: AtOnce | Gathering,
    ) -> None:
        self.dispatcher, self.remaining, self.calls = dispatcher, remaining, calls
        self.worker, self.name, self.role = worker, name, role
        self.cached: dict[int, np.ndarray] = {}
        """Tokens whose rows the device caches, by sequence."""
        self.ahead = Ahead(self._abandon)

    @property
    def busy(self) -> bool:
        return self.dispatcher.busy(self.worker)

    @property
    def lanes(self) -> int:
        """Devices that each of its forwards occupies."""
        return self.worker.lanes(self.name)

    def span_ids(self, forwards: int) -> range:
        """Return ids for the spans of so many forwards, one for each device."""
        return self.dispatcher.span_ids(forwards * self.lanes)

    def submit(self, job: Job, spans: range = range(0)) -> Submission:
        return self.dispatcher.submit(self.worker, self.role, job, spans)

    async def call(self, job: Job, spans: range) -> Reply:
        return await self.submit(job, spans).result()

    async def join(
        self, start: Callable[..., Awaitable[list[Any]]], columns: tuple[Sequence[Any], ...], *options: Any
    ) -> list[Any]:
        """Make a call for some sequences, at once or with others; see `Gathering.join`."""
        return await self.calls.join(self.role, start, columns, *options)

    def _abandon(self, levels: int) -> None:
        submission = self.submit(Abandon(self.name), self.dispatcher.span_ids(levels + 2))
        submission.roles = {"verify": "target", "sample": "target"}
        submission.stop()

    async def judgements(
        self,
        spans: range,
        prefixes: Sequence[Prefix],
        drafts: Sequence[Draft],
        windows: Sequence[Tree | None],
        typicals: Sequence[Typical | None],
        chunks: tuple[Chunk, ...] = (),
        *,
        greedy: bool = False,
    ) -> Sequence[Judgement]:
        rules = zip(drafts, typicals, strict=True)
        judges = tuple(judge_job(spans[0], draft, typical=typical) for draft, typical in rules)
        rows = tuple(rows_of(draft, w or NO_TREE) for draft, w in zip(drafts, windows, strict=True))
        best = any(window is not None for window in windows)
        job = Score(self.name, tuple(prefixes), rows, spans[0], judges, best, greedy, chunks=chunks)
        is_plain = len(drafts) == 1 and not drafts[0] and not (best or greedy or chunks)
        if is_plain and isinstance(self.calls, AtOnce):
            job = replace(job, ahead=self.ahead.asks(prefixes[0]) and self.remaining(prefixes[0]) > 1)
        reply = await self.call(job, spans)
        if reply.begun:
            self.ahead.began(prefixes[0] + reply.value[0].emitted)
        return reply.value

    def held(self, prefix: Prefix) -> int:
        """Return how many KV rows of a prefix the device caches; tree rows do not count."""
        cached = self.cached.get(prefix.sequence, prefix.tokens[:0])
        n = min(len(cached), len(prefix) - 1)
        different = np.flatnonzero(cached[:n] != prefix.tokens[:n])
        return int(different[0]) if len(different) else n

    async def move(self, prefix: Prefix, to: Model) -> None:
        """Copy the KV rows of a prefix to another worker with the model or its form in fewer bits.

        The last token has no row, and rows that the other device has are not copied.
        """
        ids, last = self.dispatcher.span_ids, len(prefix) - 1
        for start in range(to.held(prefix), last, PREFILL_ROWS):
            part = Prefix(prefix.sequence, prefix.tokens[: min(start + PREFILL_ROWS, last) + 1])
            exported = await self.call(Export(self.name, (part,), start), ids(1))
            await to.call(Import(to.name, (part,), start, exported.value), ids(1))
            to.cached[prefix.sequence] = part.tokens[:-1]

    async def prefill(self, prefixes: Sequence[Prefix]) -> None:
        if any(len(prefix) > 1 for prefix in prefixes):
            job = Prefill(self.name, tuple(prefixes))
            forwards = ceil((max(map(len, prefixes)) - 1) / PREFILL_ROWS)
            await self.call(job, self.span_ids(forwards))
        self.cached |= {p.sequence: p.tokens[:-1] for p in prefixes}

    async def retire(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            await self.submit(Retire(sequence)).reply
