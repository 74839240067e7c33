"""The start of a drafter made of layers: the layers, the tokens, and the map before the norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.training.data import frequent_ids
from engine.training.layers.batches import Batch
from engine.training.layers.student import Stack, columns_of, divergence

_RIDGE = 1e-4
"""Ridge of the least squares, relative to the mean square of the states."""


class Start(NamedTuple):
    """Layers and a map, with their divergence from the target before any training."""

    layers: tuple[int, ...]
    mapping: Tensor | None
    """(D, D); None: no map."""
    divergence: float
    """KL(p || q) on calibration text, in nats per token."""


def frequent_tokens(texts: Sequence[np.ndarray], count: int, vocab: int, ends: Sequence[int]) -> Tensor:
    """Return the `count` most frequent tokens of some texts, ascending, (count,) int64.

    The ends of a text are always among them. Equally frequent tokens follow the order of their ids.
    """
    numbers = np.bincount(
        np.concatenate([*texts, np.zeros(0, dtype=np.int64)]).astype(np.int64), minlength=vocab
    )
    numbers[list(ends)] = numbers.max() + 1
    return torch.from_numpy(frequent_ids(numbers, count))


class Search:
    """Compares sets of layers on calibration text.

    Args:
        stack: The target's layers.
        ids: Tokens that can be drafted, (N,); None: all.
        vocab: Number of the target's tokens.
    """

    def __init__(self, stack: Stack, ids: Tensor | None, vocab: int) -> None:
        self._stack, self._ids, self._vocab = stack, ids, vocab
        self._head = stack.head if ids is None else stack.head[ids.to(stack.device)]

    def calibrate(self, batches: Sequence[Batch]) -> None:
        """Use these texts: the map is fitted on all batches but the last, which is measured on."""
        device = self._stack.device
        self._batches = [batch.to(device) for batch in batches]
        self._outputs = self._batches[-1].outputs
        self._columns = columns_of(self._outputs.ids, self._ids, self._vocab)
        hidden = torch.cat([batch.outputs.hidden for batch in self._batches[:-1]]).float()
        # the last norm divides by its input's length: the wanted inputs are rows of length 1
        self._wanted = hidden / self._stack.norm.weight.detach()

    def start(self, layers: Sequence[int], mapped: bool | None = None) -> Start:
        """Return the better start with these layers: with the fitted map or without.

        Args:
            layers: Numbers of the layers.
            mapped: Whether there is a map; None: if it lowers the divergence.
        """
        self._stack.keep(layers)
        with torch.no_grad(), self._stack.autocast():
            states = [self._stack(batch.ids).flatten(0, 1)[batch.places] for batch in self._batches]
        known, measured = torch.cat(states[:-1]).float(), states[-1].float()
        fitted = fit_map(known, self._wanted) if mapped is not False else None
        choices = [m for m in (fitted, None) if mapped is None or (m is not None) == mapped]
        return min(
            (Start(tuple(layers), m, self._measure(measured, m)) for m in choices), key=lambda s: s.divergence
        )

    def add_layers(self, depth: int, mapped: bool | None, report: Callable[[int, int, float], None]) -> Start:
        """Return `depth` layers, found greedily by the divergence from the target.

        Each step adds the layer that lowers the divergence most.

        Args:
            depth: Number of layers.
            mapped: See `start`.
            report: Takes the sets compared so far, their final number, and the best divergence.
        """
        total, done = sum(self._stack.depth - k for k in range(depth)), 0
        best = Start((), None, float("inf"))
        for _ in range(depth):
            tried = list[Start]()
            for layer in (i for i in range(self._stack.depth) if i not in best.layers):
                tried.append(self.start(sorted((*best.layers, layer)), mapped))
                done += 1
                report(done, total, min(start.divergence for start in tried))
            best = min(tried, key=lambda start: start.divergence)
        return best

    def _measure(self, states: Tensor, mapping: Tensor | None) -> float:
        with torch.no_grad():
            states = states if mapping is None else functional.linear(states, mapping)
            with self._stack.autocast():
                logits = functional.linear(self._stack.norm(states), self._head).float()
            return divergence(logits, self._columns, self._outputs).item()


def fit_map(states: Tensor, wanted: Tensor) -> Tensor:
    """Return M, (D, D), that minimises |M x / rms(x) - y|^2 over the rows x of states and y wanted.

    Args:
        states: (n, D).
        wanted: (n, D).
    """
    x = (states / states.square().mean(-1, keepdim=True).sqrt().clamp(min=1e-12)).double()
    gram = x.T @ x
    gram.diagonal().add_(_RIDGE * gram.diagonal().mean())
    return torch.linalg.solve(gram, x.T @ wanted.double()).T.float().contiguous()
