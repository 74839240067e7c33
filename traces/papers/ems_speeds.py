"""EMS-SD's speed-ups over batch sizes, from two rows of each series.

A batch lasts as long as its slowest sample. If the part of a sample's steps above the least is
exponential, with share s of the mean, the slowest of B takes 1 + s (H(B) - 1) times the mean, where
H is the harmonic number. So a speed-up over greedy decoding is tokens / (k (1 + s (H(B) - 1))),
where k is a round's time over greedy decoding's step: the step that the greedy row prints, 94 us
for each row more (Figure 5, for the other models by weights), and the drafter's forwards (profile
A100-OPT). Tokens and s are fitted to batch 8 and the smallest batch of a series; the other batch
sizes are judged. The vanilla method adds w B padding_ratio(B) to a round, because the attention of
every sample reads the padded rows; w is fitted to batch 8.

The expected padding of a batch of samples that accept independently (appendix B): a sample accepts
k + 1 tokens or more with probability p^k, at most `most`. So E[tokens] is the sum of p^k over k <
most, and E[largest of B] the sum of 1 - (1 - p^k)^B.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from engine.simulate.profile import Profile
from traces.papers.rows import bisect, numbers

_DATA = numbers("ems")
_CONTEXT = 745
"""Cached rows of a sequence: the mean input length of CNN/Daily Mail, Table 6."""
FIT = 8
"""Batch size of the second fitted row."""
_COPIED, _DRAFTED = 7, 4
"""Tokens of a step besides the one of greedy decoding: LLMA copies 7, opt-125m drafts 4."""


class Series(NamedTuple):
    """Speed-ups of one model and method over batch sizes."""

    model: str
    drafts: bool
    """Whether opt-125m drafts; else LLMA copies."""
    batches: list[int]
    greedy: list[float]
    """Milliseconds of greedy decoding's step."""
    ours: list[float]
    vanilla: list[float]

    @property
    def most(self) -> int:
        """Most tokens of a step, and rows of a sample."""
        return 1 + (_DRAFTED if self.drafts else _COPIED)

    def round_ms(self, at: int) -> float:
        """Return the milliseconds of a round, at an index of `batches`."""
        batch = self.batches[at]
        rows = _row_ms(self.model) * batch * (self.most - 1)
        return self.greedy[at] + rows + (_DRAFTED * _draft_ms(self.model, batch) if self.drafts else 0)


class Fit(NamedTuple):
    """Parameters of a series."""

    tokens: float
    spread: float
    weight: float
    """Milliseconds of a sample for a padding ratio of 1."""


def waiting(batch: int) -> float:
    """Return H(B) - 1, by which the largest of B exponential variables exceeds their mean."""
    return sum(1 / k for k in range(2, batch + 1))


@cache
def _row_ms(model: str) -> float:
    """Return the milliseconds of a row more in a forward."""
    one, five = _DATA["Figure 5"]["batch 16, ms"]
    profile = Profile.load("A100-OPT")
    other, own = (profile.latency(name).target for name in (model, "opt-6.7b"))
    return (five - one) / (4 * 16) * (other.weights / other.gpus) / (own.weights / own.gpus)


@cache
def _draft_ms(model: str, batch: int) -> float:
    latency = Profile.load("A100-OPT").latency(f"opt-125m-{model.removeprefix('opt-')}")
    return latency("drafter", batch, batch * _CONTEXT, batch) / 1e3


def step_ms(model: str, batch: int, rows: int = 1) -> float:
    """Return the milliseconds of a target forward of the profile."""
    latency = Profile.load("A100-OPT").latency(model)
    return latency("target", batch * rows, batch * _CONTEXT, batch) / 1e3


def fit(series: Series) -> Fit:
    """Return tokens and spread from the smallest batch and batch 8, and w from batch 8."""
    at = series.batches.index(FIT)
    first, last = (series.ours[i] * series.round_ms(i) / series.greedy[i] for i in (0, at))
    begin, end = waiting(series.batches[0]), waiting(FIT)
    spread = max(0.0, (first - last) / (last * end - first * begin))
    tokens = first * (1 + spread * begin)
    ratio = padding_ratio(accuracy_for(series, tokens), FIT, series.most)
    more = (series.ours[at] / series.vanilla[at] - 1) * series.round_ms(at)
    return Fit(tokens, spread, more / (FIT * ratio))


def predicted(series: Series, at: int) -> tuple[float, float]:
    """Return the speed-ups of our method and of the vanilla method, at an index of `batches`."""
    own, batch, time = fit(series), series.batches[at], series.round_ms(at)
    ours = own.tokens * series.greedy[at] / time / (1 + own.spread * waiting(batch))
    ratio = padding_ratio(accuracy_for(series, own.tokens), batch, series.most)
    return ours, ours * time / (time + own.weight * batch * ratio)


def accuracy_for(series: Series, tokens: float) -> float:
    """Return the accuracy at which a sample of the series accepts so many tokens a step."""
    return accuracy_of(min(tokens, series.most - 0.05), series.most)


def mean_accepted(accuracy: float, most: int) -> float:
    """Return the expected tokens of a sample in one step (equation 7)."""
    return sum(accuracy**k for k in range(most))


def largest_accepted(accuracy: float, batch: int, most: int) -> float:
    """Return the expected largest number of tokens in a batch (equations 8 and 11)."""
    return sum(1 - (1 - accuracy**k) ** batch for k in range(most))


def padding(accuracy: float, batch: int, most: int) -> float:
    """Return the expected padding tokens of a sample (equation 9)."""
    return largest_accepted(accuracy, batch, most) - mean_accepted(accuracy, most)


def padding_ratio(accuracy: float, batch: int, most: int) -> float:
    """Return the padding over the accepted tokens."""
    return padding(accuracy, batch, most) / mean_accepted(accuracy, most)


def padding_share(accuracy: float, batch: int, most: int) -> float:
    """Return the padding over the largest number of tokens (equation 10)."""
    return padding(accuracy, batch, most) / largest_accepted(accuracy, batch, most)


def accuracy_of(tokens: float, most: int) -> float:
    """Return the accuracy at which a sample accepts so many tokens on average."""
    return bisect(lambda p: mean_accepted(p, most), tokens, 0, 1)
