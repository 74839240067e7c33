"""A cluster: loaded models on devices, and the runs of methods on them."""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any, Unpack

from specscope.engine.checkpoints.checkpoint import drafts_itself
from specscope.engine.checkpoints.config import unused_layers
from specscope.engine.checkpoints.forms import split_form
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.text import Detokenizer
from specscope.engine.cluster.capacity import Need, unchecked
from specscope.engine.cluster.execution import Execution, Listener, Recording, Request
from specscope.engine.cluster.measurements import Measurements, learn, scaled
from specscope.engine.cluster.placement import Placement, RunWorkers, on_one_gpu
from specscope.engine.cluster.probing import CONTEXT, NEW_TOKENS
from specscope.engine.cluster.prompts import Plain, Prompt, encode, ids_of, settled, shown
from specscope.engine.cluster.ray_devices import aligned_clocks
from specscope.engine.drafting.pace import Probe
from specscope.engine.drafting.planner import Best, Plan
from specscope.engine.drafting.suffix import Finished
from specscope.engine.environment import environment
from specscope.engine.errors import OutOfMemory, UsageError, check_names, named_calls, names_of
from specscope.engine.heads.config import MOST
from specscope.engine.heads.find import HeadFile, Heads
from specscope.engine.layout import Layout, Separate
from specscope.engine.methods import Method, Situation, find
from specscope.engine.run.policies import LENGTHS, MINEDRAFT
from specscope.engine.run.serving import Load, under_load
from specscope.engine.runtimes.ensemble import Ensemble
from specscope.engine.trace.events import Header
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker.jobs import CacheMemory, Measure
from specscope.engine.worker.worker import Worker


