"""The host: models with their KV slots on one device, and the synchronous execution of jobs.

Transports (thread, process, virtual) pass it jobs. It has no access to a run's clock or to other
devices.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from specscope.engine.errors import RunCancelled, SpecScopeError
from specscope.engine.model.fuzzy import SingleDevice
from specscope.engine.model.language import never
from specscope.engine.model.shard import Ranks
from specscope.engine.model.stage import StageIO
from specscope.engine.sampling.accept import judge
from specscope.engine.sampling.draws import Draws, argmax
from specscope.engine.sampling.rows import Case, read
from specscope.engine.sampling.verdict import TreeRows
from specscope.engine.types import NO_TREE, Draft, DraftToken, Judgement, Prefix, RowRef, Sampling
from specscope.engine.worker.drafting import Drafting, draft, read_round
from specscope.engine.worker.exchange import Exchange, ProcessRanks
from specscope.engine.worker.fan import fan
from specscope.engine.worker.forwards import Forwards
from specscope.engine.worker.head_forwards import prefill
from specscope.engine.worker.jobs import (
    PREFILL_ROWS,
    Abandon,
    AskCaches,
    Begin,
    Connect,
    Drop,
    Export,
    Fan,
    Grown,
    Import,
    Job,
    Join,
    Judge,
    JudgeAll,
    Link,
    LoadModel,
    Measure,
    Prefill,
    Propose,
    Reply,
    Retire,
    Score,
    Stamp,
    Verified,
)
from specscope.engine.worker.loading import load_model
from specscope.engine.worker.measuring import measure
from specscope.engine.worker.memory import out_of_memory, taken
from specscope.engine.worker.moving import move_rows
from specscope.engine.worker.rounds import Found, Rounds
from specscope.engine.worker.shared import attach

Scores: TypeAlias = tuple[torch.Tensor, Prefix]
"""The target's rows after a prefix, (R, V), and the prefix."""


def _model_and_stage(job: Prefill | Score) -> tuple[str, StageIO | None]:
    """Return the loaded model's name and a stage's input and output (None for a whole model)."""
    return (job.model, None) if job.stage is None else (job.stage.of(job.model), StageIO(job.stage.states))


def _parts(prefixes: Sequence[Prefix], cached: Sequence[int]) -> Iterator[list[Prefix]]:
    """Yield ever longer parts of the prefixes, by at most PREFILL_ROWS new tokens each."""
    rows = [(p, list(range(start, len(p), PREFILL_ROWS))) for p, start in zip(prefixes, cached, strict=True)]
    for number in range(max(len(starts) for _, starts in rows)):
        growing = [(p, starts[number]) for p, starts in rows if number < len(starts)]
        yield [Prefix(p.sequence, p.tokens[: start + PREFILL_ROWS]) for p, start in growing]


def _discard(row: int, q: torch.Tensor) -> None: ...


