"""The hooks of a model runner: what each step was given, made and took.

The first runner (V1) samples in `_sample` and drafts in `propose_draft_token_ids`; the second (V2,
vLLM's choice on GPUs) samples in `sample` and drafts in `speculator.propose`. With asynchronous
scheduling the drafted and sampled ids that vLLM's scheduler has are placeholders: all ids are
copied from the runner's own tensors.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from time import thread_time_ns
from typing import Any

from specscope.engine.errors import UsageError, one_line
from specscope.engine.vllm import chances
from specscope.engine.vllm.chances import Asked, ChanceRows, fetched
from specscope.engine.vllm.sender import Sender
from specscope.engine.vllm.step import Step

log = logging.getLogger("vllm.specscope")
V1 = ("execute_model", "sample_tokens", "_sample", "propose_draft_token_ids", "_get_spec_decode_draft_probs")
V2 = ("execute_model", "sample_tokens", "sample")
PROBS = os.environ.get("SPECSCOPE_PROBS") != "0"


class Watch:
    """Hooks of one runner. The first failure takes them all away, and is one line of the log."""

    def __init__(self, runner: Any, sender: Sender) -> None:
        self.runner, self.sender, self.clock = runner, sender, sender.clock
        self.step: Step | None = None
        self._cost = 0
        """Nanoseconds of the worker's thread that the hooks took since the last step."""
        self._asked: dict[str, Asked | None] = {}
        self._p = self._q = None
        self._rows = ChanceRows([], [])
        self._hooked: list[tuple[Any, str, Any]] = []
        mine = weakref.WeakMethod(self.stop)  # the sender lives as long as the process, the runner may not
        sender.failed = lambda why: (stop := mine()) and stop(why)
        weakref.finalize(self, sender.close).atexit = False
        self._hook(runner, "execute_model", before=self._begin, after=self._forwarded, kind="forward")
        self._hook(runner, "sample_tokens", before=self._grammar, after=self._end)
        if hasattr(runner, "_sample"):
            self._hook(runner, "_sample", before=self._before_v1, after=self._after_v1, kind="sample")
            self._hook(runner, "propose_draft_token_ids", kind="draft")
            self._hook(runner, "_get_spec_decode_draft_probs", after=self._drafter)
        else:
            self._hook(runner, "sample", before=self._before_v2, after=self._after_v2, kind="sample")
            self._hook(runner.sampler, "apply_sampling_params", before=self._chances)
            if runner.speculator is not None:
                self._hook(runner.speculator, "propose", kind="draft")

    @staticmethod
    def check(runner: Any) -> None:
        """Raise UsageError for a runner that is not known."""
        if not any(all(callable(getattr(runner, name, None)) for name in names) for names in (V1, V2)):
            raise UsageError(f"the model runner {type(runner).__name__} has not the methods of vLLM 0.32")
        for part in ("adaptive_verification", "batch_sharder", "pcp_manager"):
            if getattr(runner, part, None) is not None:
                raise UsageError(f"a runner with {part} is not recorded")

    def _hook(
        self,
        owner: Any,
        name: str,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
        kind: str = "",
    ) -> None:
        """Call `before` with the arguments of a method, and `after` with its result and those.

        With a kind the method is also a timed part of the step.
        """
        method = getattr(owner, name)

        @wraps(method)
        def hooked(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                self._guard(before, args, kwargs)
            begin = self._guard(self.clock.mark, (), {}) if kind else None
            result = method(*args, **kwargs)
            if begin is not None and self.step is not None:
                self._guard(self._timed, (kind, begin), {})
            if after is not None:
                self._guard(after, (result, *args), kwargs)
            return result

        self._hooked.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, hooked)

    def _guard(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what records; its failure ends the recording and never the server's step."""
        if not self._hooked:
            return None
        begun = thread_time_ns()
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            self.stop(f"{type(error).__name__}: {one_line(error)}")
            return None
        finally:
            self._cost += thread_time_ns() - begun

    def stop(self, why: str) -> None:
        """Take the hooks away and end the recordings; the log has one line."""
        hooked, self._hooked, self.step = self._hooked, [], None
        for owner, name, own in hooked:
            if own is None:
                owner.__dict__.pop(name, None)
            else:
                setattr(owner, name, own)
        if hooked:
            log.warning("SpecScope stops recording, vLLM goes on: %s", why)
            self.sender.close(why)

    def _timed(self, kind: str, begin: Any) -> None:
        assert self.step is not None
        self.step.marks.append((kind, begin, self.clock.mark()))

    def _begin(self, scheduled: Any, *_: Any, **more: Any) -> None:
        self.step = self._p = self._q = None
        if more.get("dummy_run"):
            return
        self.step = Step(scheduled)
        for name in scheduled.finished_req_ids:
            self._asked.pop(name, None)
        for new in scheduled.scheduled_new_reqs:
            self._asked[new.req_id] = Asked.of(new.sampling_params) if new.sampling_params else None

    def _forwarded(self, result: Any, *_: Any, **__: Any) -> None:
        if result is not None:  # nothing was scheduled: no tokens will be sampled
            self._end()

    def _grammar(self, grammar: Any) -> None:
        """Keep how many drafts of each request its grammar allows; the runner is fed all."""
        if self.step is not None and grammar is not None and grammar.num_acceptable_drafts is not None:
            names, allowed = grammar.structured_output_request_ids, grammar.num_acceptable_drafts
            self.step.said["allowed"] = dict(zip(names, allowed, strict=True))

    def _end(self, *_: Any, **__: Any) -> None:
        if self.step is not None:
            self.step.done = self.clock.mark()
            self.step.said["cost"], self._cost = self._cost, 0
            self.sender.put(self.step)
            self.step = None

    def _before_v1(self, logits: Any, drafts: Any) -> None:
        """Compute p: `_sample` changes logits in place."""
        if self.step is not None and logits is not None:
            names = self.runner.input_batch.req_ids
            self._prepare(names, drafts.num_draft_tokens if drafts else [0] * len(names))
            self._chances(logits)

    def _before_v2(self, _: Any, batch: Any, *__: Any) -> None:
        if self.step is not None:
            self._prepare(
                batch.req_ids, [int(n) - 1 for n in batch.cu_num_logits_np[1:] - batch.cu_num_logits_np[:-1]]
            )

    def _prepare(self, names: Sequence[str], drafts: Sequence[int]) -> None:
        self._p = self._q = None
        self._rows = ChanceRows([self._asked.get(name) for name in names], drafts)

    def _chances(self, logits: Any, *_: Any, **__: Any) -> None:
        """Compute p, unless these are the logits of a part of the batch."""
        if PROBS and self.step is not None and logits.shape[0] == self._rows.size:
            self._p = chances.target(logits, self._rows)

    def _drafter(self, q: Any, *_: Any) -> None:
        """Keep the distributions of the first runner's drafter, [drafts, vocabulary]."""
        self._q = q

    def _after_v1(self, result: Any, _: Any, drafts: Any) -> None:
        if self.step is None:
            return
        runner, ids = self.runner, result.sampled_token_ids
        counts = ((ids >= 0) & (ids < runner.input_batch.vocab_size)).sum(-1)
        drafted = drafts.draft_token_ids if drafts else None
        q = None if self._q is None or not PROBS else chances.chosen(self._q, drafted)
        self._take(runner.input_batch.req_ids, ids, counts, drafted, q)
        self.step.said["partial"] = runner.discard_request_mask.np[: len(ids)].nonzero()[0].tolist()

    def _after_v2(self, result: Any, _: Any, batch: Any, *__: Any) -> None:
        if self.step is None:
            return
        taken, counts, _ = result
        drafted = q = None
        if self._rows.drafted:
            fed = chances.sent([row + 1 for row in self._rows.drafted], batch.logits_indices, whole=True)
            drafted = batch.input_ids[batch.logits_indices[fed]]
            logits = getattr(self.runner.speculator, "draft_logits", None)
            if logits is not None and PROBS:
                q = chances.of_drafter(logits, self._rows, batch.idx_mapping, drafted)
        self._take(batch.req_ids, taken.sampled_token_ids, counts, drafted, q)

    def _take(self, names: Sequence[str], ids: Any, counts: Any, drafted: Any, q: Any) -> None:
        """Copy ids, p and q to the host."""
        assert self.step is not None
        p, rows = self._p, self._rows
        self.step.said |= {"names": [*names], "drafts": rows.drafts}
        found = {"ids": ids, "counts": counts, "drafted": drafted, "q": q}
        if p is not None:
            found["own"] = chances.of_own(p, rows, ids, counts)
            found["p"] = None if drafted is None else chances.of_drafts(p, rows, drafted)
        self.step.tensors = {name: fetched(value) for name, value in found.items() if value is not None}
        self._p = self._q = None
