"""A target that answers many prompts at once, one in each slot of a cache.

New prompts are prefilled slot by slot, each at its own length. Then the cache is padded to its
longest slot, so that one attention call per layer serves all slots (`PaddedAttention`). When an
answer ends, its slot gets the next prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from engine.model.decoder import Decoder
from engine.model.slots import Rows

SLOTS = 128
"""Most answers written at once."""
CACHE_BYTES = 2 << 30
"""Most bytes of keys and values; fewer answers are written at once where this limit is reached."""
_PREFILLED = 8
"""Prompts of one prefill."""


class Text(NamedTuple):
    """A prompt with its answer."""

    ids: Sequence[int]
    """Prompt and answer."""
    answer: int
    """Index of the answer's first token: the length of the prompt."""


@dataclass(slots=True)
class Unfinished:
    """A text under way."""

    number: int
    """Number of its prompt; answers to even numbers are greedy, the others drawn at temperature
    1."""
    ids: list[int]
    answer: int


@dataclass(frozen=True, slots=True)
class Written:
    """All texts of a writer, from which another one can go on."""

    finished: list[Text]
    unfinished: list[Unfinished]
    """One text for each slot."""
    steps: int
    """Tokens written in each slot."""

    @property
    def tokens(self) -> int:
        """Number of tokens written."""
        return self.steps * len(self.unfinished)


class Writer:
    """Writes answers; each token is a function of the seed, the prompts and the number of slots.

    Args:
        target: The model.
        prompts: An endless supply of prompts.
        eos: Ids that end an answer.
        longest: Most tokens of a prompt, and of an answer.
        seed: Fixes the draws at temperature 1.
        slots: Answers written at once.
        before: Texts of an earlier writer with the same arguments, which this one continues.
    """

    def __init__(
        self,
        target: Decoder,
        prompts: Iterator[np.ndarray],
        eos: tuple[int, ...],
        longest: tuple[int, int],
        seed: int,
        slots: int,
        before: Written | None = None,
    ) -> None:
        self._target, self._prompts, self._eos, self._seed = target, prompts, eos, seed
        self._most = longest[1]
        self._next = 0
        """Number of the next prompt."""
        if before is None:
            before = Written([], [self._start() for _ in range(slots)], 0)
        else:
            self._next = 1 + max(text.number for text in before.unfinished)
            next(islice(prompts, self._next, self._next), None)  # skip the prompts that were used
        self.written = before
        self._cache = target.new_cache(len(self.written.unfinished), sum(longest) + 1)

    def run(self, tokens: int, each_step: Callable[[Written], None]) -> Written:
        """Write until `tokens` tokens are written; return all texts, the last ones cut off.

        Args:
            tokens: Number of tokens, those written before included.
            each_step: Called after each token of all slots; it may raise an error to stop.
        """
        while self.written.tokens < tokens:
            self._step()
            each_step(self.written)
        return self.written

    def _start(self) -> Unfinished:
        ids = next(self._prompts).tolist()
        self._next += 1
        return Unfinished(self._next - 1, ids, len(ids))

    def _step(self) -> None:
        """Write one token in each slot."""
        finished, texts = self.written.finished, self.written.unfinished
        for slot, token in enumerate(self._next_tokens(texts)):
            text = texts[slot]
            text.ids.append(token)
            if token in self._eos or len(text.ids) == text.answer + self._most:
                finished.append(Text(text.ids, text.answer))
                texts[slot] = self._start()
                self._cache.reset(slot)
        self.written = Written(finished, texts, self.written.steps + 1)

    def _next_tokens(self, texts: Sequence[Unfinished]) -> list[int]:
        """Return the next token of each text; text i is in slot i."""
        cache = self._cache
        self._prefill(texts)
        cache.pad(max(cache.length(slot) for slot in range(cache.slots)), 1)
        rows = [Rows.chain(slot, text.ids[-1:], cache.length(slot)) for slot, text in enumerate(texts)]
        logits = self._target.forward(cache, Rows.join(rows), np.arange(len(rows))).logits
        tokens = logits.argmax(-1)
        drawn = [slot for slot, text in enumerate(texts) if text.number % 2]
        if drawn:
            draws = torch.Generator(logits.device).manual_seed(self._seed << 32 | self.written.steps)
            tokens[drawn] = torch.multinomial(logits[drawn].softmax(-1), 1, generator=draws)[:, 0]
        return tokens.tolist()

    def _prefill(self, texts: Sequence[Unfinished]) -> None:
        """Read the tokens of each text that the cache lacks, except its last one."""
        cache = self._cache
        cache.pad(0)
        rows = [
            Rows.chain(slot, text.ids[start:-1], start)
            for slot, text in enumerate(texts)
            if (start := cache.length(slot)) < len(text.ids) - 1
        ]
        for first in range(0, len(rows), _PREFILLED):
            part = Rows.join(rows[first : first + _PREFILLED])
            self._target.forward(cache, part, np.empty(0, dtype=np.int64))


def slots_for(target: Decoder, longest: tuple[int, int], tokens: int) -> int:
    """Return how many answers are written at once.

    Args:
        target: The model.
        longest: Most tokens of a prompt, and of an answer.
        tokens: Tokens to write.
    """
    shape = target.shape
    row = 2 * shape.layers * shape.kv_heads * shape.head_dim * target.dtype.itemsize
    return max(1, min(SLOTS, tokens, CACHE_BYTES // (row * (sum(longest) + 1))))
