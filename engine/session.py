"""Open a cluster, run methods on it: the engine's front door.

with engine.open() as cluster:
    trace = cluster.run("pearl", "Tell me a story.", config={"gamma": 4})
    print(trace.text)
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from engine.environment import environment
from engine.errors import RunCancelled, SpecScopeError, UsageError, WorkerDied
from engine.heads.find import HeadFile, Heads
from engine.methods import Method, find
from engine.model.pair import Pair
from engine.model.text import Detokenizer, IncrementalText
from engine.placement import Crew, Placement
from engine.recording import Listener, Recording, sampler
from engine.runtime.events import Header, Status, Trace
from engine.runtime.jobs import Begin, Measure
from engine.runtime.run import Run
from engine.runtime.sequence import Sequence as Decoded
from engine.runtime.virtual import VirtualLoop
from engine.types import Layout, Limits, Sampling

Prompt: TypeAlias = str | Sequence[Mapping[str, str]] | Sequence[int]
"""Text (put into the chat template, where there is one), chat messages with role and content, or token ids."""


class Cluster:
    """Loaded models on devices. Use it as a context manager; one run at a time."""

    def __init__(self, pair: Pair, placement: Placement, head: Path | None = None) -> None:
        self.pair = pair
        self.placement = placement
        self._heads = Heads(pair, head)
        self._head_files: dict[str, HeadFile] = {}
        self._pieces = Detokenizer(pair.tokenizer)
        self._busy = threading.Lock()
        self._numbers = count(1)
        self._c = placement.c

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        self.placement.close()

    @property
    def c(self) -> float:
        """T(target) / T(drafter), one row each: from the profile, or measured once (PEARL, section 2)."""
        if not self._c:
            self._c = self._on_loop(self._measure_c())
        return self._c

    @property
    def depth(self) -> int:
        """Layers of the drafter; 0 without one, or where it has none."""
        return self.placement.depth

    @property
    def context(self) -> int:
        """Positions that both models know."""
        return self.pair.context

    @property
    def devices(self) -> int:
        """How many devices may share a drafter's layers."""
        return self.placement.site.ranks()

    def stages(self, asked: int) -> int:
        """Return over how many devices a target is split by its layers: as many as asked for, or a usual number for 0.

        Raises:
            UsageError: There are fewer devices or layers, or no target can be split here.
        """
        return self.placement.stages(asked)

    @property
    def drafters(self) -> int:
        """How many different drafters there are."""
        return self.placement.site.drafters()

    def servers(self, drafters: int) -> int:
        """Return how many target servers there is room for beside so many drafters."""
        return self.placement.site.servers(drafters)

    def head(self, kind: str) -> HeadFile:
        """Return the drafting head of a kind that fits the target (see `engine.heads.find.Heads`)."""
        if not self.placement.states:
            raise UsageError(
                f"a drafting head reads the target's hidden states; tokens that are {self.placement.details['tokens']} have none: "
                "leave tokens at pair"
            )
        if kind not in self._head_files:
            self._head_files[kind] = self._heads.find(kind)
        return self._head_files[kind]

    def check(self, method: str) -> None:
        """Check that a method, with its default settings, has the models and the devices it needs.

        Raises:
            UsageError: It has not; the message says what is missing.
        """
        found = find(method)
        layout = self._layout(found, found.plan(found.configure({}), self))
        self.placement.site.seats(layout)
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
    ) -> Trace:
        """Decode a prompt with one method and return the run's trace.

        Args:
            method: Key of the method.
            prompts: Text, chat messages or token ids; several for a method that decodes batches.
            config: Fields of the method's Config that differ from their defaults.
            sampling: Temperature, top-k, top-p, seed; greedy when left out.
            limits: When to stop; the model's EOS ids are added.
            listener: Takes every event as it becomes known, header first, footer last.
            cancel: Set it to stop the run; its trace then ends with status `cancelled`.
            group: Runs of one comparison share this.

        Raises:
            UsageError: A setting or the prompt is wrong; nothing was started.
            SpecScopeError: The run failed; the listener got what there is, with a footer that says so.
        """
        found, sampling = find(method), sampling or Sampling()
        cfg = found.plan(found.configure(config or {}), self)
        limits = self._with_eos(limits or Limits())
        if not prompts:
            raise UsageError(f"{method} was given no prompt; give it at least one")
        if len(prompts) != 1 and not found.batched:
            raise UsageError(
                f"{method} decodes one prompt in a run, not {len(prompts)}; give one, or choose a method for batches"
            )
        ids = self._encode_all(prompts, limits.max_new_tokens)
        layout = self._layout(found, cfg)
        head = self.head(layout.head) if layout.head else None
        if head is not None:
            head.check_length(max(map(len, ids)) + limits.max_new_tokens)
        if not self._busy.acquire(blocking=False):
            raise UsageError("this cluster is running already; open another one or wait")
        try:
            crew = self.placement.crew(layout, head)
            header = self._header(found, cfg, crew, prompts, ids, sampling, limits, group)
            if head is not None:
                header = replace(header, environment={**header.environment, "head": str(head.path)})
            recording = Recording(header, listener)
            begin = Begin(
                sampling,
                min(layout.batch, len(ids)),
                max(map(len, ids)) + limits.max_new_tokens + layout.slack,
                self.placement.vocab_size,
                layout.packing,
                next(self._numbers),
                head.config.features if head else (),
            )
            self._execute(found, cfg, recording, crew, begin, limits, cancel or threading.Event())
            return recording.trace
        finally:
            self._busy.release()

    def count(self, prompt: Prompt) -> int:
        """Return how many tokens a prompt has, with what the chat template puts around it."""
        return len(self._ids(prompt))

    def _layout(self, method: Method, cfg: Any) -> Layout:
        layout = method.layout(cfg)
        if layout.drafters and not self.placement.base.drafters:
            raise UsageError(f"{method.key} needs a drafter, and none was given; name one with --drafter")
        return layout

    def _with_eos(self, limits: Limits) -> Limits:
        return Limits(limits.max_new_tokens, limits.stop, tuple(sorted({*limits.eos, *self.pair.eos})))

    def _encode_all(self, prompts: tuple[Prompt, ...], new: int) -> tuple[tuple[int, ...], ...]:
        found = list[tuple[int, ...]]()
        for i, prompt in enumerate(prompts):
            try:
                found.append(self._encode(prompt, new))
            except UsageError as error:
                if len(prompts) == 1:
                    raise
                raise UsageError(f"prompt {i} of {len(prompts)} (counted from 0): {error}") from None
        return tuple(found)

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.pair.encode(prompt)
        if prompt and isinstance(prompt[0], int):
            return [int(t) for t in prompt]  # pyright: ignore[reportArgumentType]
        return self.pair.encode_chat(prompt)  # pyright: ignore[reportArgumentType]

    def _encode(self, prompt: Prompt, new: int) -> tuple[int, ...]:
        ids = self._ids(prompt)
        if not ids:
            raise UsageError("the prompt is empty; type some text")
        vocab = self.placement.vocab_size
        if bad := [t for t in ids if not 0 <= t < vocab]:
            raise UsageError(
                f"token id {bad[0]} in the prompt; it must be at least 0 and at most {vocab - 1}"
            )
        self.pair.check_length(ids, new)
        return tuple(ids)

    def _header(
        self,
        method: Method,
        cfg: Any,
        crew: Crew,
        prompts: tuple[Prompt, ...],
        ids: tuple[tuple[int, ...], ...],
        sampling: Sampling,
        limits: Limits,
        group: str,
    ) -> Header:
        place = self.placement
        return Header(
            run_id=uuid.uuid4().hex[:12],
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            method=method.key,
            title=method.title,
            config={s.name: getattr(cfg, s.name) for s in method.settings()},
            prompts=tuple(_shown(prompt, self._pieces) for prompt in prompts),
            prompt_ids=ids,
            sampling={name: getattr(sampling, name) for name in sampling.__slots__},
            limits={"max_new_tokens": limits.max_new_tokens, "stop": [*limits.stop], "eos": [*limits.eos]},
            runtime=place.runtime,
            profile=place.profile,
            devices=crew.devices,
            target_path=str(self.pair.target_path),
            drafter_path=str(self.pair.drafter_path or ""),
            environment={**environment(), **place.details, "pair": self.pair.name, **self._further(crew)},
            group=group,
            lossless=method.lossless(cfg) or sampling.greedy,
        )

    def _further(self, crew: Crew) -> dict[str, Any]:
        """Tell where the drafters after the first are, when they take part."""
        paths = self.pair.drafter_paths[1 : len(crew.workers.get("drafter", ()))]
        return {"further_drafters": [str(path) for path in paths]} if paths else {}

    def _execute(
        self,
        method: Method,
        cfg: Any,
        recording: Recording,
        crew: Crew,
        begin: Begin,
        limits: Limits,
        cancel: threading.Event,
    ) -> None:
        error: BaseException | None = None
        try:
            self._on_loop(self._decode(method, cfg, recording, crew, begin, limits, cancel))
        except BaseException as raised:  # noqa: BLE001 - recorded, then raised again below
            error = _first_leaf(raised)
        error = recording.error or error
        cancelled = isinstance(error, RunCancelled | asyncio.CancelledError | KeyboardInterrupt)
        status: Status = "done" if error is None else "cancelled" if cancelled else "failed"
        recording.end(status, "" if error is None or cancelled else _one_line(error))
        if error is not None and not isinstance(error, RunCancelled | asyncio.CancelledError):
            raise error

    def _on_loop(self, work: Any) -> Any:
        with asyncio.Runner(loop_factory=self.placement.new_loop) as runner:
            loop = runner.get_loop()
            workers = self.placement.workers
            for worker in workers:
                worker.attach(loop)
            try:
                return runner.run(work)
            finally:
                for worker in workers:
                    worker.detach()

    async def _decode(
        self,
        method: Method,
        cfg: Any,
        recording: Recording,
        crew: Crew,
        begin: Begin,
        limits: Limits,
        cancel: threading.Event,
    ) -> None:
        loop = asyncio.get_running_loop()
        tokenizer = self.pair.tokenizer
        recording.sequences = [
            Decoded(i, ids, limits, IncrementalText(tokenizer))
            for i, ids in enumerate(recording.trace.header.prompt_ids)
        ]
        for worker in dict.fromkeys(worker for each in crew.workers.values() for worker in each):
            await worker.submit(begin).reply
        origin = time.perf_counter_ns()
        if isinstance(loop, VirtualLoop):
            origin, recording.clock = 0, lambda: 1000 * loop.clock.now
        else:
            recording.clock = lambda: time.perf_counter_ns() - origin

        def check() -> None:
            if recording.error is not None:
                raise recording.error
            if cancel.is_set():
                raise RunCancelled("the run was stopped")

        run = Run(
            recording.sequences,
            crew.workers,
            crew.drafters,
            {} if begin.sampling.greedy else crew.slabs,
            emit=recording.add,
            clock=recording.clock,
            origin=origin,
            read=self._pieces.piece,
            encode=self.pair.encode_text,
            check=check,
        )
        samples = sampler(crew, recording, loop)
        samples.start()
        work = asyncio.ensure_future(_through(method, cfg, run, begin.slots))
        watch = None if isinstance(loop, VirtualLoop) else asyncio.ensure_future(_watch(cancel, work))
        try:
            await work
        finally:
            samples.stop()
            if watch is not None:
                watch.cancel()
            await run.settle()

    async def _measure_c(self) -> float:
        """Take the calmest of interleaved series: what else the machine does must not pass for the models' cost."""
        workers = self.placement.crew(self.placement.base).workers
        best: dict[str, float] = {}
        for _ in range(5):
            for model, (worker, *_) in workers.items():
                seconds = (await worker.submit(Measure(model, context=64, repeats=8)).reply).value
                best[model] = min(seconds, best.get(model, seconds))
        return best["target"] / best["drafter"] if "drafter" in best else 1.0


