"""Open a cluster, run methods on it: the engine's front door.

with engine.open() as cluster:
    trace = cluster.run("pearl", "Tell me a story.", config={"gamma": 4})
    print(trace.text)
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from engine.cluster.execution import Execution, Request
from engine.cluster.placement import Placement, RunWorkers, place
from engine.cluster.prompts import Prompt, encode, ids_of, shown
from engine.cluster.recording import Listener, Recording
from engine.environment import environment
from engine.errors import UsageError
from engine.heads.find import HeadFile, Heads
from engine.methods import Method, Situation, find
from engine.model.hub import Report
from engine.model.pair import Pair
from engine.model.sources import resolve, resolve_local
from engine.model.text import Detokenizer
from engine.trace.events import Header
from engine.trace.trace import Trace
from engine.types import MOST_DRAFTERS, Layout, Limits, Sampling
from engine.workers.jobs import Measure

Places: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""Where models lie: none, one or several."""


class Cluster:
    """Loaded models on devices. Use it as a context manager; one run at a time."""

    def __init__(self, pair: Pair, placement: Placement, heads: tuple[Path, ...] = ()) -> None:
        self.pair = pair
        self.placement = placement
        self._heads = Heads(pair, heads)
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
            self._c = self.placement.on_loop(self._measure_c())
        return self._c

    @property
    def context(self) -> int:
        """Positions that all models of the pair support."""
        return self.pair.context

    def stages(self, asked: int) -> int:
        """Return how many devices a target's layers are split over: `asked`, or the default for 0.

        Raises:
            UsageError: The cluster has fewer devices, the target fewer layers, or it cannot be split.
        """
        return self.placement.stages(asked)

    @property
    def situation(self) -> Situation:
        """The facts about this cluster that the methods' plans use."""
        site = self.placement.site
        drafters = site.drafters()
        return Situation(
            context=self.context,
            depth=self.placement.depth,
            devices=site.ranks(),
            drafters=drafters,
            servers=tuple(site.servers(n) for n in range(max(drafters, MOST_DRAFTERS) + 1)),
            c=lambda: self.c,
            stages=self.stages,
            head_levels=lambda kind: self.head(kind).levels,
        )

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
        layout = self._layout(found, found.plan(found.configure({}), self.situation))
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
        asked = self._request(
            method, prompts, config or {}, sampling or Sampling(), limits or Limits(), group
        )
        if not self._busy.acquire(blocking=False):
            raise UsageError("this cluster is running already; open another one or wait")
        try:
            crew = self.placement.crew(asked.layout, asked.head)
            recording = Recording(self._header(asked, crew), listener)
            begin = asked.begin(self.placement.vocab_size, next(self._numbers))
            cancel = cancel or threading.Event()
            execution = Execution(asked, self.pair, self._pieces, crew, begin, recording, cancel)
            execution.execute(self.placement)
            return recording.trace
        finally:
            self._busy.release()

    def count(self, prompt: Prompt) -> int:
        """Return how many tokens a prompt has, with what the chat template puts around it."""
        return len(ids_of(self.pair, prompt))

    def _layout(self, method: Method, cfg: Any) -> Layout:
        layout = method.layout(cfg)
        if layout.drafters and not self.placement.base.drafters:
            raise UsageError(f"{method.key} needs a drafter, and none was given; name one with --drafter")
        return layout

    def _with_eos(self, limits: Limits) -> Limits:
        return Limits(limits.max_new_tokens, limits.stop, tuple(sorted({*limits.eos, *self.pair.eos})))

    def _request(
        self,
        method: str,
        prompts: tuple[Prompt, ...],
        config: Mapping[str, Any],
        sampling: Sampling,
        limits: Limits,
        group: str,
    ) -> Request:
        """Check what is asked for, and complete it."""
        found = find(method)
        cfg = found.plan(found.configure(config), self.situation)
        limits = self._with_eos(limits)
        if not prompts:
            raise UsageError(f"{method} was given no prompt; give it at least one")
        if len(prompts) != 1 and not found.batched:
            raise UsageError(
                f"{method} decodes one prompt in a run, not {len(prompts)}; give one, or choose a method for batches"
            )
        ids = encode(self.pair, prompts, self.placement.vocab_size, limits.max_new_tokens)
        layout = self._layout(found, cfg)
        head = self.head(layout.head) if layout.head else None
        asked = Request(found, cfg, layout, head, prompts, ids, sampling, limits, group)
        if head is not None:
            head.check_length(asked.longest)
        return asked

    def _header(self, asked: Request, crew: RunWorkers) -> Header:
        there, limits = self.placement, asked.limits
        return Header(
            run_id=uuid.uuid4().hex[:12],
            created=datetime.now(UTC).isoformat(timespec="milliseconds"),
            method=asked.method.key,
            title=asked.method.title,
            config={s.name: getattr(asked.cfg, s.name) for s in asked.method.settings()},
            prompts=tuple(shown(prompt, self._pieces) for prompt in asked.prompts),
            prompt_ids=asked.ids,
            sampling={name: getattr(asked.sampling, name) for name in asked.sampling.__slots__},
            limits={"max_new_tokens": limits.max_new_tokens, "stop": [*limits.stop], "eos": [*limits.eos]},
            runtime=there.runtime,
            profile=there.profile,
            devices=crew.devices,
            target_path=str(self.pair.target_path),
            drafter_path=str(self.pair.drafter_path or ""),
            environment=environment() | self._facts(asked, crew),
            group=asked.group,
            lossless=asked.method.lossless(asked.cfg) or asked.sampling.greedy,
        )

    def _facts(self, asked: Request, crew: RunWorkers) -> dict[str, Any]:
        """Tell where the models come from; the drafters after the first and the drafting head, when they take part."""
        facts = {**self.placement.details, "pair": self.pair.name}
        if paths := self.pair.drafter_paths[1 : len(crew.workers.get("drafter", ()))]:
            facts["further_drafters"] = [str(path) for path in paths]
        if asked.head is not None:
            facts["head"] = str(asked.head.path)
        return facts

    async def _measure_c(self) -> float:
        """Take the calmest of interleaved series: what else the machine does must not pass for the models' cost."""
        workers = self.placement.crew(self.placement.base).workers
        best: dict[str, float] = {}
        for _ in range(5):
            for model, (worker, *_) in workers.items():
                seconds = (await worker.submit(Measure(model, context=64, repeats=8)).reply).value
                best[model] = min(seconds, best.get(model, seconds))
        return best["target"] / best["drafter"] if "drafter" in best else 1.0


