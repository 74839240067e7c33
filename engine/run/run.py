"""What a method sees of a run: sequences, models and `commit`. The run records everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from collections.abc import Sequence as Seq
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from specscope.engine.run.drafters import DraftModel
from specscope.engine.run.gathering import AtOnce
from specscope.engine.run.models import Model
from specscope.engine.run.targets import TargetModel
from specscope.engine.trace.events import Document
from specscope.engine.trace.rows import Committed
from specscope.engine.types import Draft, Limits, Prefix, Verdict

if TYPE_CHECKING:
    from specscope.engine.checkpoints.text import IncrementalText
    from specscope.engine.drafting.ngrams import Lookahead
    from specscope.engine.drafting.suffix import Finished
    from specscope.engine.run.dispatch import Dispatcher
    from specscope.engine.run.gathering import Gathering
    from specscope.engine.worker.shared import QBuffer
    from specscope.engine.worker.worker import Worker


class Sequence:
    """A prompt, at least one token, and the tokens committed after it.

    Only here EOS, stop strings and limits end it.
    """

    def __init__(self, number: int, prompt: Seq[int], limits: Limits, decoder: IncrementalText) -> None:
        self.x = Prefix(number, np.asarray(prompt, dtype=np.int64))
        self.prompt_length = len(prompt)
        self.text = ""
        self.reason = ""
        """Why it ended: eos, stop or length; empty before."""
        self._limits = limits
        self._decoder = decoder
        self._withheld = ""
        """The end of the text that may begin a stop string."""

    @property
    def done(self) -> bool:
        return bool(self.reason)

    def remaining(self, prefix: Prefix) -> int:
        return self.prompt_length + self._limits.max_new_tokens - len(prefix)

    def push(self, token: int) -> str:
        self.x = self.x + (token,)  # noqa: RUF005 - a Prefix, not a tuple
        is_eos = token in self._limits.eos
        added = self._withheld + ("" if is_eos else self._decoder.push(token))
        if is_eos:
            self.reason = "eos"
        elif self.remaining(self.x) <= 0:
            self.reason = "length"
        if self.reason:
            added += self._decoder.flush()
        cut = min((i for s in self._limits.stop if (i := added.find(s)) >= 0), default=-1)
        if cut >= 0:
            self.reason, added = "stop", added[:cut]
        self._withheld = "" if self.reason else self._stop_prefix(added)
        added = added[: len(added) - len(self._withheld)]
        self.text += added
        return added

    def _stop_prefix(self, text: str) -> str:
        longest = max((len(s) - 1 for s in self._limits.stop), default=0)
        for n in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._limits.stop):
                return text[-n:]
        return ""


class Run:
    """One run of one method.

    Args:
        sequences: The sequences to decode, at least one.
        workers: The workers of `target` and of `drafter`.
        drafters: The name of each drafting worker's model: a drafter, or a drafting head.
        q_buffers: For sampled drafts, by the drafting worker's name; none for a greedy run.
        dispatcher: Submits the jobs.
        clock: Returns nanoseconds since the run's start.
        encode: Text -> token ids, without special ones.
        calls: See `Model`.
        readers: Names of the drafters that get the target's KV rows of a prompt.
        finished: Outputs of earlier sequences; a method that drafts from them adds its own.
    """

    def __init__(
        self,
        sequences: Seq[Sequence],
        workers: Mapping[str, Seq[Worker]],
        drafters: Seq[str],
        q_buffers: Mapping[str, QBuffer],
        dispatcher: Dispatcher,
        *,
        clock: Callable[[], int],
        encode: Callable[[str], tuple[int, ...]],
        calls: AtOnce | Gathering,
        readers: Collection[str] = (),
        finished: Finished,
    ) -> None:
        self.sequences, self.finished = sequences, finished

        def remaining(prefix: Prefix) -> int:
            sequence = sequences[prefix.sequence]
            return 0 if sequence.done else sequence.remaining(prefix)

        def model(worker: Worker, name: str, role: str) -> Model:
            return Model(dispatcher, worker, name, role, remaining, calls)

        def verifier(worker: Worker) -> TargetModel | None:
            beside = (target for target in self.targets if target.model.worker is worker)
            return next(beside, None) if isinstance(calls, AtOnce) else None

        self.targets = [
            TargetModel(model(worker, "target", "target")) for worker in workers.get("target", ())
        ]
        self.drafters = [
            DraftModel(model(worker, name, "drafter"), q_buffers.get(worker.name), verifier(worker))
            for name, worker in zip(drafters, workers.get("drafter", ()), strict=True)
        ]
        self._models = [each.model for each in (*self.drafters, *self.targets)]
        self._readers = [model for model in self._models if model.name in readers]
        self._dispatcher = dispatcher
        self._clock = clock
        self._encode = encode
        self._documents: dict[tuple[int, ...], int] = {}
        self._all = sequences
        self._counts_rounds = True

    @property
    def x(self) -> Prefix:
        """The prompt and all committed tokens of the (first) sequence."""
        return self.sequences[0].x

    @property
    def done(self) -> bool:
        return self.sequences[0].done

    @property
    def remaining(self) -> int:
        return self.sequences[0].remaining(self.x)

    @property
    def output(self) -> tuple[int, ...]:
        """The committed tokens of the (first) sequence."""
        return tuple(self.x.tokens[self.sequences[0].prompt_length :].tolist())

    @property
    def step(self) -> int:
        """The current round, from 1; 0 during prefill."""
        return self._dispatcher.step

    @property
    def drafter(self) -> DraftModel:
        return self.drafters[0]

    @property
    def target(self) -> TargetModel:
        return self.targets[0]

    def race(self) -> Racing:
        return Racing()

    def document(self, text: str) -> tuple[int, ...]:
        tokens = self._encode(text)
        self.record(tokens)
        return tokens

    def record(self, tokens: tuple[int, ...]) -> int:
        """Record a text that drafts are copied from, once; return its index among the documents."""
        if tokens not in self._documents:
            self._documents[tokens] = len(self._documents)
            self._dispatcher.emitter.rows([Document(self._documents[tokens], tokens)])
        return self._documents[tokens]

    def sequence(self, number: int) -> Sequence:
        return self._all[number]

    def of(self, number: int) -> Run:
        """Return this run as the method of one of its sequences sees it: without the others.

        The models are shared. Rounds are those of all sequences, so a commit begins none.
        """
        view = copy(self)
        view.sequences, view._counts_rounds = [self.sequence(number)], False
        return view

    async def start(self, n: int) -> None:
        await self.prefill(range(n))
        self._dispatcher.step = 1

    async def prefill(self, numbers: Seq[int]) -> None:
        """Cache sequences on all models, without their last tokens.

        All models compute at once; the drafters that read the target's KV rows get them afterwards.
        """
        prefixes = [self.sequence(number).x for number in numbers]
        # heads are last: they read the hidden states that the target leaves on their worker
        heads_last = sorted(self._models, key=lambda model: model.name != model.role)
        async with asyncio.TaskGroup() as prefills:
            for model in heads_last:
                if model not in self._readers:
                    prefills.create_task(model.prefill(prefixes))
        for reader in self._readers:
            for prefix in prefixes:
                await self.target.model.move(prefix, to=reader)

    async def retire(self, numbers: Seq[int]) -> None:
        for model in self._models:
            await model.retire(numbers)

    def commit(self, *verdicts: Verdict, kept: Draft | None = None, pool: Lookahead | None = None) -> None:
        """Append the verdicts' tokens, up to the end of their sequences, and record the round.

        Args:
            verdicts: One for each sequence of the round.
            kept: Drafted tokens that may be judged later; all others are discarded. If None, all
                may be, until a verdict rejects a token.
            pool: The pool of n-grams that drafted, for the trace.
        """
        emitter, step, now = self._dispatcher.emitter, self.step, self._clock()
        kept_ids = {token.number for token in kept.tokens} if kept else set[int]()
        for verdict in verdicts:
            sequence = self.sequence(verdict.sequence)
            committed = self._append(verdict)
            if verdict.draft.source is not None:
                emitter.defer(emitter.prompt, verdict.sequence, sequence.x.tokens[: sequence.prompt_length])
            emitter.defer(emitter.round, step, verdict, committed, now)
            if pool is not None:
                emitter.defer(emitter.pool, step, verdict, pool.update())
            if sequence.done:
                for model in self._models:  # no further round is wanted
                    model.ahead.end()
            if kept is not None or verdict.own is not None or sequence.done:
                emitter.defer(emitter.discard, step, verdict.sequence, kept_ids)
        if self._counts_rounds:
            self._dispatcher.step += 1

    def _append(self, verdict: Verdict) -> list[Committed]:
        sequence, committed = self.sequence(verdict.sequence), list[Committed]()
        for token, origin in zip(verdict.emitted, verdict.origins, strict=True):
            if sequence.done:
                break
            position = len(sequence.x)
            committed.append(Committed(position, token, origin, sequence.push(token)))
        return committed


class Racing:
    """Concurrent work with results in the order in which they are ready (DSI).

    Use it as `async with run.race() as race`. Leaving the block cancels the running work, in order
    of its start, without waiting: the method continues at once, but a device stays busy until its
    forward ends. An error of the work is raised by the iteration.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], None] = {}
        self._finished: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._running[task] = None
        task.add_done_callback(self._finish)
        return task

    def stop(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel one piece of work, or drop its result if the iteration has not yielded it."""
        if task in self._running:
            del self._running[task]
            task.cancel()

    def _finish(self, task: asyncio.Task[Any]) -> None:
        if task in self._running:
            self._finished.put_nowait(task)
        elif not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not report it

    async def __aenter__(self) -> Racing:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, self._running = self._running, {}
        for task in running:
            task.cancel()

    def __aiter__(self) -> Racing:
        return self

    async def __anext__(self) -> list[Any]:
        """Return all ready results, at least one; the iteration ends if no work is running."""
        ready = list[asyncio.Task[Any]]()
        while not ready:
            if not self._running:
                raise StopAsyncIteration
            done = [await self._finished.get()]
            while not self._finished.empty():
                done.append(self._finished.get_nowait())
            ready = [task for task in done if task in self._running]
        for task in ready:
            del self._running[task]
        return [task.result() for task in ready]