async def _through(method: Method, cfg: Any, run: Run, slots: int) -> None:
    first = [sequence.x for sequence in run.sequences[:slots]]
    await run.prefill(first)
    run.step = 1
    await method.decode(run, cfg)


async def _watch(cancel: threading.Event, work: asyncio.Future[None]) -> None:
    while not cancel.is_set():  # noqa: ASYNC110 - it is set from another thread
        await asyncio.sleep(0.02)
    work.cancel()


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        dead = [e for e in error.exceptions if isinstance(e, WorkerDied)]
        error = (dead or list(error.exceptions))[0]
    return error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, SpecScopeError) else f"{type(error).__name__}: {text}"


def _shown(prompt: Prompt, pieces: Detokenizer) -> str:
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1]
    if isinstance(last, int):
        return "".join(pieces.piece(int(t)) for t in prompt)  # pyright: ignore[reportArgumentType]
    return str(last["content"])


def open(  # noqa: A001 - engine.open(...), as in dbm.open or shelve.open
    pair: str | Pair = "bundled",
    *,
    target: str | os.PathLike[str] | None = None,
    drafter: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    runtime: str = "local-process",
    profile: str | None = None,
    profile_pair: str | None = None,
    tokens: str | Trace = "pair",
    device: str = "auto",
    threads: int = 1,
    head: str | os.PathLike[str] | None = None,
) -> Cluster:
    """Load a pair of models and return the cluster that runs methods on it.

    Args:
        pair: Name of a pair in assets/pairs, or a Pair.
        target: Directory or hub id of a target; replaces the pair.
        drafter: Directory or hub id of its drafter; methods that draft need one. Several, the first one first, for methods
            that let them race.
        runtime: `local-process`, `local-thread` or `virtual`.
        profile: The latency profile of a virtual cluster.
        profile_pair: Which of the profile's pairs; its default when left out.
        tokens: Where a virtual run's tokens come from: `pair`, `bernoulli:RATE` (or a rate for each drafter, with commas
            between), or a recorded Trace.
        device: `cpu`, `cuda`, or `auto`: CUDA where there is a GPU.
        threads: Intra-op threads of each worker; more than 1 only pays when nothing runs beside it.
        head: Directory of a drafting head of the target; without one, those that come with the pair are used.

    Raises:
        UsageError: A name is unknown or the settings do not go together.
        ModelError: A model cannot be loaded.
    """
    from engine.placement import place

    given = () if drafter is None else (drafter,) if isinstance(drafter, str | os.PathLike) else drafter
    drafters = [str(each) for each in given]
    if target is not None:
        chosen = Pair.of(str(target), *drafters)
    elif drafters:
        raise UsageError(f"a drafter ({drafters[0]}) without a target; name the target too")
    else:
        chosen = pair if isinstance(pair, Pair) else Pair.find(pair)
    return Cluster(
        chosen,
        place(
            chosen,
            runtime=runtime,
            profile=profile,
            profile_pair=profile_pair,
            tokens=tokens,
            device=device,
            threads=threads,
        ),
        None if head is None else Path(head),
    )
