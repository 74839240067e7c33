"""The work itself: a Host holds models with their KV slots and executes jobs, synchronously.

Transports (thread, process, virtual) bring it jobs; it knows neither clocks of runs nor devices of others.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch

from engine.accept import judge
from engine.draws import Draws, Key, facts, propose_token, warp
from engine.model.slots import LanguageModel, Rows, Slots
from engine.runtime.jobs import (
    Begin,
    Drop,
    Job,
    Judge,
    Measure,
    Prefill,
    Propose,
    Proposed,
    Reply,
    Score,
    Stamp,
    Tokens,
)
from engine.types import Draft, DraftToken, Prefix, Sampling, Verdict


def never() -> bool:
    """Answer that nobody asked to stop."""
    return False


class Host:
    """Models, their KV slots, and the scores kept for judging.

    Args:
        models: By name, `target` or `drafter`.
        slabs: Rows of q by slab name, (R, V) float32; the own one is written, all are read.
    """

    def __init__(
        self, models: Mapping[str, LanguageModel], slabs: Mapping[str, np.ndarray], own: str
    ) -> None:
        self.models = dict(models)
        self._slabs = dict(slabs)
        self._own = own
        self._caches: dict[str, Slots] = {}
        self._room = (0, 0)
        self._scores: dict[int, tuple[torch.Tensor, Prefix]] = {}
        self._sampling = Sampling()
        self._vocab_size = 0

    def connect(self, slabs: Mapping[str, np.ndarray]) -> None:
        """Take the slabs of all drafting workers."""
        self._slabs = dict(slabs)

    def handle(self, job: Job, stopped: Callable[[], bool] = never) -> Reply:
        """Execute one job; `stopped` is asked between forwards."""
        stamps: list[Stamp] = []
        match job:
            case Begin():
                value = self._begin(job)
            case Prefill():
                value = self._prefill(job, stamps)
            case Propose():
                value = self._propose(job, stamps, stopped)
            case Score():
                value = self._score(job, stamps)
            case Judge():
                value = self._judge(job, stamps)
            case Tokens():
                value = self._tokens(job)
            case Drop():
                value = self._scores.pop(job.scores, None) and None
            case Measure():
                value = self._measure(job)
        return Reply(value, tuple(stamps))

    def _begin(self, job: Begin) -> None:
        self._sampling = job.sampling
        self._vocab_size = job.vocab_size
        self._scores.clear()
        if job.sequences > self._room[0] or job.capacity > self._room[1]:
            self._room = (max(job.sequences, self._room[0]), max(job.capacity, self._room[1]))
            self._caches = {name: m.new_cache(*self._room) for name, m in self.models.items()}
        for cache in self._caches.values():
            for slot in range(job.sequences):
                cache.reset(slot)

    def _extend(
        self,
        name: str,
        prefix: Prefix,
        draft: tuple[tuple[int, ...], tuple[int, ...]],
        stamps: list[Stamp],
        kind: str,
        *,
        logits: bool = True,
    ) -> torch.Tensor:
        """Forward what is not cached of prefix + draft; return logits from the prefix's last row on, (1 + N, V)."""
        model, cache, slot = self.models[name], self._caches[name], prefix.sequence
        start = time.perf_counter_ns()
        length = len(prefix)
        path = cache.match(slot, prefix.tokens, length - 1 if logits else length)
        cache.keep(slot, path)
        kept = len(path)
        ids, parents = draft
        tokens = np.concatenate([prefix.tokens[kept:], np.asarray(ids, dtype=np.int64)])
        after = np.arange(kept - 1, length - 1, dtype=np.int64)
        tree = np.asarray(parents, dtype=np.int64) + length
        rows = Rows.of(slot, tokens, np.concatenate([after, tree]))
        want = np.arange(length - 1 - kept, len(tokens)) if logits else np.empty(0, dtype=np.int64)
        out = model.forward(cache, rows, want).logits
        if out.is_cuda:
            torch.cuda.current_stream(out.device).synchronize()
        stamps.append(Stamp(kind, start, time.perf_counter_ns(), len(tokens), kept))
        return out

    def _prefill(self, job: Prefill, stamps: list[Stamp]) -> None:
        prefix = Prefix(job.prefix.sequence, job.prefix.tokens[:-1])
        if len(prefix):
            self._extend(job.model, prefix, ((), ()), stamps, "prefill", logits=False)

    def _propose(
        self, job: Propose, stamps: list[Stamp], stopped: Callable[[], bool]
    ) -> tuple[Proposed, ...]:
        draws = Draws(self._sampling.seed, job.prefix.sequence)
        sampled = job.sampled and not self._sampling.greedy
        prefix, ids, logits = job.prefix, list[int](), list[torch.Tensor]()
        for i in range(job.n):
            if stopped():
                break
            row = self._extend(job.model, prefix, ((), ()), stamps, "draft")[0, : self._vocab_size]
            token, q = propose_token(
                row, position=len(prefix), sampling=self._sampling, draws=draws, sampled=sampled
            )
            if q is not None:
                self._write(job.rows[i], q)
            ids.append(token)
            logits.append(row)
            prefix = prefix + (token,)  # noqa: RUF005 - a Prefix, not a tuple
        if not ids:
            return ()
        probabilities, tops = facts(torch.stack(logits), ids, self._sampling, sampled)
        return tuple(Proposed(*row) for row in zip(ids, probabilities, tops, strict=True))

    def _score(self, job: Score, stamps: list[Stamp]) -> Verdict | None:
        logits = self._extend(job.model, job.prefix, (job.ids, job.parents), stamps, "verify")
        if job.judge is not None:
            return self._decide(job.judge, logits, job.prefix, stamps)
        self._scores[job.scores] = (logits, job.prefix)
        return None

    def _write(self, row: int, q: torch.Tensor) -> None:
        out = self._slabs[self._own][row]
        out[: len(q)] = q.cpu().numpy()
        out[len(q) :] = 0

    def _q_row(self, token: DraftToken) -> torch.Tensor | None:
        return None if token.q is None else torch.from_numpy(self._slabs[token.q.slab][token.q.row])

    def _judge(self, job: Judge, stamps: list[Stamp]) -> Verdict:
        return self._decide(job, *self._scores[job.scores], stamps)

    def _decide(self, job: Judge, logits: torch.Tensor, prefix: Prefix, stamps: list[Stamp]) -> Verdict:
        start = time.perf_counter_ns()
        verdict = judge(
            logits[job.skip :],
            job.draft,
            self._q_row,
            sequence=prefix.sequence,
            position=len(prefix) + job.skip,
            sampling=self._sampling,
            draws=Draws(self._sampling.seed, prefix.sequence),
            bonus=job.bonus,
        )
        stamps.append(Stamp("sample", start, time.perf_counter_ns(), len(job.draft), 0))
        return replace(verdict, draft=Draft.empty())

    def _tokens(self, job: Tokens) -> tuple[int, ...]:
        logits, prefix = self._scores[job.scores]
        picked = logits[list(job.rows)]
        if self._sampling.greedy:
            return tuple(picked.argmax(-1).tolist())
        draws = Draws(self._sampling.seed, prefix.sequence)
        return tuple(
            draws.choose(Key(len(prefix) + row, "target"), p)
            for row, p in zip(job.rows, warp(picked, self._sampling), strict=True)
        )

    def _measure(self, job: Measure) -> float:
        model = self.models[job.model]
        cache = model.new_cache(1, job.context + 2)
        model.forward(
            cache, Rows.chain(0, np.ones(job.context, dtype=np.int64), 0), np.empty(0, dtype=np.int64)
        )
        path, times = np.arange(job.context), list[float]()
        for _ in range(job.repeats):
            start = time.perf_counter()
            cache.keep(0, path)
            out = model.forward(
                cache, Rows.chain(0, np.ones(1, dtype=np.int64), job.context), np.zeros(1, np.int64)
            )
            out.logits.argmax().item()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
