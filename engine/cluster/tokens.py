"""Token sources of virtual runs: models, a recorded run, or drafts right at a given rate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

import torch

from engine.cluster.local_devices import loader_of
from engine.cluster.site import Loader
from engine.errors import UsageError
from engine.model.language import LanguageModel
from engine.model.memoized import MemoizedModel
from engine.pairs.pair import Pair
from engine.simulate.oracle import Source, bernoulli_models
from engine.simulate.recorded import recorded_pair
from engine.trace.events import Device
from engine.trace.trace import Trace
from engine.types import MOST_DRAFTERS, drafter_key


def tokens_of(pair: Pair, tokens: str | Trace | Source) -> tuple[Mapping[str, Loader], str]:
    """Return the loaders of a virtual run's token source by model, and the source's name."""
    torch.set_num_threads(1)
    if tokens == "pair":
        cpu = Device("cpu:0", "", "", "cpu")
        return {m: _remembering(loader_of(pair, m, cpu)) for m in pair.models}, f"{pair.name} pair"
    if isinstance(tokens, Source):
        models, source = tokens
    elif isinstance(tokens, Trace):
        models, source = recorded_pair(tokens), f"recorded run {tokens.header.run_id}"
    else:
        avoid = {*pair.tokenizer.all_special_ids, *pair.eos}
        models, source = bernoulli_models(_rates(tokens), len(pair.tokenizer), avoid=avoid), tokens
    names = ("target", *map(drafter_key, range(len(models) - 1)))
    return {name: partial(_same, model) for name, model in zip(names, models, strict=True)}, source


def _same(model: LanguageModel, **_: object) -> LanguageModel:
    return model


def _remembering(loader: Loader) -> Loader:
    """Return a loader of one model for all virtual workers; it computes no forward twice."""

    @cache
    def once() -> LanguageModel:
        model = loader()
        windows = getattr(getattr(model, "shape", None), "windows", ())
        return model if any(windows) else MemoizedModel(model)

    return lambda **_: once()  # also for stages: the profile has their share of the time


def _rates(tokens: str) -> tuple[float, ...]:
    """Return the acceptance rate of each drafter; a single rate holds for all drafters."""
    kind, _, numbers = tokens.partition(":")
    try:
        rates = tuple(map(float, numbers.split(",")))
    except ValueError:
        rates = ()
    fits = kind == "bernoulli" and 1 <= len(rates) <= MOST_DRAFTERS and all(0 <= rate <= 1 for rate in rates)
    if not fits:
        raise UsageError(
            f"tokens is {tokens!r}; it must be pair or bernoulli:RATE with a rate from 0 to 1, or with one for each of "
            f"at most {MOST_DRAFTERS} drafters: bernoulli:0.6,0.9"
        )
    return rates * MOST_DRAFTERS if len(rates) == 1 else rates
