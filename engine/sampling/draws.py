"""Drawing tokens: logits processors (temperature, top-k, top-p), and random numbers by key.

Every random number is a function of its key (position, purpose, node), not of the time of the call.
So no two acceptance tests, siblings or sequences share a number, and a run's text cannot depend on
timing.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from specscope.engine.errors import ModelError
from specscope.engine.types import Damping, Sampling

Purpose: TypeAlias = Literal["draft", "accept", "residual", "target"]
"""A drafted token, an acceptance test, the draw after a rejection, or the target's own draw."""

Top: TypeAlias = tuple[tuple[int, float], ...]
NOT_FINITE = "the model's logits are not finite numbers: its weights or its number type are unsuitable"
TOP = 5
"""Tokens that the trace shows of each row."""
SPREAD = 128
"""Columns of a long row that are first reduced to one."""
LONG = 4096
"""Rows of fewer numbers are searched whole."""


class Key(NamedTuple):
    """The key of one random number of a sequence."""

    position: int
    """Position in the sequence of the token it decides."""
    purpose: Purpose
    node: int = 0
    """Distinguishes nodes of a tree at one position: sibling index of a test, number of a draft."""


class Draws:
    """Uniform numbers in [0, 1), each a pure function of (seed, sequence, key).

    The acceptance rules decide by `below` and `choose` only; tests replace them to enumerate every
    outcome.
    """

    def __init__(self, seed: int, sequence: int) -> None:
        self._state = blake2b(f"{seed} {sequence}".encode(), digest_size=8)

    def value(self, key: Key) -> float:
        """Return the number of this key, a multiple of 2**-53 (for the trace)."""
        state = self._state.copy()
        state.update(f" {key.position} {key.purpose} {key.node}".encode())
        return (int.from_bytes(state.digest(), "big") >> 11) * 2.0**-53

    def below(self, key: Key, t: float) -> bool:
        """Return whether the number is below t: true with probability min(1, t)."""
        return self.value(key) < t

    def choose(self, key: Key, weights: Tensor | np.ndarray) -> int:
        """Return an index with probability proportional to its weight, never one of weight zero.

        The weights, (V,), are at least 0 and summed in float64; ModelError unless the sum is finite
        and positive.
        """
        return pick(self.value(key), weights)


def pick(u: float, weights: Tensor | np.ndarray) -> int:
    """Return the first index whose cumulative weight exceeds u times the total; u is in [0, 1)."""
    # on the CPU, where the order of a sum is fixed
    cumulative = torch.as_tensor(weights).cpu().cumsum(0, dtype=torch.float64).numpy()
    if not 0 < cumulative[-1] < np.inf:
        raise ModelError(
            f"the probabilities sum to {cumulative[-1]:g}: the model's logits are not finite numbers"
        )
    # u * total may round up to the total: then the result is the last index of positive weight
    last = np.searchsorted(cumulative, cumulative[-1])
    return int(min(np.searchsorted(cumulative, u * cumulative[-1], side="right"), last))


def pick_rows(u: Tensor, weights: Tensor) -> Tensor:
    """Return `pick` of each row of weights, (R, V) and at least 0, for u, (R,) float64."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:].contiguous()
    chosen = torch.searchsorted(cumulative, u[:, None] * total, right=True)
    last = torch.searchsorted(cumulative, total)
    # numbers that are not finite have no place: the caller finds them in the probabilities
    return torch.minimum(chosen, last)[:, 0].clamp(max=weights.shape[1] - 1)


def process_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the probabilities after temperature, then top-k, then top-p; not for temperature 0.

    Tokens that tie with the last kept one are kept, too, so the order of a sort has no effect. The
    most probable token is always kept. The result is (R, V) in float32, or float64 for float64
    logits; every row sums to 1.
    """
    x = logits if logits.dtype == torch.float64 else logits.float()
    # subtract the maximum first: a tiny temperature then overflows to -inf, never to nan
    x = (x - x.amax(-1, keepdim=True)) / max(sampling.temperature, torch.finfo(x.dtype).tiny)
    if 0 < sampling.top_k < x.shape[-1]:
        least = largest(x, sampling.top_k)[0][:, -1:]
        x = x.masked_fill(x < least, -torch.inf)
    p = x.softmax(-1)
    if sampling.top_p < 1:
        p = p.masked_fill(p < _nucleus(p, sampling.top_p), 0)
        p = p / p.sum(-1, keepdim=True)
    return p


