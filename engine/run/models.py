"""The target and the drafters as a method sees them.

Logits stay on the target's worker and are judged there. `verify` scores and judges in one job;
`score` starts a forward whose logits may be judged several times. Under load, calls of several
sequences become one (`specscope.engine.run.gathering.Gathering`): one forward scores their drafts,
beside their next drafts, and its logits are judged together, once, when all of these drafts are
done.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from specscope.engine.drafting.schedule import Ask
from specscope.engine.drafting.tree import TreeShape, Wide
from specscope.engine.run.fan import Fanned
from specscope.engine.run.gathering import AtOnce, Gathering
from specscope.engine.run.rounds import Ahead, EarlyJudgement
from specscope.engine.run.scores import Scores, chunk_spans, judge_job, mode_of, new_verdict, record, rows_of
from specscope.engine.trace.events import Chain
from specscope.engine.types import (
    NO_TREE,
    Damping,
    Draft,
    DraftToken,
    Judgement,
    Prefix,
    RowRef,
    Tree,
    Typical,
    Verdict,
)
from specscope.engine.worker import jobs
from specscope.engine.worker.jobs import (
    PREFILL_ROWS,
    Abandon,
    Export,
    Import,
    JudgeAll,
    Prefill,
    Propose,
    Reply,
    Retire,
    Score,
)

if TYPE_CHECKING:
    from specscope.engine.run.dispatch import Dispatcher, Submission
    from specscope.engine.worker.jobs import Chunk, Grown, Job
    from specscope.engine.worker.shared import QBuffer
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
        q_buffer: Rows of q for sampled drafts; None for a target and in a greedy run.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        worker: Worker,
        name: str,
        role: str,
        remaining: Callable[[Prefix], int],
        calls: AtOnce | Gathering,
        q_buffer: QBuffer | None = None,
    ) -> None:
        self.worker, self.name, self.role = worker, name, role
        self._dispatcher = dispatcher
        self._remaining = remaining
        self._q_buffer = q_buffer
        self._calls = calls
        self._cached: dict[int, np.ndarray] = {}
        self.verifier: Model | None = None
        """Of a drafter: the target on the same worker, which may verify drafts at once."""
        self._early: EarlyJudgement | None = None
        """The judgement of a draft that was verified at once."""
        self._ahead = Ahead(self._abandon)

    @property
    def busy(self) -> bool:
        return self._dispatcher.busy(self.worker)

    @property
    def lanes(self) -> int:
        """Devices that each of its forwards occupies."""
        return self.worker.lanes(self.name)

    # Drafts.

    async def propose(
        self,
        prefix: Prefix,
        n: int | Ask,
        *,
        sampled: bool = True,
        damping: tuple[Damping, ...] = (),
        begun: Draft | None = None,
    ) -> Draft:
        """Draft up to n tokens after the prefix, each by its own forward.

        Args:
            prefix: The tokens so far, drafted ones included.
            n: Tokens at most; fewer, or none, near the end of the output. An `Ask` can end the
                draft earlier, and the trace shows why it ended.
            sampled: Draw from q (rule 1 judges them). Otherwise, and at temperature 0, take the
                argmax (rule 2).
            damping: Of each token's q; empty for q itself.
            begun: The first of the n tokens, if they are drafted already, such as a branch of `fan`
                that was cut. The draft that is returned begins with them.
        """
        ask = n if isinstance(n, Ask) else Ask(n)
        step, draft = self._dispatcher.step, begun or Draft.empty()
        job = Propose(self.name, (), Wide(1, 1), (), sampled, (), chain=True, stop_below=ask.stop_below)
        try:
            job = replace(job, damping=damping[len(draft) :])
            draft += (await self._drafts((prefix + draft,), ask.rest(draft), job))[0]
        finally:
            if isinstance(n, Ask):
                span = draft.tokens[0].span if draft else -1
                stop = ask.stop(draft, self._remaining(prefix), self._allowed(prefix, ask.tokens))
                facts = (ask.tokens, len(draft), stop, span)
                self._dispatcher.emitter.flush()
                self._dispatcher.emitter.rows([Chain(step, prefix.sequence, len(prefix), *facts)])
        return draft

    async def grow(
        self,
        prefix: Prefix,
        shape: TreeShape,
        *,
        sampled: bool = True,
        fuzzy: int = 1,
        calibrate: bool = True,
        masked_tail: int = 0,
    ) -> Draft:
        """Draft a tree after the prefix; a small model forwards one level at a time.

        Args:
            prefix: The tokens so far.
            shape: How the tree grows (`specscope.engine.drafting.tree`); fewer levels, or none,
                near the end of the output.
            sampled: Draw from q (rule 1 judges them). Otherwise, and at temperature 0, take the
                most probable tokens (rule 2).
            fuzzy: Layer-parallel size: this many attention layers read one hidden state.
            calibrate: Make the first level by an exact forward, and count no fuzzy row as cached.
            masked_tail: Last tokens of the prefix that a drafting head with masks does not read.
        """
        job = Propose(
            self.name, (), shape, (), sampled, (), fuzzy=fuzzy, calibrate=calibrate, masked_tail=masked_tail
        )
        return (await self._drafts((prefix,), shape.depth, job))[0]

    async def draft_each(
        self, prefixes: Sequence[Prefix], shape: TreeShape, *, chain: bool = False
    ) -> list[Draft]:
        """Draft after each prefix; each forward drafts one level for all of them.

        With `chain` the shape is `Wide(1, n)`, and the drafts are those of `propose`.
        """
        job = Propose(self.name, (), Wide(1, 1) if chain else shape, (), True, (), chain)
        return await self._drafts(prefixes, shape.depth, job)

    def fan(
        self,
        prefix: Prefix,
        trunk: Draft,
        forks: Sequence[int],
        ask: Ask,
        *,
        sampled: bool = True,
        damping: tuple[Damping, ...] = (),
    ) -> Fanned:
        """Start to draft a branch for each likely outcome of the trunk's verification.

        Args:
            prefix: The tokens so far.
            trunk: The draft that is verified meanwhile, a chain.
            forks: How many guesses of the target's own token get a branch: after 0, 1, ... accepted
                tokens, and last after the whole trunk.
            ask: Tokens of a branch at most; fewer, or no branch, near the end of the output. It can
                end a branch earlier. `propose` with the same `Ask` completes a branch that was cut.
            sampled: As for `propose`.
            damping: As for `propose`.
        """
        room = self._remaining(prefix)
        lengths = tuple(max(0, min(ask.tokens, room - place - 1)) for place in range(len(trunk) + 1))
        counts = (*forks[: len(trunk)], forks[-1])
        q_buffer = self._q_buffer if sampled else None
        fan = Fanned(self._dispatcher, prefix, self.lanes, self._token, lambda: self._remaining(prefix) < 1)
        if not any(lengths):
            return fan
        branches = [length for count, length in zip(counts, lengths, strict=True) for _ in range(count)]
        leases = [q_buffer.lease(length) for length in branches] if q_buffer else []
        rows = tuple(lease.rows for lease in leases)
        how = (sampled, rows, damping, ask.stop_below)
        job = jobs.Fan(self.name, (prefix,), trunk.ids, counts, lengths, *how)
        spans = self._dispatcher.span_ids((1 + max(lengths)) * self.lanes)
        fan.start(self._dispatcher.submit(self.worker, self.role, job, spans), leases)
        self._cached[prefix.sequence] = (prefix + trunk.ids[: job.depth]).tokens
        return fan

    async def _drafts(self, prefixes: Sequence[Prefix], depth: int, job: Propose) -> list[Draft]:
        columns = (prefixes, [depth] * len(prefixes))
        return await self._calls.join(self.role, self._draft, columns, job)

    async def _draft(self, prefixes: Sequence[Prefix], depths: Sequence[int], job: Propose) -> list[Draft]:
        emitter = self._dispatcher.emitter
        levels = tuple(self._levels(p, n) for n, p in zip(depths, prefixes, strict=True))
        shape = Wide(1, max(levels, default=0)) if job.chain else job.shape
        q_buffer, parents = self._q_buffer if job.sampled else None, 0 if job.chain else shape.parents
        leases = [q_buffer.lease((parents or n) if n else 0) if q_buffer else None for n in levels]
        spans = self._dispatcher.span_ids(max(levels, default=0) * self.lanes)
        if job.chain:
            self._cached |= {p.sequence: p.tokens[: self.held(p)] for p in prefixes}
        trees: Sequence[tuple[Grown, ...]] = [()] * len(prefixes)
        reply: Reply | None = None
        if any(levels):
            rows = tuple(lease.rows if lease else () for lease in leases)
            job = replace(job, prefixes=tuple(prefixes), shape=shape, levels=levels, rows=rows)
            reply = await self._call(self._at_once(job), spans)
            trees = reply.value
        drafts = list[Draft]()
        for prefix, nodes, lease in zip(prefixes, trees, leases, strict=True):
            tokens = [(len(prefix) + node.level, self._token(node, spans)) for node in nodes]
            numbered = tuple(emitter.drafted(prefix.sequence, *one) for one in tokens)
            drafts.append(Draft(numbered, (lease,) if lease else ()))
        if job.chain:
            drafted = [(p, d) for p, d in zip(prefixes, drafts, strict=True) if d]
            self._cached |= {p.sequence: (p + d).tokens[:-1] for p, d in drafted}
        if reply is not None and reply.judged is not None and self.verifier is not None:
            judgement, stamps = reply.judged
            self.verifier.judged_early(prefixes[0], drafts[0], judgement, Reply(None, stamps))
            if reply.begun:
                self._ahead.began(prefixes[0] + judgement.emitted)
        return drafts

    def _at_once(self, job: Propose) -> Propose:
        """Return a job that verifies its draft at once, if the target is on this worker."""
        if self.verifier is None or len(job.prefixes) != 1:
            return job
        if self.verifier.has_early:  # the method verifies other drafts than those it asks for
            self._ahead.end()
            self.verifier = None
            return job
        (prefix,), (levels,) = job.prefixes, job.levels
        again = self._ahead.asks(prefix, levels, job.sampled)
        room = self._remaining(prefix) - levels - 1 >= levels
        return replace(job, then=self.verifier.name, ahead=again and room)

    @property
    def has_early(self) -> bool:
        return self._early is not None

    def judged_early(self, prefix: Prefix, draft: Draft, judgement: Judgement, reply: Reply) -> None:
        """Keep the judgement of a draft until `verify` asks for it."""
        spans = self._dispatcher.span_ids(3 * self.lanes)
        done = self._dispatcher.done(self.worker, self.role, prefix.sequence, reply, spans)
        self._early = EarlyJudgement(prefix, draft, judgement, done)

    def end(self) -> None:
        """The output has ended: no further round is wanted."""
        self._ahead.end()

    def _abandon(self, levels: int) -> None:
        spans, last = self._dispatcher.span_ids(levels + 2), self.verifier or self
        submission = self._dispatcher.submit(self.worker, self.role, Abandon(self.name), spans)
        submission.roles = {"verify": last.role, "sample": last.role}
        submission.stop()

    def _levels(self, prefix: Prefix, asked: int) -> int:
        return max(0, min(asked, self._remaining(prefix), self._allowed(prefix, asked)))

    def _allowed(self, prefix: Prefix, asked: int) -> int:
        """Return how many of the tokens asked for a policy of `specscope load` lets it draft."""
        return self._calls.allowed.get(prefix.sequence, asked)

    def _token(self, node: Grown, spans: Sequence[int]) -> DraftToken:
        q = None if node.row < 0 else RowRef(self.worker.name, node.row)
        span = spans[node.forward * self.lanes]
        return DraftToken(node.id, node.parent, q, node.probability, node.top, span)

    async def decode(self, prefix: Prefix, guesses: Draft, window: Tree) -> tuple[Draft, tuple[int, ...]]:
        """Draft by one forward of greedy decoding: the confirmed guesses, and one token more.

        Args:
            prefix: The tokens so far, drafted ones included.
            guesses: A tree of tokens; the output can take its longest path and one token more.
            window: Rows of a look-ahead window in the same forward; not judged.

        Returns:
            The drafted chain (rule 2 judges it); and the most probable token after the prefix, each
            guess and each row of the window.
        """
        columns = ((prefix,), (guesses,), (window,))
        return (await self._calls.join(self.role, self._decode, columns))[0]

    async def _decode(
        self, prefixes: Sequence[Prefix], guesses: Sequence[Draft], windows: Sequence[Tree]
    ) -> list[tuple[Draft, tuple[int, ...]]]:
        spans, exact = self._dispatcher.span_ids(self.lanes), [None] * len(guesses)
        judgements = await self._judgements(spans, prefixes, guesses, windows, exact, greedy=True)
        return [
            (self._confirmed(prefix, judgement, spans[0]), judgement.best)
            for prefix, judgement in zip(prefixes, judgements, strict=True)
        ]

    def _confirmed(self, prefix: Prefix, judgement: Judgement, span: int) -> Draft:
        kept = [j for j in judgement.judged if j.outcome not in ("rejected", "discarded")]
        tokens = (DraftToken(j.token, i - 1, None, j.p, j.top_p, span) for i, j in enumerate(kept))
        drafted = self._dispatcher.emitter.drafted
        return Draft(
            tuple(drafted(prefix.sequence, j.position, t) for j, t in zip(kept, tokens, strict=True))
        )

    # Verification.

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
        early = self._early
        if early is not None and window is None and typical is None and early.of(prefix, draft):
            self._early = None
            self._dispatcher.emitter.flush()
            return replace(await early.verdict(), draft=draft)  # which may have rows of the method
        columns = ((prefix,), (draft,), (window,), (typical,))
        return (await self._calls.join(self.role, self._verify, columns))[0]

    async def verify_each(self, prefixes: Sequence[Prefix], drafts: Sequence[Draft]) -> list[Verdict]:
        """Score and judge one draft per prefix, all in one forward."""
        if len(drafts) == 1:
            return [await self.verify(prefixes[0], drafts[0])]
        none = [None] * len(drafts)
        return await self._calls.join(self.role, self._verify, (prefixes, drafts, none, none))

    async def _verify(
        self,
        prefixes: Sequence[Prefix],
        drafts: Sequence[Draft],
        windows: Sequence[Tree | None],
        typicals: Sequence[Typical | None],
        chunks: tuple[Chunk, ...] = (),
    ) -> list[Verdict]:
        spans = self._dispatcher.span_ids((3 + len(chunks)) * self.lanes)
        judgements = await self._judgements(spans, prefixes, drafts, windows, typicals, chunks)
        ends = chunk_spans(chunks, spans, self.lanes)
        return [
            new_verdict(j, x, draft, mode_of(len(draft), len(draft)), ends.get(x.sequence, spans[0]))
            for j, x, draft in zip(judgements, prefixes, drafts, strict=True)
        ]

    async def _judgements(
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
        if is_plain and isinstance(self._calls, AtOnce):
            job = replace(job, ahead=self._ahead.asks(prefixes[0]) and self._remaining(prefixes[0]) > 1)
        reply = await self._call(job, spans)
        if reply.begun:
            self._ahead.began(prefixes[0] + reply.value[0].emitted)
        return reply.value

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        """Start one forward over prefix and draft; under load, with the sequences' next drafts."""
        scores = Scores(self.judge, prefix, len(draft))
        if isinstance(self._calls, Gathering):
            self._calls.begin("scores", self._score, ((scores,), (draft,)))
            return scores
        forward = self._start_scores((scores,), (draft,))
        finalizer = weakref.finalize(scores, self._dispatcher.forget, forward, scores.number)
        finalizer.atexit = False
        return scores

    async def _score(
        self, parts: Sequence[Scores], drafts: Sequence[Draft], chunks: tuple[Chunk, ...] = ()
    ) -> list[None]:
        await self._start_scores(parts, drafts, chunks).wait()
        return [None] * len(parts)

    def _start_scores(
        self, parts: Sequence[Scores], drafts: Sequence[Draft], chunks: tuple[Chunk, ...] = ()
    ) -> Submission:
        # the numbers of the logits are as unique as span ids
        spans = self._dispatcher.span_ids(max(self.lanes * (1 + len(chunks)), len(parts)))
        rows = tuple((draft.ids, draft.parents) for draft in drafts)
        job = Score(self.name, tuple(part.prefix for part in parts), rows, spans[0], chunks=chunks)
        forward = self._dispatcher.keep(self._dispatcher.submit(self.worker, self.role, job, spans))
        forward.kind = "verify"
        ends = chunk_spans(chunks, spans, self.lanes)
        for part, number in zip(parts, spans, strict=False):
            part.forward, part.number = forward, number
            part.span = ends.get(part.prefix.sequence, spans[0])
        return forward

    async def judge(self, scores: Scores, draft: Draft, bonus: bool, skip: int, mode: str) -> Verdict:
        """Judge a draft; see `Scores.judge`."""
        columns = ((scores,), (draft,), (bonus,), (skip,), (mode,))
        return (await self._calls.join("judge", self._judge, columns))[0]

    async def _judge(
        self,
        parts: Sequence[Scores],
        drafts: Sequence[Draft],
        bonuses: Sequence[bool],
        skips: Sequence[int],
        modes: Sequence[str],
    ) -> list[Verdict]:
        jobs = tuple(map(judge_job, (part.number for part in parts), drafts, bonuses, skips))
        usual = [mode_of(d.depth, p.rows - skip) for p, d, skip in zip(parts, drafts, skips, strict=True)]
        if isinstance(self._calls, Gathering):  # the forward is over
            record(parts, usual)
            judging = self._dispatcher.submit(self.worker, self.role, JudgeAll(jobs))
        else:
            judging = self._dispatcher.submit(self.worker, self.role, jobs[0])
            await parts[0]
            record(parts, usual)
        judging.spans = self._dispatcher.span_ids(2 * self.lanes)
        judging.sequence = parts[0].prefix.sequence if len(parts) == 1 else -1
        value = (await judging.result()).value
        judgements: Sequence[Judgement] = [value] if isinstance(value, Judgement) else value
        return [
            new_verdict(judgement, part.prefix, draft, mode or own, part.span)
            for judgement, part, draft, mode, own in zip(judgements, parts, drafts, modes, usual, strict=True)
        ]

    # Caches.

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
        await self._verify((), (), (), (), chunks)

    async def retire(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            await self._dispatcher.submit(self.worker, self.role, Retire(sequence)).reply

    async def _call(self, job: Job, spans: range) -> Reply:
        return await self._dispatcher.submit(self.worker, self.role, job, spans).result()
