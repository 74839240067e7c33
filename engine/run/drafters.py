"""A drafter as a method sees it: chains, trees and fans of drafted tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specscope.engine.drafting.schedule import Ask
from specscope.engine.drafting.tree import TreeShape, Wide
from specscope.engine.run.fan import Fanned
from specscope.engine.run.models import Model
from specscope.engine.run.targets import TargetModel
from specscope.engine.trace.events import Chain
from specscope.engine.types import Damping, Draft, DraftToken, Judgement, Prefix, RowRef, Tree
from specscope.engine.worker import jobs
from specscope.engine.worker.jobs import Grown, Propose, Reply
from specscope.engine.worker.shared import QBuffer


class DraftModel:
    """A drafter or a drafting head.

    Args:
        model: The model.
        q_buffer: Rows of q for sampled drafts; None in a greedy run.
        verifier: The target on the same worker, which may verify drafts at once.
    """

    def __init__(self, model: Model, q_buffer: QBuffer | None, verifier: TargetModel | None) -> None:
        self.model, self.verifier, self._q_buffer = model, verifier, q_buffer

    async def move(self, prefix: Prefix, to: DraftModel) -> None:
        """Copy the KV rows of a prefix to another worker's model; see `Model.move`."""
        await self.model.move(prefix, to.model)

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
        dispatcher, draft = self.model.dispatcher, begun or Draft.empty()
        emitter, step = dispatcher.emitter, dispatcher.step
        job = Propose(self.model.name, (), Wide(1, 1), (), sampled, (), chain=True, stop_below=ask.stop_below)
        try:
            job = replace(job, damping=damping[len(draft) :])
            draft += (await self._drafts((prefix + draft,), ask.rest(draft), job))[0]
        finally:
            if isinstance(n, Ask):
                span = draft.tokens[0].span if draft else -1
                stop = ask.stop(draft, self.model.remaining(prefix), self._allowed(prefix, ask.tokens))
                facts = (ask.tokens, len(draft), stop, span)
                emitter.flush()
                emitter.rows([Chain(step, prefix.sequence, len(prefix), *facts)])
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
        name = self.model.name
        job = Propose(
            name, (), shape, (), sampled, (), fuzzy=fuzzy, calibrate=calibrate, masked_tail=masked_tail
        )
        return (await self._drafts((prefix,), shape.depth, job))[0]

    async def draft_each(
        self, prefixes: Sequence[Prefix], shape: TreeShape, *, chain: bool = False
    ) -> list[Draft]:
        """Draft after each prefix; each forward drafts one level for all of them.

        With `chain` the shape is `Wide(1, n)`, and the drafts are those of `propose`.
        """
        job = Propose(self.model.name, (), Wide(1, 1) if chain else shape, (), True, (), chain)
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
        model, room = self.model, self.model.remaining(prefix)
        lengths = tuple(max(0, min(ask.tokens, room - place - 1)) for place in range(len(trunk) + 1))
        counts = (*forks[: len(trunk)], forks[-1])
        q_buffer = self._q_buffer if sampled else None
        fan = Fanned(model.dispatcher, prefix, model.lanes, self._token, lambda: model.remaining(prefix) < 1)
        if not any(lengths):
            return fan
        branches = [length for count, length in zip(counts, lengths, strict=True) for _ in range(count)]
        leases = [q_buffer.lease(length) for length in branches] if q_buffer else []
        rows = tuple(lease.rows for lease in leases)
        how = (sampled, rows, damping, ask.stop_below)
        job = jobs.Fan(model.name, (prefix,), trunk.ids, counts, lengths, *how)
        fan.start(model.submit(job, model.span_ids(1 + max(lengths))), leases)
        model.cached[prefix.sequence] = (prefix + trunk.ids[: job.depth]).tokens
        return fan

    async def _drafts(self, prefixes: Sequence[Prefix], depth: int, job: Propose) -> list[Draft]:
        columns = (prefixes, [depth] * len(prefixes))
        return await self.model.join(self._draft, columns, job)

    async def _draft(self, prefixes: Sequence[Prefix], depths: Sequence[int], job: Propose) -> list[Draft]:
        emitter = self.model.dispatcher.emitter
        levels = tuple(self._levels(p, n) for n, p in zip(depths, prefixes, strict=True))
        shape = Wide(1, max(levels, default=0)) if job.chain else job.shape
        q_buffer, parents = self._q_buffer if job.sampled else None, 0 if job.chain else shape.parents
        leases = [q_buffer.lease((parents or n) if n else 0) if q_buffer else None for n in levels]
        spans = self.model.span_ids(max(levels, default=0))
        if job.chain:
            self.model.cached |= {p.sequence: p.tokens[: self.model.held(p)] for p in prefixes}
        trees: Sequence[tuple[Grown, ...]] = [()] * len(prefixes)
        reply: Reply | None = None
        if any(levels):
            rows = tuple(lease.rows if lease else () for lease in leases)
            job = replace(job, prefixes=tuple(prefixes), shape=shape, levels=levels, rows=rows)
            reply = await self.model.call(self._at_once(job), spans)
            trees = reply.value
        drafts = list[Draft]()
        for prefix, nodes, lease in zip(prefixes, trees, leases, strict=True):
            tokens = [(len(prefix) + node.level, self._token(node, spans)) for node in nodes]
            numbered = tuple(emitter.drafted(prefix.sequence, *one) for one in tokens)
            drafts.append(Draft(numbered, (lease,) if lease else ()))
        if job.chain:
            drafted = [(p, d) for p, d in zip(prefixes, drafts, strict=True) if d]
            self.model.cached |= {p.sequence: (p + d).tokens[:-1] for p, d in drafted}
        if reply is not None and reply.judged is not None and self.verifier is not None:
            judgement, stamps = reply.judged
            self.verifier.judged_early(prefixes[0], drafts[0], judgement, Reply(None, stamps))
            if reply.begun:
                self.model.ahead.began(prefixes[0] + judgement.emitted)
        return drafts

    def _at_once(self, job: Propose) -> Propose:
        """Return a job that verifies its draft at once, if the target is on this worker."""
        if self.verifier is None or len(job.prefixes) != 1:
            return job
        if self.verifier.early is not None:  # the method verifies other drafts than those it asks for
            self.model.ahead.end()
            self.verifier = None
            return job
        (prefix,), (levels,) = job.prefixes, job.levels
        again = self.model.ahead.asks(prefix, levels, job.sampled)
        room = self.model.remaining(prefix) - levels - 1 >= levels
        return replace(job, then=self.verifier.model.name, ahead=again and room)

    def _levels(self, prefix: Prefix, asked: int) -> int:
        return max(0, min(asked, self.model.remaining(prefix), self._allowed(prefix, asked)))

    def _allowed(self, prefix: Prefix, asked: int) -> int:
        """Return how many of the tokens asked for a policy of `specscope load` lets it draft."""
        return self.model.calls.allowed.get(prefix.sequence, asked)

    def _token(self, node: Grown, spans: Sequence[int]) -> DraftToken:
        q = None if node.row < 0 else RowRef(self.model.worker.name, node.row)
        span = spans[node.forward * self.model.lanes]
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
        return (await self.model.join(self._decode, columns))[0]

    async def _decode(
        self, prefixes: Sequence[Prefix], guesses: Sequence[Draft], windows: Sequence[Tree]
    ) -> list[tuple[Draft, tuple[int, ...]]]:
        spans, exact = self.model.span_ids(1), [None] * len(guesses)
        judgements = await self.model.judgements(spans, prefixes, guesses, windows, exact, greedy=True)
        return [
            (self._confirmed(prefix, judgement, spans[0]), judgement.best)
            for prefix, judgement in zip(prefixes, judgements, strict=True)
        ]

    def _confirmed(self, prefix: Prefix, judgement: Judgement, span: int) -> Draft:
        kept = [j for j in judgement.judged if j.outcome not in ("rejected", "discarded")]
        tokens = (DraftToken(j.token, i - 1, None, j.p, j.top_p, span) for i, j in enumerate(kept))
        drafted = self.model.dispatcher.emitter.drafted
        return Draft(
            tuple(drafted(prefix.sequence, j.position, t) for j, t in zip(kept, tokens, strict=True))
        )