def damped(q: Tensor, damping: Damping) -> Tensor:
    """Return the rows of q, (R, V), with the most probable tokens damped; every row sums to 1.

    Tokens that tie with the last damped one are damped, too.
    """
    least = largest(q, min(damping.tokens, q.shape[-1]))[0][:, -1:]
    weights = torch.where(q >= least, q * damping.factor, q)
    return weights / weights.sum(-1, keepdim=True)


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """Return the probability of the least probable token that top-p keeps, (R, 1)."""
    # 6 rows of 4,096 on a CPU core: numpy sorts in 0.06 ms, torch in 1.3
    rising = p.sort(-1).values if p.is_cuda else torch.from_numpy(np.sort(p.numpy(), -1))
    mass = rising.cumsum(-1, dtype=torch.float64)
    # drop a token if the more probable ones reach top_p already; never the most probable one
    dropped = torch.searchsorted(mass, mass[:, -1:] - top_p, right=True).clamp_(max=mass.shape[-1] - 1)
    return rising.gather(-1, dropped)


def facts(
    logits: Tensor, ids: Sequence[int], sampling: Sampling, sampled: bool, k: int = TOP
) -> tuple[tuple[float, ...], tuple[Top, ...]]:
    """Return the probability of each drafted token and the k most probable tokens of each row.

    Both are for the trace: q(token) as it was sampled, or the plain softmax of a greedy draft. Row
    i of the drafter's logits, (R, V), drafted ids[i]; tokens of probability 0 are left out.
    ModelError if the logits are not finite.
    """
    q = process_logits(logits, sampling) if sampled and not sampling.greedy else softmax(logits)
    tops = most_probable(q, k)
    chosen = q.gather(-1, torch.tensor(ids, device=q.device)[:, None])
    return tuple(chosen[:, 0].tolist()), tops


def softmax(logits: Tensor) -> Tensor:
    """Return the probabilities without logits processors, in float32 or float64."""
    return (logits if logits.dtype == torch.float64 else logits.float()).softmax(-1)


def argmax(logits: Tensor) -> list[int]:
    """Return the best token of each row; ties go to the lowest id."""
    # 6 rows of 4,096 on a CPU core: numpy 2 us, torch 36
    in_numpy = logits.device.type == "cpu" and logits.dtype != torch.bfloat16
    return (logits.numpy().argmax(-1) if in_numpy else logits.argmax(-1)).tolist()


def most_probable(p: Tensor, k: int) -> tuple[Top, ...]:
    """Return the k most probable tokens of each row, (R, V), without tokens of probability 0."""
    values, ids = largest(p, min(k, p.shape[-1]))
    return most_probable_of(ids, values)


def most_probable_of(ids: Tensor, values: Tensor) -> tuple[Top, ...]:
    """Return the tokens of each row, (R, k), without those of probability 0.

    ModelError if a probability is not a number.
    """
    tops = tuple(
        tuple((i, v) for i, v in zip(row, probabilities, strict=True) if v)
        for row, probabilities in zip(ids.tolist(), values.tolist(), strict=True)
    )
    if any(top[0][1] != top[0][1] for top in tops):
        raise ModelError(NOT_FINITE)
    return tops


def largest(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest numbers of each row, (R, V), and their columns, as `Tensor.topk`.

    On a CPU long rows take a half to a sixth of its time: the k largest numbers lie in k groups of
    columns with the largest maxima.
    """
    count, width = rows.shape
    groups = width // SPREAD
    if rows.is_cuda or width < LONG or width % SPREAD or k > groups:
        values, columns = rows.topk(k)
        return values, columns
    spread = rows.unflatten(1, (SPREAD, groups))
    best = spread.amax(1).topk(k).indices
    near = spread.gather(2, best[:, None].expand(count, SPREAD, k)).flatten(1)
    values, places = near.topk(k)
    return values, places // k * groups + best.gather(1, places % k)
