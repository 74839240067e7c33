"""Races: contestants take turns on the same prompts, so that other load slows all equally."""

from __future__ import annotations

import contextlib
import copy
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import torch
import transformers

import specscope
from specscope import Cluster
from specscope.app.bench.figures import BenchPlan
from specscope.engine.checkpoints.loader import load_reference
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits

Generate: TypeAlias = Callable[[Sequence[int]], Sequence[int]]
"""Maps prompt ids to output ids."""


class SpeedRace:
    """Tokens per second of several contestants, round by round.

    In a round every contestant decodes every prompt; the first contestant changes with each prompt.
    Time is measured over the whole call, from prompt ids to output ids, with prefill and set-up.
    """

    def __init__(
        self,
        contestants: Mapping[str, Generate],
        prompts: Sequence[Sequence[int]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.tokens: dict[str, list[int]] = {name: [] for name in contestants}
        self.seconds: dict[str, list[float]] = {name: [] for name in contestants}
        self._contestants = dict(contestants)
        self._prompts = prompts
        self._clock = clock
        self._written: dict[str, dict[int, list[int]]] = {name: {} for name in contestants}

    def run(
        self,
        rounds: int,
        seconds: float,
        after_round: Callable[[], None] = lambda: None,
        *,
        least: int = 3,
        warm_up: bool = True,
    ) -> SpeedRace:
        """Run `least` to `rounds` rounds; none begins after `seconds` once `least` are done."""
        for generate in self._contestants.values() if warm_up else ():
            generate(self._prompts[0])
        begun = self._clock()
        for done in range(rounds):
            if done >= min(least, rounds) and self._clock() - begun > seconds:
                break
            self._round()
            after_round()
        return self

    def _round(self) -> None:
        names = list(self._contestants)
        tokens, spent = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
        for number, prompt in enumerate(self._prompts):
            first = (number + len(self.seconds[names[0]])) % len(names)
            for name in names[first:] + names[:first]:
                begun = self._clock()
                ids = self._contestants[name](prompt)
                spent[name] += self._clock() - begun
                tokens[name] += len(ids)
                self._written[name][number] = list(ids)
        for name in names:
            self.tokens[name].append(tokens[name])
            self.seconds[name].append(spent[name])

    @property
    def speeds(self) -> dict[str, list[float]]:
        """Tokens per second of each contestant, for each round."""
        return {name: _quotients(self.tokens[name], seconds) for name, seconds in self.seconds.items()}

    def ratio(self, one: str, other: str) -> tuple[float, ...]:
        return tuple(_quotients(self.speeds[one], self.speeds[other]))

    def speed(self, name: str) -> float:
        return statistics.median(self.speeds[name])

    def fastest(self, names: Iterable[str] | None = None) -> str:
        return max(self._contestants if names is None else names, key=self.speed)

    def same(self, *names: str) -> bool:
        first, *others = (self._written[name] for name in names)
        return all(other == first for other in others)

    def written(self, name: str) -> list[list[int]]:
        return [self._written[name][number] for number in range(len(self._prompts))]

    def table(self) -> dict[str, float]:
        return {name: round(self.speed(name), 1) for name in self._contestants}


def _quotients(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


class Transformers:
    """A pair in transformers: fp32, on the CPU, from local files, else with defaults."""

    def __init__(self, pair: Pair, new_tokens: int) -> None:
        self._pair = pair
        self._target = load_reference(pair.target_path)
        self._new_tokens = new_tokens

    def assisted(self, gamma: int | None = None) -> Generate:
        """Return greedy assisted generation; without `gamma`, with transformers' defaults."""
        drafter = self._drafter
        settings = copy.deepcopy(self._settings)
        if gamma is not None:
            settings.num_assistant_tokens = gamma
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0

        def generate(ids: Sequence[int]) -> list[int]:
            drafter.generation_config = settings
            return self.generate(ids, assistant_model=drafter)

        return generate

    def watched(self, generate: Generate) -> Generate:
        """Return the same contestant, recorded by `specscope.watch`."""

        def recorded(ids: Sequence[int]) -> Sequence[int]:
            with specscope.watch(self._target, self._drafter):
                return generate(ids)

        return recorded

    @cached_property
    def _drafter(self) -> Any:
        if self._pair.drafter_path is None:
            raise UsageError(f"{self._pair.name} has no drafter; assisted generation needs one")
        return load_reference(self._pair.drafter_path)

    @cached_property
    def _settings(self) -> Any:
        return self._drafter.generation_config

    def generate(self, ids: Sequence[int], **more: Any) -> list[int]:
        prompt = torch.tensor([list(ids)])
        greedy = {"do_sample": False, "max_new_tokens": self._new_tokens}
        out = self._target.generate(prompt, attention_mask=torch.ones_like(prompt), **greedy, **more)
        return out[0, prompt.shape[1] :].tolist()


@contextlib.contextmanager
def quiet() -> Generator[None]:
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


def decode(
    cluster: Cluster, plan: BenchPlan, method: str, keep: list[Trace] | None = None, **config: Any
) -> Generate:
    """Return a contestant that decodes greedily with a method and appends its traces to `keep`."""

    def generate(ids: Sequence[int]) -> list[int]:
        trace = cluster.run(method, ids, config=config, limits=Limits(plan.new_tokens))
        if keep is not None:
            keep.append(trace)
        return trace.token_ids()

    return generate


@contextlib.contextmanager
def one_core() -> Generator[str]:
    """Pin this thread and its children to one core, with one intra-op thread.

    Yields a description of the conditions.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if not hasattr(os, "sched_setaffinity"):
            yield "one thread each, same process"
            return
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores)})
        try:
            yield "one thread each, same process, pinned to the same core"
        finally:
            os.sched_setaffinity(0, cores)
    finally:
        torch.set_num_threads(threads)
