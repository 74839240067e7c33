"""Where the tokens of a virtual run come from: models, a recorded run, or drafts that are right with some probability."""

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
from engine.simulate.oracle import bernoulli_models, recorded_pair
from engine.trace.events import Device
from engine.trace.trace import Trace
from engine.types import MOST_DRAFTERS, drafter_key


def tokens_of(pair: Pair, tokens: str | Trace) -> tuple[Mapping[str, Loader], str]:
    """Return where a virtual run's tokens come from, and what to call it."""
    if tokens == "pair":
        torch.set_num_threads(1)
        here = Device("cpu:0", "", "", "cpu")
        return {m: _remembering(loader_of(pair, m, here)) for m in pair.models}, f"{pair.name} pair"
    if isinstance(tokens, Trace):
        made, source = recorded_pair(tokens), f"recorded run {tokens.header.run_id}"
    else:
        avoid = {*pair.tokenizer.all_special_ids, *pair.eos}
        made, source = bernoulli_models(_rates(tokens), len(pair.tokenizer), avoid=avoid), tokens
    names = ("target", *map(drafter_key, range(len(made) - 1)))
    return {name: partial(_same, model) for name, model in zip(names, made, strict=True)}, source


def _same(model: LanguageModel, **_: object) -> LanguageModel:
    return model


def _remembering(loader: Loader) -> Loader:
    """Return a loader that loads once: all virtual workers ask one model, which computes nothing twice."""

    @cache
    def once() -> LanguageModel:
        model = loader()
        windows = getattr(getattr(model, "shape", None), "windows", ())
        return model if any(windows) else MemoizedModel(model)

    return lambda **_: once()  # stages ask the whole model, too: their share of its time is the profile's


def _rates(tokens: str) -> tuple[float, ...]:
    """Return the acceptance rate of each drafter; one rate is that of as many drafters as one asks for."""
    kind, _, given = tokens.partition(":")
    try:
        rates = tuple(map(float, given.split(",")))
    except ValueError:
        rates = ()
    fits = kind == "bernoulli" and 1 <= len(rates) <= MOST_DRAFTERS and all(0 <= rate <= 1 for rate in rates)
    if not fits:
        raise UsageError(
            f"tokens is {tokens!r}; it must be pair or bernoulli:RATE with a rate from 0 to 1, or with one for each of "
            f"at most {MOST_DRAFTERS} drafters: bernoulli:0.6,0.9"
        )
    return rates * MOST_DRAFTERS if len(rates) == 1 else rates
