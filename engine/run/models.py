"""Models as a method sees them; where they live and what is cached is not the method's business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, overload

import numpy as np

from engine.drafters.tree import TreeShape
from engine.run.scores import Scores, judge_job, mode_of
from engine.types import NO_TREE, Draft, DraftToken, Prefix, RowRef, Tree, Typical, Verdict
from engine.workers.jobs import Export, Grow, Grown, Import, Prefill, Propose, Proposed, Score

if TYPE_CHECKING:
    from engine.run.run import Run
    from engine.workers.worker import Worker


class Model:
    """One model on one worker.

    Args:
        run: The run it serves.
        name: What its worker calls it: `target`, `drafter`, or the name of a drafting head.
        worker: Where it lives.
        role: `target` or `drafter`, what spans call it; its name unless given.
    """

    def __init__(self, run: Run, name: str, worker: Worker, role: str = "") -> None:
        self._run = run
        self.name = name
        self.role = role or name
        self.worker = worker
        self._cached: dict[int, np.ndarray] = {}

    @property
    def busy(self) -> bool:
        """Whether work of this run is under way on its worker, stopped work that has not ended yet included."""
        return self._run.busy(self.worker)

    @property
    def lanes(self) -> int:
        """How many devices each of its forwards keeps busy."""
        return self.worker.lanes(self.name)

    async def prefill(self, prefixes: Sequence[Prefix]) -> None:
        """Cache the prefixes but for their last tokens."""
        if any(len(prefix) > 1 for prefix in prefixes):
            job = Prefill(self.name, tuple(prefixes))
            await self._run.call(self, job, self._run.reserve(self.lanes))
        self._cached = {p.sequence: p.tokens[:-1] for p in prefixes}

    @overload
    async def propose(
        self, prefix: Prefix, n: int, *, sampled: bool = True, stop_below: float = 0.0
    ) -> Draft: ...
    @overload
    async def propose(
        self, prefix: Sequence[Prefix], n: int, *, sampled: bool = True, stop_below: float = 0.0
    ) -> list[Draft]: ...
    async def propose(
        self, prefix: Prefix | Sequence[Prefix], n: int, *, sampled: bool = True, stop_below: float = 0.0
    ) -> Draft | list[Draft]:
        """Draft up to n tokens after the prefix, or after each of several, each from its own forward.

        Args:
            prefix: The tokens so far, drafted ones included.
            n: How many; fewer, or none, where the output would end before.
            sampled: Draw from q (rule 1 judges them); otherwise, and at temperature 0, take the argmax (rule 2).
            stop_below: End a draft after a token whose own probability is less; the token stays.
        """
        run = self._run
        prefixes = (prefix,) if isinstance(prefix, Prefix) else tuple(prefix)
        counts = tuple(max(0, min(n, run.sequences[p.sequence].room - len(p))) for p in prefixes)
        slab = run.slabs.get(self.worker.name) if sampled else None
        leases = [slab.lease(count) for count in counts] if slab else []
        lanes = self.lanes
        spans = run.reserve(max(counts, default=0) * lanes)
        proposed: Sequence[tuple[Proposed, ...]] = [()] * len(prefixes)
        if any(counts):
            slab_rows = tuple(lease.rows for lease in leases)
            job = Propose(self.name, prefixes, counts, sampled, slab_rows, stop_below)
            self._cached |= {p.sequence: p.tokens[: self.held(p)] for p in prefixes}
            proposed = (await run.call(self, job, spans)).value
            self._cached |= {
                p.sequence: (p + (t.id for t in each)).tokens[:-1]
                for p, each in zip(prefixes, proposed, strict=True)
                if each
            }
        drafts = list[Draft]()
        for i, each in enumerate(proposed):
            q = [RowRef(self.worker.name, row) for row in leases[i].rows] if leases else [None] * len(each)
            tokens = tuple(
                run.emitter.drafted(
                    prefixes[i].sequence,
                    len(prefixes[i]) + at,
                    DraftToken(t.id, at - 1, q[at], t.probability, t.top, spans[at * lanes]),
                )
                for at, t in enumerate(each)
            )
            drafts.append(Draft(tokens, (leases[i],) if leases else ()))
        return drafts[0] if isinstance(prefix, Prefix) else drafts

    def held(self, prefix: Prefix) -> int:
        """Return how many KV rows of a prefix, from its first on, its device has been told to cache: those of chains only."""
        known = self._cached.get(prefix.sequence, prefix.tokens[:0])
        n = min(len(known), len(prefix) - 1)
        differs = np.flatnonzero(known[:n] != prefix.tokens[:n])
        return int(differs[0]) if len(differs) else n

    async def move(self, prefix: Prefix, to: Model) -> None:
        """Copy KV rows of a prefix, all but its last token's, to a device with the same model; only rows that it lacks."""
        run, start = self._run, to.held(prefix)
        if start < len(prefix) - 1:
            exported = await run.call(self, Export(self.name, (prefix,), start), run.reserve(1))
            await run.call(to, Import(self.name, (prefix,), start, exported.value), run.reserve(1))
            to._cached[prefix.sequence] = prefix.tokens[:-1]

    @overload
    async def grow(
        self,
        prefix: Prefix,
        shape: TreeShape,
        *,
        sampled: bool = True,
        fuzzy: int = 1,
        calibrate: bool = True,
    ) -> Draft: ...
    @overload
    async def grow(
        self, prefix: Sequence[Prefix], shape: TreeShape, *, sampled: bool = True
    ) -> list[Draft]: ...
    async def grow(
        self,
        prefix: Prefix | Sequence[Prefix],
        shape: TreeShape,
        *,
        sampled: bool = True,
        fuzzy: int = 1,
        calibrate: bool = True,
    ) -> Draft | list[Draft]:
        """Draft a tree after the prefix, or after each of several; a small model's forwards take all nodes of a level at once.

        Args:
            prefix: The tokens so far; of several only with a small model.
            shape: How the tree grows (see `engine.drafters.tree`); to fewer levels, or none, where the output would end before.
            sampled: Draw from q (rule 1 judges them); otherwise, and at temperature 0, take the most probable (rule 2).
            fuzzy: Layer-parallel size: so many attention layers read one hidden state (see `engine.model.fuzzy`).
            calibrate: Make the first level by an exact forward, and let no fuzzy row count as cached.
        """
        run = self._run
        prefixes = (prefix,) if isinstance(prefix, Prefix) else tuple(prefix)
        levels = tuple(max(0, min(shape.depth, run.sequences[p.sequence].room - len(p))) for p in prefixes)
        slab = run.slabs.get(self.worker.name) if sampled else None
        leases = [slab.lease(shape.parents if count else 0) for count in levels] if slab else []
        lanes = self.lanes
        spans = run.reserve(max(levels, default=0) * lanes)
        grown: Sequence[tuple[Grown, ...]] = [()] * len(prefixes)
        if any(levels):
            rows = tuple(lease.rows for lease in leases) if leases else ((),) * len(prefixes)
            job = Grow(self.name, prefixes, shape, levels, sampled, rows, fuzzy, calibrate)
            grown = (await run.call(self, job, spans)).value
        drafts = list[Draft]()
        for i, tree in enumerate(grown):
            tokens = tuple(
                run.emitter.drafted(
                    prefixes[i].sequence,
                    len(prefixes[i]) + t.level,
                    DraftToken(
                        t.id, t.parent, self._q_row(t.row), t.probability, t.top, spans[t.forward * lanes]
                    ),
                )
                for t in tree
            )
            drafts.append(Draft(tokens, (leases[i],) if leases else ()))
        return drafts[0] if isinstance(prefix, Prefix) else drafts

    def _q_row(self, row: int) -> RowRef | None:
        return None if row < 0 else RowRef(self.worker.name, row)

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        """Start one forward over prefix and draft; the logits stay on the device. Await the scores to wait for it."""
        return Scores(self._run, self, prefix, draft)

    @overload
    async def verify(
        self, prefix: Prefix, draft: Draft, *, beside: Tree | None = None, typical: Typical | None = None
    ) -> Verdict: ...
    @overload
    async def verify(self, prefix: Sequence[Prefix], draft: Sequence[Draft]) -> list[Verdict]: ...
    async def verify(
        self,
        prefix: Prefix | Sequence[Prefix],
        draft: Draft | Sequence[Draft],
        *,
        beside: Tree | None = None,
        typical: Typical | None = None,
    ) -> Verdict | list[Verdict]:
        """Score a draft and judge it, or one draft for each of several prefixes, in one job.

        Args:
            prefix: The tokens so far.
            draft: What is judged.
            beside: Rows of the same forward that nobody judges, none or more, for a single prefix. The verdict's `best`
                then has the most probable token after every row.
            typical: Judge by typical acceptance, which is lossy.
        """
        prefixes = (prefix,) if isinstance(prefix, Prefix) else tuple(prefix)
        drafts = (draft,) if isinstance(draft, Draft) else tuple(draft)
        spans = self._run.reserve(3 * self.lanes)
        judges = tuple(judge_job(spans[0], d, typical=typical) for d in drafts)
        trees = tuple(_tree(d, beside or NO_TREE) for d in drafts)
        job = Score(self.name, prefixes, trees, spans[0], judges, best=beside is not None)
        reply = await self._run.call(self, job, spans)
        verdicts = [
            replace(verdict, draft=d, mode=mode_of(len(d), len(d)), span=spans[0], forward=len(d))
            for verdict, d in zip(reply.value, drafts, strict=True)
        ]
        return verdicts[0] if isinstance(prefix, Prefix) else verdicts

    async def decode(self, prefix: Prefix, guesses: Draft, beside: Tree) -> tuple[Draft, tuple[int, ...]]:
        """Draft by one forward of greedy decoding: the guesses that are what this model says, and one token more.

        Args:
            prefix: The tokens so far, drafted ones included.
            guesses: Tokens that may come next; the output has room for one more than their longest path.
            beside: Rows of the same forward that nobody judges.

        Returns:
            The chain drafted (rule 2 judges it), and the most probable token after the prefix, each guess and each
            row beside.
        """
        run, spans = self._run, self._run.reserve(self.lanes)
        judge = (judge_job(spans[0], guesses),)
        job = Score(self.name, (prefix,), (_tree(guesses, beside),), spans[0], judge, best=True, greedy=True)
        verdict: Verdict = (await run.call(self, job, spans)).value[0]
        said = [j for j in verdict.judged if j.outcome not in ("rejected", "discarded")]
        tokens = tuple(
            run.emitter.drafted(
                prefix.sequence, j.position, DraftToken(j.token, at - 1, None, j.p, j.top_p, spans[0])
            )
            for at, j in enumerate(said)
        )
        return Draft(tokens), verdict.best


def _tree(draft: Draft, beside: Tree) -> Tree:
    """Return the rows of a draft, then those beside it."""
    parents = (parent if parent < 0 else parent + len(draft) for parent in beside[1])
    return (*draft.ids, *beside[0]), (*draft.parents, *parents)
