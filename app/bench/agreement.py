"""How often a drafter agrees with its target, on answers that the target wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor, minimum

from engine.model.decoder import Decoder
from engine.model.slots import Rows
from engine.pairs.pair import Pair


class Answer(NamedTuple):
    """A prompt and the target's greedy answer."""

    prompt: Sequence[int]
    ids: Sequence[int]
    """Ids of the answer, with the end of text if it has one."""


class Agreement(NamedTuple):
    """Shares over all positions of some answers."""

    agreement: float
    """Share of positions at which the drafter's most probable token is the answer's: the acceptance
    rate at temperature 0."""
    overlap: float
    """Mean of sum min(p, q): the acceptance rate at temperature 1."""
    positions: int


def answers(
    target: Decoder, pair: Pair, prompts: Sequence[Sequence[int]], new_tokens: int
) -> tuple[Answer, ...]:
    """Return the target's greedy answers, written together."""
    cache = target.new_cache(len(prompts), max(map(len, prompts)) + new_tokens)
    written: list[list[int]] = [[] for _ in prompts]
    fed = dict(enumerate(map(list, prompts)))
    for _ in range(new_tokens):
        rows = Rows.join([Rows.chain(slot, ids, cache.length(slot)) for slot, ids in fed.items()])
        want = np.cumsum([len(ids) for ids in fed.values()]) - 1
        chosen = target.forward(cache, rows, want).logits[:, : pair.vocab_size].argmax(1).tolist()
        for slot, token in zip(fed, chosen, strict=True):
            written[slot].append(token)
        fed = {slot: written[slot][-1:] for slot in fed if written[slot][-1] not in pair.eos}
        if not fed:
            break
    return tuple(map(Answer, prompts, written))


def agreement(target: Decoder, drafter: Decoder, pair: Pair, written: Sequence[Answer]) -> Agreement:
    """Return how often a drafter agrees with the target, which wrote the answers."""
    agreed = overlap = 0.0
    for answer in written:
        q = _probabilities(drafter, answer, pair.vocab_size)
        p = _probabilities(target, answer, pair.vocab_size)
        agreed += sum(a == b for a, b in zip(q.argmax(1).tolist(), answer.ids, strict=True))
        overlap += float(minimum(p, q).sum())
    positions = sum(len(answer.ids) for answer in written)
    return Agreement(agreed / positions, overlap / positions, positions)


def _probabilities(model: Decoder, answer: Answer, vocabulary: int) -> Tensor:
    """Return a model's distribution at every token of an answer, (len(answer.ids), V)."""
    ids = [*answer.prompt, *answer.ids[:-1]]
    want = np.arange(len(answer.prompt) - 1, len(ids))
    rows = Rows.chain(0, ids, 0)
    return model.forward(model.new_cache(1, len(ids)), rows, want).logits[:, :vocabulary].softmax(1)
