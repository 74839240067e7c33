"""Models without weights: token sources for virtual runs and tests.

Each maps the tokens so far to the next token, as a `LanguageModel`: logit 0 for that token and -1e4
for most others. So at every temperature from 0 to 10 and under every acceptance rule, one token has
probability 1. A drafter's second choices have logits between these: they have an order, and no
probability unless the drafter doubts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from math import ceil, log
from typing import NamedTuple

import numpy as np
import torch

from specscope.engine.drafting.pace import MISSES, Rate
from specscope.engine.errors import UsageError
from specscope.engine.model.fuzzy import Fuzzy
from specscope.engine.model.language import LanguageModel, Output, never
from specscope.engine.model.slots import Rows, Slots
from specscope.engine.model.stage import StageIO
from specscope.engine.simulate.draft_places import DraftPlaces
from specscope.engine.types import check_range, drafter_key

NextToken = Callable[[np.ndarray, int], int]
"""Maps all token ids so far, (L,) int64, and the sequence's number to the next token."""

Certainty = Callable[[np.ndarray, int], float]
"""Maps the same to the probability of that token at temperature 1."""

Choices = Callable[[np.ndarray, int], Sequence[tuple[int, float]]]
"""Maps the same to the tokens that a model finds likeliest after that token, with their shares of
the rest of the probability."""

Ask = Callable[[np.ndarray, int, str, bool], None]
"""Is told the same, the forward's kind, and whether it is a draft's next level."""

IMPOSSIBLE = -1e4
"""Logit of all other tokens: their probability is 0 in float32 up to temperature 95."""
STEP = 1e-4
"""Difference of logits, and of shares relatively, that keeps other tokens below the choices."""
ORDERED = -2e3
"""Logit of the first second choice where no token but one has a probability."""
SECOND = 15
"""Second choices of a scripted drafter."""


class Source(NamedTuple):
    """Models that give a virtual run its tokens: the target, then its drafters."""

    models: tuple[LanguageModel, ...]
    name: str
    """For the header: `bernoulli:0.8`."""
    block: bool = False
    """Whether the drafter is a block drafter: it stands in for a head that drafts at once, and all
    levels of a draft are rows of one forward."""


class Scripted:
    """A language model whose next token is given by a function of the tokens so far.

    `certainty` returns that token's probability, 1 without it; all other tokens share the rest, in
    equal parts without `choices`. If `seeded`, sequence i of a run with seed s is number s + i to
    these functions.
    """

    def __init__(
        self,
        name: str,
        next_token: NextToken,
        vocab_size: int,
        context: int = 1 << 20,
        certainty: Certainty | None = None,
        choices: Choices | None = None,
        *,
        seeded: bool = False,
        ask: Ask | None = None,
    ) -> None:
        check_range("vocab_size", vocab_size, 2)
        self.name = name
        self.vocab_size = vocab_size
        self.context = context
        self.depth = 0
        self._next_token = next_token
        self._certainty = certainty
        self._choices = choices
        self._seeded = seeded
        self._ask = ask

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
            if self._ask:
                self._ask(path, sequence, cache.kind, cache.deeper)
            token = self._next_token(path, sequence)
            if not 0 <= token < self.vocab_size:
                raise UsageError(
                    f"{self.name} returned token {token}; its vocabulary is 0 to {self.vocab_size - 1}"
                )
            certainty = 1.0 if self._certainty is None else self._certainty(path, sequence)
            choices = self._choices(path, sequence) if self._choices else ()
            self._fill(logits[line], certainty, choices)
            logits[line, token] = 0
        counts = [(slot, end - first) for slot, first, end in rows.segments()]
        return Output(logits, {}, sum(count * cache.rows_read(slot, count) for slot, count in counts))

    def _fill(self, logits: torch.Tensor, certainty: float, choices: Sequence[tuple[int, float]]) -> None:
        """Set the logits, (V,), of all tokens but the next one, whose logit is 0."""
        certainty = max(certainty, 2 / self.vocab_size)
        odds = max(1 - certainty, 1e-9) / certainty
        if self._certainty is None:
            second = [ORDERED - 100 * order for order in range(len(choices))]
        else:
            shares, count = [share for _, share in choices], max(self.vocab_size - 1 - len(choices), 1)
            left = max(1 - sum(shares), 1e-9) / count
            least = min([left, *(share * (1 - STEP) for share in shares)])
            if least < left:  # of a small vocabulary: no other token is as likely as a choice
                odds /= sum(shares) + count * least
            second = [min(log(odds * share), -0.01 * order) for order, share in enumerate(shares, 1)]
            logits[:] = min([log(odds * least), *(logit - STEP for logit in second)])
        if choices:
            logits[[token for token, _ in choices]] = torch.tensor(second)