@named_calls
class Cluster:
    """Loaded models on devices. Use it as a context manager; one run at a time."""

    def __init__(
        self, pair: Pair, placement: Placement, heads: tuple[Path, ...] = (), *, plans: bool = False
    ) -> None:
        self.pair = pair
        self.placement = placement
        self._heads = Heads(pair, heads)
        self._head_files: dict[str, HeadFile] = {}
        self._pieces = Detokenizer(pair.tokenizer)
        self._busy = threading.Lock()
        self._numbers = count(1)
        self._c = placement.pool.c
        self._plans = plans
        self._measurements = Measurements(pair, placement)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = self.placement
        return f"Cluster({' · '.join(filter(None, (self.pair.name, place.runtime, place.profile)))})"

    def close(self) -> None:
        self.placement.close()

    @property
    def c(self) -> float:
        """One-row T(target) / T(drafter), from the profile or measured once (PEARL, section 2)."""
        if not self._c:
            workers = self.placement.workers_for(self.placement.base).by_model  # some may start now
            self._c = self.placement.on_loop(self._measure_c(workers))
        return self._c

    @property
    def context(self) -> int:
        return self.pair.context

    @property
    def note(self) -> str:
        """What a user should know of the opened models; empty if there is nothing."""
        folders = dict.fromkeys(split_form(path)[0] for path in self.pair.models.values())
        plain = (folder for folder in folders if not drafts_itself(folder))
        return "; ".join(filter(None, (*map(unused_layers, plain), unchecked(self.placement.pool.latency))))

    def stages(self, asked: int) -> int:
        """Return how many devices a target's layers are split over: `asked`; by default for 0."""
        return self.placement.pool.stages(asked, self.placement.layers("target"))

    @property
    def situation(self) -> Situation:
        """The facts about this cluster that the methods' plans use; it plans no drafts."""
        facts = self.context, self.placement.layers("drafter"), lambda: self.c, self.stages
        block = self.placement.pool.options.block
        return self.placement.pool.situation(*facts, lambda kind: MOST if block else self.head(kind).levels)

    def head(self, kind: str) -> HeadFile:
        """Return the drafting head of a kind that fits the target (see `Heads`)."""
        if self.placement.pool.options.tokens != "pair":
            raise UsageError(
                f"a drafting head reads the target's hidden states, and tokens that are {self.placement.details['tokens']} "
                "have none: set tokens to pair"
            )
        if kind not in self._head_files:
            self._head_files[kind] = self._heads.find(kind)
        return self._head_files[kind]

    def check(self, method: str, load: Load | None = None, config: Mapping[str, Any] | None = None) -> None:
        """Check that the cluster has the models and devices of a method with these settings.

        With a load, check that the method can serve it, too. UsageError: it cannot.
        """
        entry = find(method)
        layout = self._layout(entry, entry.plan(entry.configure(config or {}), self.situation))
        if load is not None:
            layout = self._under_load(method, layout, load, len(load.arrivals))
        self.placement.pool.assign(layout)
        if layout.head:
            self.head(layout.head)

    def run(
        self,
        method: str,
        *prompts: Prompt,
        config: Mapping[str, Any] | None = None,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        listener: Listener | None = None,
        cancel: threading.Event | None = None,
        group: str = "",
        measuring: Callable[[], None] = lambda: None,
        load: Load | None = None,
        finished: Finished | None = None,
        **plain: Unpack[Plain],
    ) -> Trace:
        """Decode a prompt with one method and return the run's trace.

        Args:
            method: Key of the method.
            prompts: Text, chat messages or token ids; several for a method that decodes batches.
            config: Fields of the method's Config; the others have their defaults.
            sampling: Temperature, top-k, top-p, seed; greedy when left out.
            limits: When to stop; the model's EOS ids are added.
            listener: Takes every event as it occurs, header first, footer last.
            cancel: Stops the run when set; its trace ends with status `cancelled`.
            group: Name shared by the runs of one comparison.
            measuring: Called before the models are measured, which takes seconds: to plan drafts,
                or for a load's draft lengths.
            load: When each prompt arrives and how many decode at once; any method whose drafter
                and target take turns then decodes several prompts.
            finished: Outputs of earlier runs, for methods that draft from them; such a method adds
                those of this run. Without it a method has the outputs of this run only.
            plain: Fields of Sampling and Limits, in place of these objects: `max_new_tokens=48`.

        Raises:
            UsageError: A setting or the prompt is wrong; no job was started.
            OutOfMemory: Its KV caches do not fit; no job was started.
            SpecScopeError: The run failed; the listener got its events and a footer with the error.
        """
        if not self._busy.acquire(blocking=False):
            raise UsageError("this cluster is running already; open another one or wait")
        try:
            check_names("Cluster.run", plain, _ARGUMENTS)
            entry, cancel = find(method), cancel or threading.Event()
            sampling, limits = settled(sampling, limits, plain)
            cfg, limits = entry.configure(config or {}), self._with_eos(limits)
            ids = self._encode(entry, prompts, limits, several=entry.batched or load is not None)
            given = cfg
            cfg, plan = self._planned(entry, cfg, sampling, cancel, measuring)
            request = Request(entry, cfg, prompts, ids, sampling, limits, group, plan, load)
            request = self._checked(replace(request, open=_open(entry, given, cfg)))
            if finished is not None:
                request = replace(request, finished=finished)
            if load is not None and load.policy in LENGTHS:
                known, measured = self.placement.pool.costs, self._measurements.costs
                request = replace(request, costs=known() if known else measured(cancel, measuring))
            trace = self._execute(request, listener, cancel)
            if self._plans and load is None:
                learn(self._measurements.learned, trace, plan, self._measurements.verify)
            return trace
        finally:
            self._busy.release()

    def _execute(self, request: Request, listener: Listener | None, cancel: threading.Event) -> Trace:
        workers = self.placement.workers_for(request.layout, request.head)
        begin = request.begin(self.placement.vocab_size, next(self._numbers))
        caches = self.placement.check_caches(workers, request.size(begin))
        need = Need(begin.slots, begin.capacity, request.head.config if request.head else None)
        self.placement.pool.check_run(request.layout, need)
        facts = aligned_clocks(workers.members, self.placement.clock_errors) | _compiled(caches)
        recording = Recording(self._header(request, workers, facts), listener)
        execution = Execution(request, self.pair, self._pieces, workers, begin, recording, cancel)
        try:
            execution.execute(self.placement)
        except OutOfMemory:
            if any(isinstance(w, Ensemble) and w.kind == "ranks" for w in workers.distinct):
                self.placement.restart()  # the other ranks waited for the one that failed
            raise
        return recording.trace

    def count(self, prompt: Prompt) -> int:
        return len(ids_of(self.pair, prompt))

    def _layout(self, method: Method, cfg: Any) -> Layout:
        layout = method.layout(cfg)
        if layout.at_once and self.placement.pool.options.block:
            layout = replace(layout, head="", arrangement=Separate(turns=True))
        if layout.needs_drafter and not self.placement.base.needs_drafter:
            self.placement.pool.assign(layout)  # its error names a profile's pair without a drafter
            raise UsageError(f"{method.key} needs a drafter, and none was given; name one with --drafter")
        return layout

    def _under_load(self, method: str, layout: Layout, load: Load, prompts: int) -> Layout:
        layout = under_load(method, layout, load, prompts)
        if load.policy == MINEDRAFT:
            self.placement.pool.check_apart(layout, load.policy)
        return layout

    def _with_eos(self, limits: Limits) -> Limits:
        return Limits(limits.max_new_tokens, limits.stop, tuple(sorted({*limits.eos, *self.pair.eos})))

    def _encode(
        self, entry: Method, prompts: tuple[Prompt, ...], limits: Limits, *, several: bool
    ) -> tuple[tuple[int, ...], ...]:
        if not prompts:
            raise UsageError(f"{entry.key} was given no prompt; give it at least one")
        if len(prompts) != 1 and not several:
            raise UsageError(
                f"{entry.key} decodes one prompt in a run, not {len(prompts)}; give one, or choose a method for batches"
            )
        return encode(self.pair, prompts, self.placement.vocab_size, limits.max_new_tokens)

    def _planned(
        self,
        entry: Method,
        cfg: Any,
        sampling: Sampling,
        cancel: threading.Event,
        measuring: Callable[[], None],
    ) -> tuple[Any, Plan | None]:
        if not self._plans:
            return entry.plan(cfg, self.situation), None
        plans = list[Plan]()

        def planned(settings: Mapping[str, Any], best: Best) -> Plan | None:
            probe = self._probe(entry, settings, cancel, measuring)
            probe = probe and replace(probe, shared=on_one_gpu(self.placement.devices))
            plans.extend([replace(best(probe), others=probe.others)] if probe else [])
            return plans[-1] if probe else None

        cfg = entry.plan(cfg, replace(self.situation, planned=planned))
        if not plans:
            return cfg, None
        known = self._measurements
        return cfg, scaled(known.learned, plans[-1], entry.key, known.verify, greedy=sampling.greedy)

    def _probe(
        self,
        entry: Method,
        settings: Mapping[str, Any],
        cancel: threading.Event,
        measuring: Callable[[], None],
    ) -> Probe | None:
        cfg = entry.plan(entry.configure(settings), self.situation)
        kind = self._layout(entry, cfg).head
        context = min(self.context, self.head(kind).context if kind else self.context)

        def run(prompt: str, listener: Listener, over: threading.Event) -> Trace:
            ids = tuple(ids_of(self.pair, prompt)[-min(CONTEXT, int(context) - NEW_TOKENS) :])
            limits = self._with_eos(Limits(NEW_TOKENS))
            request = Request(entry, cfg, (ids,), (ids,), Sampling(), limits)
            return self._execute(self._checked(request), listener, over)

        heads = [self.head(kind).path] if kind else []
        return self._measurements.probe(entry.key, settings, heads, run, cancel, measuring)

    def _checked(self, request: Request) -> Request:
        """Return a request with its layout and its head, if the cluster can run it."""
        layout, load = self._layout(request.method, request.cfg), request.load
        if load is not None:
            layout = self._under_load(request.method.key, layout, load, len(request.ids))
        head = self.head(layout.head) if layout.head else None
        if head is not None:
            head.check_length(request.longest)
        return replace(request, layout=layout, head=head)

    def _header(self, request: Request, workers: RunWorkers, more: dict[str, Any]) -> Header:
        placement, limits = self.placement, request.limits
        return Header(
            run_id=uuid.uuid4().hex[:12],
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            method=request.method.key,
            title=request.method.title,
            config={s.name: getattr(request.cfg, s.name) for s in request.method.settings()},
            prompts=tuple(shown(prompt, self._pieces) for prompt in request.prompts),
            prompt_ids=request.ids,
            sampling={name: getattr(request.sampling, name) for name in request.sampling.__slots__},
            limits={"max_new_tokens": limits.max_new_tokens, "stop": [*limits.stop], "eos": [*limits.eos]},
            runtime=placement.runtime,
            profile=placement.profile,
            devices=workers.devices,
            target_path=str(self.pair.target_path),
            drafter_path=str(self.pair.drafter_path or ""),
            environment=environment() | self._facts(request, workers) | more,
            group=request.group,
            lossless=request.method.lossless(request.cfg) or request.sampling.greedy,
        )

    def _facts(self, request: Request, workers: RunWorkers) -> dict[str, Any]:
        facts = {**self.placement.details, "pair": self.pair.name}
        if paths := self.pair.drafter_paths[1 : len(workers.by_model.get("drafter", ()))]:
            facts["further_drafters"] = [str(path) for path in paths]
        if self.note:
            facts["note"] = self.note
        if request.head is not None:
            facts["head"] = str(request.head.path)
        if request.plan is not None:
            facts["planned"] = request.plan.facts()
        if request.open:
            facts["open"] = dict(request.open)
            if self._c and not self.placement.profile:
                facts["c"] = round(self._c, 2)
        if request.load is not None:
            facts["load"] = request.load.facts()
        return facts

    async def _measure_c(self, workers: Mapping[str, tuple[Worker, ...]]) -> float:
        """Return best target time / best drafter time; alternating runs reduce noise from load."""
        best: dict[str, float] = {}
        for _ in range(5):
            for model, (worker, *_) in workers.items():
                seconds = (await worker.submit(Measure(model, context=64, repeats=8)).reply).value[0]
                best[model] = min(seconds, best.get(model, seconds))
        return best["target"] / best["drafter"] if "drafter" in best else 1.0


_ARGUMENTS = [*names_of(signature(Cluster.run)), *Plain.__annotations__]


def _open(method: Method, given: Any, planned: Any) -> dict[str, Any]:
    values = {s.name: getattr(given, s.name) for s in method.settings()}
    return {name: value for name, value in values.items() if getattr(planned, name) != value}


def _compiled(caches: Sequence[CacheMemory]) -> dict[str, Any]:
    """Return the numbers of rows of each model's forwards whose layers are compiled, if any are."""
    rows = defaultdict[str, set[int]](set)
    for name, number in (pair for cache in caches for pair in cache.compiled):
        rows[name].add(number)
    return {"compiled": {name: sorted(counts) for name, counts in rows.items()}} if rows else {}
