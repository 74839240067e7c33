"""Expected speed-ups of methods that draft and verify, at independent acceptance rates.

Sources: Leviathan et al. 2023, equation 1 and theorem 3.8; PEARL (ICLR 2025), algorithm 2, from
which its formula is derived here (that paper has no formula: it measures that gamma = round(c) is
best); DSI (ICLR 2025), proposition 1; SSD (ICLR 2026), algorithm 1 and its power law of misses;
SpecBranch (ICLR 2026), with branch points where the drafter doubts.

A rate is a number, or a tuple with those of the places of a draft; the last one is that of all
later places. PEARL and DSI draft on beyond what is verified, so their places go on, too.

Notation: a is the acceptance rate, c = T(target) / T(drafter). A round's time is in target
forwards. Assumptions: a forward over gamma + 1 rows costs as much as one over a single row; judging
and communicating cost nothing. A rate outside of 0 to 1, a gamma below 1 or a c that is not above 0
is a UsageError.

PEARL is a Markov chain of two states. A pre-verify round checks one token and commits one (drafted
or corrected); with probability a the next round is post-verify. A post-verify round checks gamma
tokens (gamma - 1 pending ones and the first of the next chunk). With probability a^gamma it commits
all of them and the mode stays; otherwise it commits the accepted ones and a corrected one, and the
next round is pre-verify. So a post-verify round commits 1 + a + ... + a^(gamma - 1) tokens on
average, and a / (1 + a - a^gamma) of all rounds are post-verify. By places: from one corrected
token to the next, PEARL commits that token and those accepted before it, in one pre-verify round
and a post-verify one after each of the places 1, 1 + gamma, 1 + 2 gamma, ... that is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from math import ceil, floor
from operator import mul
from typing import NamedTuple

from specscope.engine.drafting.pace import MISSES, Rate
from specscope.engine.types import check_range

_SURE = 1 - 1e-9
"""A larger rate counts as this one where a sum has no end."""


def speculative_tokens(rate: Rate, gamma: int) -> float:
    """Expected tokens of a round of speculative decoding: 1 + a + ... + a^gamma."""
    _check(rate, gamma)
    return _powers(rate, gamma + 1)


def speculative_speedup(rate: Rate, gamma: int, c: float) -> float:
    """Speed-up over autoregressive decoding: a round takes gamma / c + 1 target forwards."""
    check_range("c", c, 0, exclusive=True)
    return speculative_tokens(rate, gamma) / (gamma / c + 1)


def block_speedup(rate: Rate, gamma: int, c: float) -> float:
    """Speed-up of a block drafter, which drafts gamma tokens in one forward of 1 / c."""
    check_range("c", c, 0, exclusive=True)
    return speculative_tokens(rate, gamma) / (1 / c + 1)


def pearl_tokens(rate: Rate, gamma: int) -> float:
    """Expected tokens of a round of PEARL, over both modes."""
    _check(rate, gamma)
    return (1 + _accepted(rate)) / (1 + _accepted(rate, gamma))


def pearl_speedup(rate: Rate, gamma: int, c: float) -> float:
    """Expected speed-up over autoregressive decoding; a round takes max(gamma / c, 1) forwards."""
    check_range("c", c, 0, exclusive=True)
    return pearl_tokens(rate, gamma) / max(gamma / c, 1)


def dsi_speedup(rate: float, c: float) -> float:
    """Return the least expected speed-up of DSI over a long text: 1 / (a / c + 1 - a).

    With lookahead 1 and enough servers, an accepted token takes a drafter forward and a rejected
    one at most a target forward (DSI, proposition 1). c is at least 1.
    """
    check_range("acceptance rate", rate, 0, 1)
    check_range("c", c, 1)
    return 1 / (rate / c + 1 - rate)


def dsi_blocks_speedup(rate: Rate, lookahead: int, c: float) -> float:
    """Expected speed-up of DSI with blocks of `lookahead` drafts, at most c, and enough servers.

    A turn has n accepted tokens and the target's own. It takes ceil(n / lookahead) blocks of
    lookahead / c target forwards, and one more that finds the wrong token.
    """
    _check(rate, lookahead)
    check_range("c", c, lookahead)
    return (1 + _accepted(rate)) / (1 + lookahead / c * _accepted(rate, lookahead))


def layer_parallel_speedup(rate: Rate, gamma: int, first: float, later: float) -> float:
    """Expected speed-up of EasySpec whose fuzzy drafts are as good as exact ones.

    A draft takes an exact forward and gamma - 1 fuzzy ones, which last `first` and `later` target
    forwards.
    """
    return speculative_tokens(rate, gamma) / (1 + first + (gamma - 1) * later)


def ssd_hit_rate(rate: Rate, gamma: int, forks: int, misses: float) -> float:
    """Share of verifications whose outcome has a branch, with `forks` guesses at each place.

    A wrong draft's correction is not among the drafter's next F choices with probability
    (1 + F)^-misses. After gamma accepted tokens the target's own token is the drafter's first
    choice with the acceptance rate, and one of F choices in all but (1 - a) F^-misses of the cases.
    """
    _check(rate, gamma)
    check_range("forks", forks, 1)
    check_range("misses", misses, 0)
    wrong, whole = 1 - (1 + forks) ** -misses, _reached(rate, gamma)
    last = 1 - (1 - rate_at(rate, gamma + 1)) * forks**-misses
    return (1 - whole) * wrong + whole * last


def ssd_speedup(rate: Rate, gamma: int, c: float, forks: int = 3, misses: float = MISSES) -> float:
    """Expected speed-up of SSD, whose text is that of speculative decoding with this gamma.

    The drafter makes one forward over the draft and gamma over all branches, so a round with a hit
    takes max(1, (gamma + 1) / c) target forwards. After a miss the drafter ends its forward in
    progress, if it is not done, and drafts gamma tokens while the target waits.
    """
    check_range("c", c, 0, exclusive=True)
    hits, busy = ssd_hit_rate(rate, gamma, forks, misses), (gamma + 1) / c
    stopped = 1.0 if busy <= 1 else min(busy, ceil(c - 1e-9) / c)
    seconds = hits * max(1.0, busy) + (1 - hits) * (stopped + gamma / c)
    return speculative_tokens(rate, gamma) / seconds


def specbranch_speedup(
    rate: Rate,
    gamma: int,
    c: float,
    length: int = 0,
    branches: int = 1,
    threshold: float = 0.0,
    doubt: float = 0.0,
    misses: float = MISSES,
) -> float:
    """Expected speed-up of SpecBranch; `length` 0 is gamma.

    After a rejection the drafter drafts while the target waits, until a place is below the
    threshold, at most gamma tokens. The next place gets siblings. Beside their verification each
    grows a branch, at most `length` tokens, until a place is below the threshold. If a sibling is
    the target's token, the rest of its branch is verified next, beside others. With `doubt` a place
    is easy with probability a; `specscope.engine.simulate.oracle.bernoulli_models` has how sure
    the drafter is there and elsewhere. Without, it is always certain. Rates of places count as
    the one that `even` gives.
    """
    check_range("c", c, 0, exclusive=True)
    check_range("branches", branches, 1)
    check_range("doubt", doubt, 0, 1)
    _check(rate, gamma)
    places = _places(even(rate), branches, threshold, doubt, misses)
    searched, first, entered = _alone(places, gamma)
    seconds, later, again = _beside(places, length or gamma, c)
    following = entered / max(1 - again, 1e-12)
    return (first + following * later) / (searched / c + seconds * (1 + following))


class _Places(NamedTuple):
    """How often the drafter is sure, its token is right, and one of the siblings is."""

    rate: float
    sure: float
    """Share of the places that are not below the threshold."""
    right: float
    """How often the drafter's token is the target's at these."""
    won: float
    """How often a sibling is, at any place."""
    unsure: float
    """The same at a place below the threshold, times how often there is one."""

    def ends(self, most: int) -> list[tuple[int, float, float]]:
        """Return (tokens at sure places, probability, that of a sibling's win after it)."""
        found = [(n, self.sure**n * (1 - self.sure), self.sure**n * self.unsure) for n in range(most)]
        return [*found, (most, self.sure**most, self.sure**most * self.won)]


@lru_cache(4096)
def _places(rate: float, branches: int, threshold: float, doubt: float, misses: float) -> _Places:
    easy, hard = rate + (1 - rate) * doubt, rate * (1 - doubt)
    # (share of the places, how often the drafter's token is right there, its confidence)
    sorts = [(rate, easy, easy), (1 - rate, hard, hard)] if doubt else [(1.0, rate, 1.0)]
    siblings = [max(1, floor(branches * (1 - confidence) + 1e-9)) for _, _, confidence in sorts]
    wins = [
        share * (1 - (1 - right) * count**-misses)
        for (share, right, _), count in zip(sorts, siblings, strict=True)
    ]
    unsure = sum(win for win, (_, _, q) in zip(wins, sorts, strict=True) if q < threshold)
    sure = sum(share for share, _, q in sorts if q >= threshold)
    right = sum(share * right for share, right, q in sorts if q >= threshold) / max(sure, 1e-12)
    return _Places(rate, sure, right, sum(wins), unsure)


@lru_cache(4096)
def _alone(places: _Places, gamma: int) -> tuple[float, float, float]:
    """Return forwards, committed tokens, and the share that goes on, of a draft by itself."""
    ends = places.ends(gamma)
    forwards = sum(share * min(n + 1, gamma) for n, share, _ in ends)
    tokens = sum(share * _powers(places.right, n + 1) for n, share, _ in ends)
    return forwards, tokens, sum(win * places.right**n for n, _, win in ends)


@lru_cache(4096)
def _beside(places: _Places, length: int, c: float) -> tuple[float, float, float]:
    """Return target forwards, committed tokens, and the share that goes on, of a branch.

    It has a sibling, a token at any place, then tokens at sure ones.
    """
    if length == 1:
        return max(1.0, 1 / c), 1.0, places.won
    ends, rate = places.ends(length - 2), places.rate
    seconds = sum(share * max(1.0, min(n + 3, length) / c) for n, share, _ in ends)
    tokens = sum(share * (1 + rate * _powers(places.right, n + 1)) for n, share, _ in ends)
    return seconds, tokens, sum(win * rate * places.right**n for n, _, win in ends)


def best_gamma(speedup: Callable[[float, int, float], float], rate: float, c: float, limit: int = 32) -> int:
    """Return the smallest gamma with the greatest speed-up: `best_gamma(pearl_speedup, 0.8, 5)`."""
    return max(range(1, limit + 1), key=lambda gamma: speedup(rate, gamma, c))


def rate_of_share(share: float, gamma: int) -> float:
    """Return the acceptance rate at which this share of all drafted tokens is accepted.

    A round accepts a + a^2 + ... + a^gamma of gamma drafted tokens on average.
    """
    _check(share, gamma)
    return bisect(lambda rate: _powers(rate, gamma + 1) - 1, share * gamma, 0.0, 1.0, 50)


def rate_of_tokens(tokens: float, gamma: int) -> float:
    """Return the acceptance rate at which a round of gamma drafts has so many tokens."""
    return bisect(lambda rate: speculative_tokens(rate, gamma), tokens, 0, 1)


def bisect(
    function: Callable[[float], float], wanted: float, low: float, high: float, steps: int = 60
) -> float:
    """Return where an increasing function has a value; a bound if the value is outside."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return low


def even(rate: Rate) -> float:
    """Return the one rate that accepts as many tokens in a row on average."""
    if not isinstance(rate, tuple):
        return rate
    accepted = _accepted(rate)
    return accepted / (1 + accepted)


def rate_at(rate: Rate, place: int) -> float:
    """Return the rate of a place, from 1."""
    return rate[min(place, len(rate)) - 1] if isinstance(rate, tuple) else rate


def _reached(rate: Rate, n: int) -> float:
    """Return the share of drafts whose first n tokens are accepted: a^n."""
    if not isinstance(rate, tuple):
        return rate**n
    found = 1.0
    for place in range(1, n + 1):
        found *= rate_at(rate, place)
    return found


def _powers(rate: Rate, n: int) -> float:
    """Return 1 + a + ... + a^(n - 1); the closed form would divide by 0 at a = 1."""
    return sum(_reached(rate, k) for k in range(n))


def _accepted(rate: Rate, step: int = 1) -> float:
    """Return a + a^(1 + step) + a^(1 + 2 step) + ...: with step 1 an endless draft's tokens."""
    rates = rate if isinstance(rate, tuple) else (rate,)
    *most, last = rates
    last = min(last, _SURE)
    known = list(accumulate((*most, last), mul))
    places = range(1, len(rates) + 1, step)
    beyond = places[-1] + step - len(rates)
    return sum(known[place - 1] for place in places) + known[-1] * last**beyond / (1 - last**step)


def _check(rate: Rate, gamma: int) -> None:
    for one in rate if isinstance(rate, tuple) else (rate,):
        check_range("acceptance rate", one, 0, 1)
    check_range("gamma", gamma, 1)