def bernoulli_models(
    rates: Sequence[Rate],
    vocab_size: int,
    prompt_length: int = 0,
    seed: int = 0,
    avoid: Iterable[int] = (),
    *,
    doubt: float = 0.0,
    misses: float = MISSES,
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

    Where a drafter is wrong, the target's token is not among its next F choices with probability
    (1 + F)^-`misses`. With `doubt`, from 0 to 1, a drafter of rate a has probabilities that are
    right on average: a position is easy with probability a, and the drafter's token then has
    probability a + (1 - a) doubt; at a hard position it has a (1 - doubt). At a temperature above 0
    drafts are then drawn from these probabilities, and fewer are accepted.

    Several rates of one drafter are those of the places of a draft (`draft_places.py`); the last is
    that of all later ones.
    """
    places = [rate if isinstance(rate, tuple) else (rate,) for rate in rates]
    for rate in (rate for of_places in places for rate in of_places):
        check_range("acceptance rate", rate, 0, 1)
    check_range("doubt", doubt, 0, 1)
    check_range("misses", misses, 0.01, 10)
    words = np.setdiff1d(np.arange(vocab_size), np.fromiter(avoid, dtype=np.int64))
    check_range("the number of tokens to choose from", len(words), 2)
    text = _Text(words, prompt_length, seed)
    drafters = [
        _Drafter(text, of_places, DraftPlaces(prompt_length), i, doubt, misses)
        for i, of_places in enumerate(places)
    ]
    return (
        Scripted("target", text.token, vocab_size, seeded=True),
        *(
            Scripted(
                drafter_key(i),
                drafter.token,
                vocab_size,
                certainty=drafter.certainty if doubt else None,
                choices=drafter.choices,
                seeded=True,
                ask=drafter.ask if len(drafter.rates) > 1 else None,
            )
            for i, drafter in enumerate(drafters)
        ),
    )


class _Text(NamedTuple):
    """The target of `bernoulli_models`; `words` are the ids that it uses, rising."""

    words: np.ndarray
    prompt_length: int
    seed: int

    def place(self, path: np.ndarray) -> tuple[int, int]:
        """Return the position after a path, and its last token if this is not the prompt's."""
        position = len(path) - self.prompt_length
        return position, int(path[-1]) if position > 0 else -1

    def word(self, path: np.ndarray, sequence: int) -> int:
        return number("say", self.seed, sequence, *self.place(path)) % len(self.words)

    def token(self, path: np.ndarray, sequence: int) -> int:
        return int(self.words[self.word(path, sequence)])


class _Drafter(NamedTuple):
    """Drafter `number` of `bernoulli_models`."""

    text: _Text
    rates: tuple[float, ...]
    places: DraftPlaces
    number: int
    doubt: float
    misses: float

    def ask(self, path: np.ndarray, sequence: int, kind: str, deeper: bool) -> None:
        if self.places.ask(path, sequence, kind, deeper=deeper):
            self.places.drafted(path, sequence, self.token(path, sequence))

    def token(self, path: np.ndarray, sequence: int) -> int:
        agrees = self._agrees(path, sequence)
        word = self.text.word(path, sequence) if agrees else self._wrong(path, sequence, 1)[0]
        return int(self.text.words[word])

    def choices(self, path: np.ndarray, sequence: int) -> list[tuple[int, float]]:
        found = self._wrong(path, sequence, SECOND + 1)
        if self._agrees(path, sequence):
            found = found[:SECOND]
        else:
            place = self._place(path, sequence)
            found = [*found[1:place], self.text.word(path, sequence), *found[place:]][:SECOND]
        missed = [(1 + i) ** -self.misses for i in range(len(found) + 1)]
        return [(int(self.text.words[i]), missed[n] - missed[n + 1]) for n, i in enumerate(found)]

    def certainty(self, path: np.ndarray, sequence: int) -> float:
        rate = self._rate(path, sequence)
        if self._draw("easy", path, sequence) < rate:
            return rate + (1 - rate) * self.doubt
        return rate * (1 - self.doubt)

    def _rate(self, path: np.ndarray, sequence: int) -> float:
        last = len(self.rates)
        return self.rates[min(self.places.of(path, sequence), last) - 1 if last > 1 else 0]

    def _agrees(self, path: np.ndarray, sequence: int) -> bool:
        rate = self.certainty(path, sequence) if self.doubt else self._rate(path, sequence)
        return self._draw("agree", path, sequence) < rate

    def _place(self, path: np.ndarray, sequence: int) -> int:
        """Return the place, from 1, of the target's token among the choices after a wrong one."""
        missed = 1 - self._draw("rank", path, sequence)
        return max(1, ceil(min(missed ** (-1 / self.misses), SECOND + 2) - 1))

    def _draw(self, purpose: str, path: np.ndarray, sequence: int) -> float:
        position, _ = self.text.place(path)
        return (number(purpose, self.text.seed, sequence, position, *self._key) >> 11) * 2.0**-53

    def _wrong(self, path: np.ndarray, sequence: int, count: int) -> list[int]:
        """Return different wrong words; the first one is the drafter's where it is wrong."""
        right, size = self.text.word(path, sequence), len(self.text.words)
        first = another(right, size, "other", self.text.seed, sequence, *self.text.place(path), *self._key)
        turn = (first - right - 1) % size
        return [(right + 1 + (turn + i) % (size - 1)) % size for i in range(min(count, size - 1))]

    @property
    def _key(self) -> tuple[int, ...]:
        return (self.number,) if self.number else ()


def number(*key: object) -> int:
    """Return a hash of the key, below 2^64."""
    return int.from_bytes(blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest(), "big")


def agrees(rate: float, *key: int) -> bool:
    """Return true with probability `rate`, by a hash of the key."""
    return (number("agree", *key) >> 11) * 2.0**-53 < rate


def another(index: int, size: int, *key: object) -> int:
    """Return a number below `size` other than `index`, by a hash of the key."""
    return (index + 1 + number(*key) % (size - 1)) % size
