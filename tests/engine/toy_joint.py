"""Exact joint distributions: a method runs once for every outcome of its random draws."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from specscope.engine.types import Sampling
from tests.engine.toy import PROMPT, Logits, Method, ToyRun, warp_plainly
from tests.engine.toy_draws import Branches, Enumerated


@torch.inference_mode()
def joint(
    decode: Method,
    p: Logits,
    q: Logits,
    sampling: Sampling,
    tokens: int = 3,
    draws: type[Enumerated] = Enumerated,
    further: Sequence[Logits] = (),
    outcomes: set[str] | None = None,
) -> dict[tuple[int, ...], float]:
    """Return the exact probability of each text of this length that the method can emit.

    The outcomes of all decisions are added to `outcomes`.
    """
    texts: dict[tuple[int, ...], float] = defaultdict(float)
    branches = Branches()
    loop = asyncio.new_event_loop()
    while True:
        numbers = draws(branches, len(PROMPT) + tokens)
        run = ToyRun(p, q, numbers, sampling, tokens, further=further)
        loop.run_until_complete(decode(run))
        texts[run.text] += numbers.probability
        if outcomes is not None:
            outcomes |= {j.outcome for verdict in run.verdicts for j in verdict.judged}
        if not branches.advance():
            break
    loop.close()
    assert abs(sum(texts.values()) - 1) < 1e-9, "probabilities are missing"
    return texts


def target_joint(p: Logits, sampling: Sampling, tokens: int = 3) -> dict[tuple[int, ...], float]:
    texts = {(): 1.0}
    for _ in range(tokens):
        texts = {
            (*text, token): probability * chance
            for text, probability in texts.items()
            for token, chance in enumerate(_next(p, (*PROMPT, *text), sampling))
            if chance > 0
        }
    return texts


def _next(p: Logits, context: Sequence[int], sampling: Sampling) -> np.ndarray:
    if sampling.greedy:
        return np.eye(len(p(context)))[int(p(context).argmax())]
    return warp_plainly(p(context), sampling)


def distance(a: dict[tuple[int, ...], float], b: dict[tuple[int, ...], float]) -> float:
    """Return the largest difference between two joint distributions, over all texts."""
    return max(abs(a.get(text, 0.0) - b.get(text, 0.0)) for text in {*a, *b})