class Host:
    """Models, their KV slots, and the scores kept for judging.

    It writes the q buffer with its name and reads all others.
    """

    def __init__(self, name: str) -> None:
        self.forwards = Forwards()
        self._name = name
        self.q_buffers: dict[str, np.ndarray] = {}
        """Rows of q by drafting worker, (R, V) float32."""
        self._exchanges: dict[str, Exchange] = {}
        self._groups: dict[str, Ranks] = {}
        self._ranks: dict[str, Ranks] = {}
        """The ranks of each model that is split by tensors, and of the heads beside it."""
        self._scores: dict[int, Scores] = {}
        self.rounds = Rounds(self.forwards, self._draws)

    def ready(self, job: Job) -> bool:
        return not isinstance(job, Judge) or job.scores in self._scores

    def handle(self, job: Job, stopped: Callable[[], bool] = never) -> Reply:
        """Execute one job; `stopped` is checked between forwards, in a prefill between layers.

        Raises:
            OutOfMemory: The device has no memory for it. The KV caches are freed; the models stay.
        """
        try:
            return self._handle(job, stopped)
        except (MemoryError, RuntimeError) as error:
            shortage = out_of_memory(error, self._name, job, self.forwards)
            if shortage is None:
                raise
            self._scores.clear()
            self.rounds.forget()
            raise shortage from None

    def _handle(self, job: Job, stopped: Callable[[], bool]) -> Reply:
        stamps, value, judged = list[Stamp](), cast("Any", None), cast("Verified | None", None)
        computed = dict[int, Scores]()
        ranks = self._ranks.get(getattr(job, "model", ""))
        agree: Callable[[bool], bool] = bool if ranks is None else ranks.agree

        def stops() -> bool:
            return agree(stopped())  # all ranks stop at the same place

        if isinstance(job, Prefill | Propose | Fan | Score):
            self.forwards.record_lengths(job.prefixes)
        if isinstance(job, Prefill | Fan | Import):
            self.rounds.end()  # it would write to the same rows
        match job:
            case LoadModel():
                value = load_model(self.forwards, job, self._groups, self._ranks)
            case Connect():
                self.q_buffers = {name: attach(path, shape) for name, path, shape in job.q_buffers}
            case Join():
                self._exchanges[job.group] = Exchange(job.path, job.rank, job.ways)
            case Link():
                self._groups[job.group] = ProcessRanks(job.path, job.rank, job.ways, job.backend)
            case Begin():
                self._begin(job)
                self.forwards.clock.wait()  # other threads and streams read the caches
            case AskCaches():
                value = taken(self.forwards, job)
            case Retire():
                self.forwards.retire(job.sequence)
            case Prefill():
                value = self._prefill(job, stamps, stops)
            case Propose():
                value, judged = self._propose(job, stamps, stops)
            case Fan():
                value = fan(self.forwards, job, self._drafting(job), stamps, stops)
            case Export() | Import():
                value = move_rows(self.forwards, job, stamps)
            case Score():
                value = self._score(job, stamps, computed)
            case Abandon():
                stamps += self.rounds.abandon()
            case Judge():
                value = self._judge([job], [self._scores[job.scores]], stamps)[0]
            case JudgeAll():
                kept = [self._scores.pop(judge.scores) for judge in job.judges]
                value = self._judge(job.judges, kept, stamps)
            case Drop():
                self._scores.pop(job.scores, None)
            case Measure():
                model = job.model if job.stage is None else job.stage.of(job.model)
                value = measure(self.forwards.models[model], job, stopped, agree)
        time_of = self.forwards.clock.read()
        self._scores |= computed  # a judge on another stream may read them now
        if judged is not None:
            judged = judged._replace(stamps=tuple(stamp.read(time_of) for stamp in judged.stamps))
        begun = isinstance(job, Propose | Score) and self.rounds.begun
        return Reply(value, tuple(stamp.read(time_of) for stamp in stamps), judged, begun)

    def _begin(self, job: Begin) -> None:
        self._scores.clear()
        self.rounds.begin()
        self.forwards.begin(job)
        for exchange in self._exchanges.values():
            exchange.begin(job.run)

    def _draws(self, sequence: int) -> Draws:
        """Return a sequence's draws: as in a run of its prompt alone with seed + sequence."""
        return Draws(self.forwards.run.sampling.seed + sequence, 0)

    def _prefill(self, job: Prefill, stamps: list[Stamp], stopped: Callable[[], bool]) -> bytes | None:
        prefixes = [Prefix(p.sequence, p.tokens[:-1]) for p in job.prefixes if len(p) > 1]
        model, stage_io = _model_and_stage(job)
        if job.model in self.forwards.heads:
            prefill(self.forwards, job.model, prefixes, stamps)
        elif prefixes:
            cached = [self.forwards.cached(model, prefix) for prefix in prefixes]
            parts = _parts(prefixes, cached) if stage_io is None else [prefixes]
            with contextlib.suppress(RunCancelled):
                for part in parts:
                    rows = model, part, [NO_TREE] * len(part), stamps, "prefill"
                    self.forwards.extend(*rows, logits=False, stage_io=stage_io, stopped=stopped)
        return stage_io.outgoing if stage_io else None

    def _drafting(self, job: Propose | Fan) -> Drafting:
        group = job.group if isinstance(job, Propose) else ""
        partners = self._exchanges[group] if group else SingleDevice()
        ranks, run = self._ranks.get(job.model), self.forwards.run
        # all workers of a group draft the same; judges read the leader's q
        leads = partners.rank == 0 and (ranks is None or ranks.rank == 0)
        write = self._write if leads else _discard
        return Drafting(run.sampling, self._draws, run.vocab_size, write, partners)

    def _propose(
        self, job: Propose, stamps: list[Stamp], stopped: Callable[[], bool]
    ) -> tuple[tuple[tuple[Grown, ...], ...], Verified | None]:
        """Draft; also judge the draft's verification if the device has made it at once."""
        drafting = self._drafting(job)
        found = self.rounds.run(job)
        if found is None:
            return draft(self.forwards, job, drafting, stamps, stopped), None
        trees = read_round(job, drafting, found, stamps)
        tokens = (
            DraftToken(n.id, n.parent, None if n.row < 0 else RowRef(self._name, n.row), n.probability)
            for n in trees[0]
        )
        drafted = Draft(tuple(tokens))
        judgement = self._judge_round(found, drafted)
        return trees, Verified(judgement, tuple(found.verification(len(drafted))))

    def _judge_round(self, found: Found, draft: Draft) -> Judgement:
        """Judge a round by the numbers that the device compared (SpecScopeError if it differs)."""
        sampling, size = self.forwards.run.sampling, self.forwards.models[found.asked.target].vocab_size
        prefix, facts, asked = found.prefix, found.facts, found.asked
        if facts.tokens != draft.ids:
            raise SpecScopeError(f"the device drafted {facts.tokens}, the host {draft.ids}")
        given = (facts.verdict, asked.form, facts.nodes, draft, size)
        rows = TreeRows(*given, drawn=asked.drawn, sampled=not sampling.greedy)
        draws = self._draws(prefix.sequence)
        judgement = judge(rows, draft, self._q_row, position=len(prefix), sampling=sampling, draws=draws)
        rows.check(judgement)
        self.rounds.record(found, judgement.accepted, judgement.emitted)
        return judgement

    def _score(
        self, job: Score, stamps: list[Stamp], computed: dict[int, Scores]
    ) -> tuple[Judgement, ...] | bytes | None:
        if (found := self.rounds.run(job)) is not None:
            stamps += found.verification(0)
            return (self._judge_round(found, Draft.empty()),)
        kind = "draft" if job.greedy else "verify"
        model, stage_io = _model_and_stage(job)
        decoding = {prefix.sequence for prefix in job.prefixes}  # or their prompts end here
        prompts = [chunk.prefix for chunk in job.chunks if chunk.prefix.sequence not in decoding]
        logits = self.forwards.extend(
            model, job.prefixes, job.drafts, stamps, kind, prompts=prompts, stage_io=stage_io
        )
        if stage_io is not None and stage_io.outgoing is not None:
            return stage_io.outgoing
        if not job.prefixes:  # only parts of prompts
            return ()
        scores = list(zip(logits, job.prefixes, strict=True))
        if not job.judges:
            computed |= enumerate(scores, job.scores)
            return None
        if not job.greedy:
            return self._judge(job.judges, scores, stamps, best=job.best)
        scores = [(rows[:, : self.forwards.run.vocab_size], prefix) for rows, prefix in scores]
        return self._decide(job.judges, scores, Sampling(), best=job.best)

    def _write(self, row: int, q: torch.Tensor) -> None:
        out = self.q_buffers[self._name][row]
        out[: len(q)] = q.cpu().numpy()
        out[len(q) :] = 0

    def _q_row(self, token: DraftToken) -> torch.Tensor | None:
        return None if token.q is None else torch.from_numpy(self.q_buffers[token.q.buffer][token.q.row])

    def _judge(
        self, jobs: Sequence[Judge], scores: Sequence[Scores], stamps: list[Stamp], *, best: bool = False
    ) -> tuple[Judgement, ...]:
        start = self.forwards.clock.mark()
        judgements = self._decide(jobs, scores, self.forwards.run.sampling, best=best)
        judged = sum(len(job.draft) for job in jobs)
        stamps.append(Stamp("sample", start, time.perf_counter_ns(), judged, 0))
        return judgements

    def _decide(
        self, jobs: Sequence[Judge], scores: Sequence[Scores], sampling: Sampling, *, best: bool
    ) -> tuple[Judgement, ...]:
        """Judge the drafts of several sequences.

        Rows in the host's memory are read number by number, those of a GPU ahead, all at once.
        """
        cases = [
            Case(rows[j.skip :], j.draft, len(x) + j.skip, self._draws(x.sequence), j.bonus, j.typical)
            for j, (rows, x) in zip(jobs, scores, strict=True)
        ]
        packed = read(cases, sampling) if scores[0][0].is_cuda else None
        judgements = [
            judge(
                case.logits if packed is None else packed[i],
                case.draft,
                self._q_row,
                position=case.position,
                sampling=sampling,
                draws=case.draws,
                bonus=case.bonus,
                typical=case.typical,
            )
            for i, case in enumerate(cases)
        ]
        if best:
            ids = (
                [argmax(rows) for rows, _ in scores] if packed is None else [rows.argmax() for rows in packed]
            )
            judgements = [replace(j, best=tuple(row)) for j, row in zip(judgements, ids, strict=True)]
        return tuple(judgements)


def outcome(handle: Callable[[], Reply]) -> Reply | SpecScopeError:
    """Return a job's reply or its error; one that nobody expected ends the run, not the worker."""
    try:
        return handle()
    except SpecScopeError as error:
        return error
    except Exception as error:  # noqa: BLE001 - see above
        found = SpecScopeError(" ".join(f"{type(error).__name__}: {error}".split()))
        found.add_note(traceback.format_exc())  # the message stays one line
        return found
