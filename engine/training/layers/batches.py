"""Batches of texts with the target's outputs; a drafter reads each text from its first token."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.errors import UsageError
from engine.training.teacher import Outputs, Teacher

HELD_OUT = 50
"""One of every 50 texts is held out: it is measured on, never trained on."""
_SORTED = 8
"""Batches whose texts are sorted by length together, so that less is padded."""


class Batch(NamedTuple):
    """B texts, padded at their ends to L tokens, and the target's outputs where the loss counts."""

    ids: Tensor
    """(B, L) int64."""
    places: Tensor
    """Indices (n,) into the B x L tokens: those after which a token of an answer follows."""
    outputs: Outputs
    """The target's outputs at these n tokens."""

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        outputs = Outputs(*(column.to(device) for column in self.outputs))
        return Batch(self.ids.to(device), self.places.to(device), outputs)


class Batches:
    """Texts in batches that are a function of the seed and the step.

    Args:
        teachers: Texts with the target's outputs.
        prompts: Tokens of each text's prompt, for each teacher.
        length: Most tokens of a text that are used.
        seed: Fixes the order.

    Raises:
        UsageError: There is no text to train on, or none to measure on.
    """

    def __init__(self, teachers: list[Teacher], prompts: list[np.ndarray], length: int, seed: int) -> None:
        self._teachers, self._prompts, self._length, self._seed = teachers, prompts, length, seed
        usable = [
            (source, text)
            for source, teacher in enumerate(teachers)
            for text, tokens in enumerate(np.diff(teacher.corpus.starts))
            if min(tokens, length) > prompts[source][text]
        ]
        self.held_out = [text for text in usable if text[1] % HELD_OUT == 0]
        self.learned = [text for text in usable if text[1] % HELD_OUT]
        if not self.learned:
            raise UsageError("there are too few texts with an answer to train on; write more of them")
        self._order = lru_cache(maxsize=2)(self._shuffle)

    def batch(self, step: int, count: int, rows: slice = slice(None)) -> Batch:
        """Return the `count` texts of a step, or some of them."""
        return self._collect(self._chosen(step, count)[rows])

    def counted(self, steps: int, count: int) -> int:
        """Return the number of tokens that count in the first `steps` batches of `count` texts."""
        return sum(
            self._tokens(source, text) - int(self._prompts[source][text])
            for step in range(steps)
            for source, text in self._chosen(step, count)
        )

    def first(self, count: int, tokens: int) -> list[Batch]:
        """Return the first batches of `count` texts in which at least this many tokens count.

        There are at least two, and at most an epoch's.
        """
        batches, found = list[Batch](), 0
        for step in range(max(2, len(self.learned) // count)):
            batches.append(self.batch(step, count))
            found += len(batches[-1].places)
            if found >= tokens and len(batches) > 1:
                break
        return batches

    def answers(self) -> list[np.ndarray]:
        """Return the tokens of all answers to train on."""
        return [self._ids(*text)[int(self._prompts[text[0]][text[1]]) :] for text in self.learned]

    def held(self, count: int, limit: int) -> Iterator[Batch]:
        """Yield up to `limit` held-out texts, `count` at a time."""
        for first in range(0, min(limit, len(self.held_out)), count):
            yield self._collect(self.held_out[first : min(first + count, limit)])

    def _chosen(self, step: int, count: int) -> list[tuple[int, int]]:
        """Return the texts of a step; a text repeats if there are fewer than `count`."""
        epoch, number = divmod(step, max(1, len(self.learned) // count))
        order = np.resize(self._order(epoch, count), max(count, len(self.learned)))
        return [self.learned[i] for i in order[number * count : (number + 1) * count]]

    def _shuffle(self, epoch: int, count: int) -> np.ndarray:
        """Return the texts of an epoch in an order that puts texts of similar length together."""
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(len(self.learned))
        if len(order) < count:
            return order
        lengths = np.array([self._tokens(*text) for text in self.learned])
        batches = list[np.ndarray]()
        for first in range(0, len(order), count * _SORTED):
            part = order[first : first + count * _SORTED]
            part = part[np.argsort(lengths[part], kind="stable")]
            batches += [part[i : i + count] for i in range(0, len(part) - count + 1, count)]
        return np.concatenate([batches[i] for i in rng.permutation(len(batches))])

    def _ids(self, source: int, text: int) -> np.ndarray:
        corpus = self._teachers[source].corpus
        begin = int(corpus.starts[text])
        return corpus.ids[begin : begin + self._tokens(source, text)].astype(np.int64)

    def _tokens(self, source: int, text: int) -> int:
        starts = self._teachers[source].corpus.starts
        return min(int(starts[text + 1] - starts[text]), self._length)

    def _collect(self, texts: list[tuple[int, int]]) -> Batch:
        lengths = [self._tokens(*text) for text in texts]
        ids, places, parts = (
            torch.zeros(len(texts), max(lengths), dtype=torch.int64),
            list[Tensor](),
            list[Outputs](),
        )
        for row, ((source, text), length) in enumerate(zip(texts, lengths, strict=True)):
            prompt = int(self._prompts[source][text])
            ids[row, :length] = torch.from_numpy(self._ids(source, text))
            places.append(row * ids.shape[1] + torch.arange(prompt - 1, length - 1))
            counted = slice(prompt - 1, length - 1)
            stored = self._teachers[source].read(text, length)
            # autocast refuses to join tensors of float16
            logs, tail = stored.logs[counted].float(), stored.tail[counted].float()
            parts.append(Outputs(stored.ids[counted], logs, tail, stored.hidden[counted]))
        outputs = Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))
        return Batch(ids, torch.cat(places), outputs)