def open(  # noqa: A001 - engine.open(...), as in dbm.open or shelve.open
    pair: str | Pair = "bundled",
    *,
    target: str | os.PathLike[str] | None = None,
    drafter: Places = None,
    runtime: str = "local-process",
    profile: str | None = None,
    profile_pair: str | None = None,
    tokens: str | Trace = "pair",
    device: str = "auto",
    threads: int = 1,
    head: Places = None,
    progress: Report | None = None,
    cancel: threading.Event | None = None,
    download: bool = True,
) -> Cluster:
    """Load a pair of models and return the cluster that runs methods on it.

    Args:
        pair: Name of a pair in assets/pairs or of a model of the catalog, or a Pair.
        target: Directory, GGUF file, short name or hub id of a target; replaces the pair.
        drafter: The same of its drafter; methods that draft need one. Several, the first one first, for methods
            that let them race.
        runtime: `local-process`, `local-thread` or `virtual`.
        profile: The latency profile of a virtual cluster.
        profile_pair: Which of the profile's pairs; its default when left out.
        tokens: Where a virtual run's tokens come from: `pair`, `bernoulli:RATE` (or a rate for each drafter, with commas
            between), or a recorded Trace.
        device: `cpu`, `cuda`, or `auto`: CUDA where there is a GPU.
        threads: Intra-op threads of each worker; more than 1 only pays when nothing runs beside it.
        head: Directories of drafting heads of the target, one or several: a method takes the first of its kind. Without any,
            those that come with the pair are used.
        progress: Takes the state of a download or conversion, when a model is not in the cache.
        cancel: Set it to stop either.
        download: Whether a model may be downloaded or converted; if not, it must be in the cache.

    Raises:
        UsageError: A name is unknown or the settings do not go together.
        ModelError: A model cannot be loaded or downloaded.
        RunCancelled: `cancel` was set during a download.
    """
    drafters = _several(drafter)
    find_model = partial(resolve, progress=progress, cancel=cancel) if download else resolve_local
    if target is not None:
        chosen = Pair.of(str(target), *drafters, resolve=find_model)
    elif drafters:
        raise UsageError(f"a drafter ({drafters[0]}) without a target; name the target too")
    else:
        chosen = pair if isinstance(pair, Pair) else Pair.find(pair, find_model)
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
        tuple(map(Path, _several(head))),
    )


def _several(given: Places) -> list[str]:
    each = [given] if isinstance(given, str | os.PathLike) else given or ()
    found = [str(one) for one in each]
    if not all(found):
        raise UsageError("a drafter's or a head's path is empty; give a directory")
    return found
