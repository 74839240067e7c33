"""Models without weights: token sources for virtual runs and tests.

Each maps the tokens so far to the next token, as a `LanguageModel`: logit 0 for that token and -1e4
for all others. So at every temperature from 0 to 10 and under every acceptance rule, one token has
probability 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from math import log
from typing import NamedTuple

import numpy as np
import torch

from engine.errors import UsageError
from engine.model.fuzzy import Fuzzy
from engine.model.language import LanguageModel, Output, never
from engine.model.slots import Rows, Slots
from engine.model.stage import StageIO
from engine.types import check_range, drafter_key

NextToken = Callable[[np.ndarray, int], int]
"""Maps all token ids so far, (L,) int64, and the sequence's number to the next token."""

Certainty = Callable[[np.ndarray, int], float]
"""Maps the same to the probability of that token at temperature 1."""

IMPOSSIBLE = -1e4
"""Logit of all other tokens: their probability is 0 in float32 up to temperature 95."""


class Source(NamedTuple):
    """Models that give a virtual run its tokens: the target, then its drafters."""

    models: tuple[LanguageModel, ...]
    name: str
    """For the header: `bernoulli:0.8`."""


class Scripted:
    """A language model whose next token is given by a function of the tokens so far.

    `certainty` returns that token's probability, 1 without it; all other tokens share the rest. If
    `seeded`, sequence i of a run with seed s is number s + i to these functions.
    """

    def __init__(
        self,
        name: str,
        next_token: NextToken,
        vocab_size: int,
        context: int = 1 << 20,
        certainty: Certainty | None = None,
        *,
        seeded: bool = False,
    ) -> None:
        check_range("vocab_size", vocab_size, 2)
        self.name = name
        self.vocab_size = vocab_size
        self.context = context
        self.depth = 0
        self._next_token = next_token
        self._certainty = certainty
        self._seeded = seeded

    def new_cache(self, slots: int, capacity: int) -> Slots:
        return Slots(slots, capacity, self.context)

    def forward(
        self,
        cache: Slots,
        rows: Rows,
        want: Sequence[int] | np.ndarray,
        hidden: Sequence[int] = (),
        fuzzy: Fuzzy | None = None,  # noqa: ARG002 - it has no layers
        stage_io: StageIO | None = None,  # noqa: ARG002 - every stage has the same output
        stopped: Callable[[], bool] = never,  # noqa: ARG002 - it takes no time
    ) -> Output:
        """Add the rows to the cache and return the logits of the wanted ones; no layer runs."""
        if len(hidden):
            raise UsageError(f"{self.name} is scripted: it has no hidden states, which this method needs")
        indices = cache.append(rows)
        logits = torch.full((len(want), self.vocab_size), IMPOSSIBLE)
        for line, row in enumerate(want):
            slot = int(rows.slots[row])
            path = cache.tokens_to(slot, int(indices[row]))
            sequence = cache.sequences[slot] + (cache.seed if self._seeded else 0)
            token = self._next_token(path, sequence)
            if not 0 <= token < self.vocab_size:
                raise UsageError(
                    f"{self.name} returned token {token}; its vocabulary is 0 to {self.vocab_size - 1}"
                )
            if self._certainty is not None:
                logits[line] = self._others(self._certainty(path, sequence))
            logits[line, token] = 0
        counts = [(slot, end - first) for slot, first, end in rows.segments()]
        return Output(logits, {}, sum(count * cache.rows_read(slot, count) for slot, count in counts))

    def _others(self, certainty: float) -> float:
        certainty = max(certainty, 2 / self.vocab_size)
        odds = certainty / max(1 - certainty, 1e-9)
        return -log(odds * (self.vocab_size - 1))


def bernoulli_models(
    rates: Sequence[float],
    vocab_size: int,
    prompt_length: int = 0,
    seed: int = 0,
    avoid: Iterable[int] = (),
) -> tuple[Scripted, ...]:
    """Return a target and one drafter per rate, which agrees at each position independently.

    The target's token is a keyed hash of the seed, the sequence, the position and the previous
    token, so a wrong draft leaves the target's text. Sequence i of a run with seed s is s + i: it
    has the tokens of its prompt alone with seed s + i. A drafter returns the target's token with
    probability `rate`, by a keyed hash of the seed, the sequence and the position, and otherwise
    another token. This holds on every path. Drafters agree independently of each other.
    `prompt_length` is the position of the first token to count: with the prompt's length, neither
    text nor agreement depends on the prompt. Tokens to `avoid`, such as EOS ids, are never
    returned.
    """
    for rate in rates:
        check_range("acceptance rate", rate, 0, 1)
    words = np.setdiff1d(np.arange(vocab_size), np.fromiter(avoid, dtype=np.int64))
    check_range("the number of tokens to choose from", len(words), 2)

    def position_and_last(path: np.ndarray) -> tuple[int, int]:
        position = len(path) - prompt_length
        return position, int(path[-1]) if position > 0 else -1

    def target_word(path: np.ndarray, sequence: int) -> int:
        return number("say", seed, sequence, *position_and_last(path)) % len(words)

    def draft(number: int, path: np.ndarray, sequence: int) -> int:
        position, last = position_and_last(path)
        right, key = target_word(path, sequence), (number,) if number else ()
        if agrees(rates[number], seed, sequence, position, *key):
            return int(words[right])
        return int(words[another(right, len(words), "other", seed, sequence, position, last, *key)])

    def say(path: np.ndarray, sequence: int) -> int:
        return int(words[target_word(path, sequence)])

    return (
        Scripted("target", say, vocab_size, seeded=True),
        *(Scripted(drafter_key(i), partial(draft, i), vocab_size, seeded=True) for i in range(len(rates))),
    )


def number(*key: object) -> int:
    """Return a hash of the key, below 2^64."""
    return int.from_bytes(blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest(), "big")


def agrees(rate: float, *key: int) -> bool:
    """Return true with probability `rate`, by a hash of the key."""
    return (number("agree", *key) >> 11) * 2.0**-53 < rate


def another(index: int, size: int, *key: object) -> int:
    """Return a number below `size` other than `index`, by a hash of the key."""
    return (index + 1 + number(*key) % (size - 1)) % size
