"""The target and the drafters as a method sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.drafting.tree import TreeShape, Wide
from engine.run.batching import Call, Gathering
from engine.run.scores import Scorer, Scores, chunk_spans, judge_job, mode_of, new_verdict
from engine.types import NO_TREE, Draft, DraftToken, Judgement, Prefix, RowRef, Tree, Typical, Verdict
from engine.worker.jobs import PREFILL_ROWS, Export, Import, Prefill, Propose, Retire, Score

if TYPE_CHECKING:
    from engine.run.dispatch import Dispatcher
    from engine.run.sequences import Sequence as Decoded
    from engine.worker.jobs import Chunk, Grown, Job, Reply
    from engine.worker.shared import QBuffer
    from engine.worker.worker import Worker


class Model:
    """One model on one worker.

    Args:
        dispatcher: Submits the jobs.
        worker: The worker that holds the model.
        name: The model's name on its worker: `target`, `drafter`, or the name of a drafting head.
        role: `target` or `drafter`, for the spans.
        sequences: The run's sequences: drafts end where the output does.
        q_buffer: Rows of q for sampled drafts; None for a target and in a greedy run.
        gathering: Under load: makes the drafts and verifications of several sequences in one.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        worker: Worker,
        name: str,
        role: str,
        sequences: Sequence[Decoded],
        q_buffer: QBuffer | None = None,
        gathering: Gathering | None = None,
    ) -> None:
        self.worker = worker
        self.name = name
        self.role = role
        self._dispatcher = dispatcher
        self._sequences = sequences
        self._q_buffer = q_buffer
        self._gathering = gathering
        self._scorer = Scorer(dispatcher, worker, name, gathering)
        self._cached: dict[int, np.ndarray] = {}

    @property
    def busy(self) -> bool:
        return self._dispatcher.busy(self.worker)

    @property
    def lanes(self) -> int:
        """Devices that each of its forwards occupies."""
        return self.worker.lanes(self.name)

    async def propose(
        self, prefix: Prefix, n: int, *, sampled: bool = True, stop_below: float = 0.0
    ) -> Draft:
        """Draft up to n tokens after the prefix, each by its own forward.

        Args:
            prefix: The tokens so far, drafted ones included.
            n: Tokens at most; fewer, or none, near the end of the output.
            sampled: Draw from q (rule 1 judges them). Otherwise, and at temperature 0, take the
                argmax (rule 2).
            stop_below: The draft ends after a token of smaller probability.
        """
        one = await self.draft_each((prefix,), Wide(1, n), chain=True, sampled=sampled, stop_below=stop_below)
        return one[0]

    async def grow(
        self,
        prefix: Prefix,
        shape: TreeShape,
        *,
        sampled: bool = True,
        fuzzy: int = 1,
        calibrate: bool = True,
        unread: int = 0,
    ) -> Draft:
        """Draft a tree after the prefix; a small model forwards one level at a time.

        Args:
            prefix: The tokens so far.
            shape: How the tree grows (`engine.drafting.tree`); fewer levels, or none, near the end
                of the output.
            sampled: Draw from q (rule 1 judges them). Otherwise, and at temperature 0, take the
                most probable tokens (rule 2).
            fuzzy: Layer-parallel size: this many attention layers read one hidden state.
            calibrate: Make the first level by an exact forward, and count no fuzzy row as cached.
            unread: Last tokens of the prefix that a drafting head with masks does not read.
        """
        one = await self.draft_each(
            (prefix,), shape, sampled=sampled, fuzzy=fuzzy, calibrate=calibrate, unread=unread
        )
        return one[0]

    async def draft_each(
        self,
        prefixes: Sequence[Prefix],
        shape: TreeShape,
        *,
        chain: bool = False,
        sampled: bool = True,
        stop_below: float = 0.0,
        fuzzy: int = 1,
        calibrate: bool = True,
        unread: int = 0,
    ) -> list[Draft]:
        """Draft after each prefix; each forward drafts one level for all of them.

        With `chain` the shape is `Wide(1, n)`; for the other arguments see `propose` and `grow`.
        """
        depths, shape = [shape.depth] * len(prefixes), Wide(1, 1) if chain else shape
        options = (chain, stop_below, fuzzy, calibrate, "", unread)
        job = Propose(self.name, (), shape, (), sampled, (), *options)
        return await self._join(Call(self.role, self._draft, (prefixes, depths), (job,)))

    async def _draft(self, prefixes: Sequence[Prefix], depths: Sequence[int], job: Propose) -> list[Draft]:
        """Lease rows of q, call the worker, and number the drafted tokens."""
        emitter, rooms = self._dispatcher.emitter, [self._sequences[p.sequence].room(p) for p in prefixes]
        levels = tuple(max(0, min(one)) for one in zip(depths, rooms, strict=True))
        shape = Wide(1, max(levels, default=0)) if job.chain else job.shape
        q_buffer, parents = self._q_buffer if job.sampled else None, 0 if job.chain else shape.parents
        leases = [q_buffer.lease((parents or n) if n else 0) if q_buffer else None for n in levels]
        spans = self._dispatcher.span_ids(max(levels, default=0) * self.lanes)
        if job.chain:
            self._cached |= {p.sequence: p.tokens[: self.held(p)] for p in prefixes}
        trees: Sequence[tuple[Grown, ...]] = [()] * len(prefixes)
        if any(levels):
            rows = tuple(lease.rows if lease else () for lease in leases)
            job = replace(job, prefixes=tuple(prefixes), shape=shape, levels=levels, rows=rows)
            trees = (await self._call(job, spans)).value
        drafts = list[Draft]()
        for prefix, nodes, lease in zip(prefixes, trees, leases, strict=True):
            tokens = [(len(prefix) + node.level, self._token(node, spans)) for node in nodes]
            numbered = tuple(emitter.drafted(prefix.sequence, *one) for one in tokens)
            drafts.append(Draft(numbered, (lease,) if lease else ()))
        if job.chain:
            drafted = [(p, d) for p, d in zip(prefixes, drafts, strict=True) if d]
            self._cached |= {p.sequence: (p + d).tokens[:-1] for p, d in drafted}
        return drafts

    def _token(self, node: Grown, spans: Sequence[int]) -> DraftToken:
        q = None if node.row < 0 else RowRef(self.worker.name, node.row)
        span = spans[node.forward * self.lanes]
        return DraftToken(node.id, node.parent, q, node.probability, node.top, span)

    async def verify(
        self, prefix: Prefix, draft: Draft, *, window: Tree | None = None, typical: Typical | None = None
    ) -> Verdict:
        """Score a draft and judge it, in one job.

        Args:
            prefix: The tokens so far.
            draft: The draft to judge.
            window: Rows of a look-ahead window in the same forward, none or more; not judged. The
                verdict's `best` then has the most probable token after every row.
            typical: Judge by typical acceptance, which is lossy.
        """
        return (await self.verify_each((prefix,), (draft,), (window,), typical))[0]

    async def verify_each(
        self,
        prefixes: Sequence[Prefix],
        drafts: Sequence[Draft],
        windows: Sequence[Tree | None] = (),
        typical: Typical | None = None,
    ) -> list[Verdict]:
        """Score and judge one draft per prefix, all in one forward.

        For `windows`, one per prefix or none at all, and for `typical` see `verify`.
        """
        columns = (prefixes, drafts, windows or [None] * len(drafts), [typical] * len(drafts))
        return await self._join(Call(self.role, self._verify, columns, ()))

    async def _verify(
        self,
        prefixes: Sequence[Prefix],
        drafts: Sequence[Draft],
        windows: Sequence[Tree | None],
        typicals: Sequence[Typical | None],
        chunks: tuple[Chunk, ...] = (),
    ) -> list[Verdict]:
        spans = self._dispatcher.span_ids((3 + len(chunks)) * self.lanes)
        rules = zip(drafts, typicals, strict=True)
        judges = tuple(judge_job(spans[0], draft, typical=typical) for draft, typical in rules)
        rows = tuple(_rows_of(draft, w or NO_TREE) for draft, w in zip(drafts, windows, strict=True))
        best = any(window is not None for window in windows)
        job = Score(self.name, tuple(prefixes), rows, spans[0], judges, best=best, chunks=chunks)
        judgements, ends = (await self._call(job, spans)).value, chunk_spans(chunks, spans, self.lanes)
        return [
            new_verdict(j, x, draft, mode_of(len(draft), len(draft)), ends.get(x.sequence, spans[0]))
            for j, x, draft in zip(judgements, prefixes, drafts, strict=True)
        ]

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        """Start one forward over prefix and draft; the logits stay on the device.

        Under load it starts with the sequences' next drafts.
        """
        return Scores(self._scorer, prefix, draft)

    async def decode(self, prefix: Prefix, guesses: Draft, window: Tree) -> tuple[Draft, tuple[int, ...]]:
        """Draft by one forward of greedy decoding: the confirmed guesses, and one token more.

        Args:
            prefix: The tokens so far, drafted ones included.
            guesses: A tree of tokens; the output has room for its longest path and one token more.
            window: Rows of a look-ahead window in the same forward; not judged.

        Returns:
            The drafted chain (rule 2 judges it); and the most probable token after the prefix, each
            guess and each row of the window.
        """
        columns = ((prefix,), (guesses,), (window,))
        return (await self._join(Call(self.role, self._decode, columns, ())))[0]

    async def _decode(
        self, prefixes: Sequence[Prefix], guesses: Sequence[Draft], windows: Sequence[Tree]
    ) -> list[tuple[Draft, tuple[int, ...]]]:
        spans = self._dispatcher.span_ids(self.lanes)
        judges = tuple(judge_job(spans[0], draft) for draft in guesses)
        rows = tuple(map(_rows_of, guesses, windows))
        job = Score(self.name, tuple(prefixes), rows, spans[0], judges, best=True, greedy=True)
        judgements = (await self._call(job, spans)).value
        return [
            (self._confirmed(prefix, judgement, spans[0]), judgement.best)
            for prefix, judgement in zip(prefixes, judgements, strict=True)
        ]

    def _confirmed(self, prefix: Prefix, judgement: Judgement, span: int) -> Draft:
        """Return the tokens that the drafter's own greedy decoding confirmed, as a chain."""
        kept = [j for j in judgement.judged if j.outcome not in ("rejected", "discarded")]
        tokens = (DraftToken(j.token, i - 1, None, j.p, j.top_p, span) for i, j in enumerate(kept))
        drafted = self._dispatcher.emitter.drafted
        return Draft(
            tuple(drafted(prefix.sequence, j.position, t) for j, t in zip(kept, tokens, strict=True))
        )

    def held(self, prefix: Prefix) -> int:
        """Return how many KV rows of a prefix the device caches; tree rows do not count."""
        cached = self._cached.get(prefix.sequence, prefix.tokens[:0])
        n = min(len(cached), len(prefix) - 1)
        different = np.flatnonzero(cached[:n] != prefix.tokens[:n])
        return int(different[0]) if len(different) else n

    async def move(self, prefix: Prefix, to: Model) -> None:
        """Copy the KV rows of a prefix to another worker with the model or its form in fewer bits.

        The last token has no row, and rows that the other device has are not copied.
        """
        ids, last = self._dispatcher.span_ids, len(prefix) - 1
        for start in range(to.held(prefix), last, PREFILL_ROWS):
            part = Prefix(prefix.sequence, prefix.tokens[: min(start + PREFILL_ROWS, last) + 1])
            exported = await self._call(Export(self.name, (part,), start), ids(1))
            await to._call(Import(to.name, (part,), start, exported.value), ids(1))
            to._cached[prefix.sequence] = part.tokens[:-1]

    async def prefill(self, prefixes: Sequence[Prefix]) -> None:
        if any(len(prefix) > 1 for prefix in prefixes):
            job = Prefill(self.name, tuple(prefixes))
            forwards = ceil((max(map(len, prefixes)) - 1) / PREFILL_ROWS)
            await self._call(job, self._dispatcher.span_ids(forwards * self.lanes))
        self._cached |= {p.sequence: p.tokens[:-1] for p in prefixes}

    async def cache(self, chunks: tuple[Chunk, ...]) -> None:
        """Cache parts of prompts in one forward of the target."""
        await self._verify((), (), (), (), chunks)

    async def retire(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            await self._dispatcher.submit(self.worker, self.role, Retire(sequence)).reply

    async def _join(self, call: Call) -> list[Any]:
        if self._gathering is not None:
            return await self._gathering.join(call)
        return await call.start(*call.columns, *call.options)

    async def _call(self, job: Job, spans: range) -> Reply:
        return await self._dispatcher.call(self.worker, self.role, job, spans)


def _rows_of(draft: Draft, window: Tree) -> Tree:
    """Return (ids, parents) of a draft's rows, then of a look-ahead window's."""
    parents = (parent if parent < 0 else parent + len(draft) for parent in window[1])
    return (*draft.ids, *window[0]), (*draft.parents, *parents)
