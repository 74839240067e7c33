"""Models without weights: token sources for virtual runs and tests.

Each is a function from the tokens so far to the next token, dressed as a `LanguageModel`: logit 0 for that token, -1e4
for all others, so that every temperature from 0 to 10 and every rule of acceptance sees one certain token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b

import numpy as np
import torch

from engine.errors import UsageError
from engine.model.fuzzy import Fuzzy
from engine.model.language import Output
from engine.model.slots import Rows, Slots
from engine.model.stage import StageIO
from engine.trace.events import Decision
from engine.trace.trace import Trace
from engine.types import check_range, drafter_key

NextToken = Callable[[np.ndarray, int], int]
"""From all token ids so far, (L,) int64, and the sequence's number to the next token."""

IMPOSSIBLE = -1e4
"""Logit of every token that is not said: its probability is 0 in float32 up to temperature 95."""


class Scripted:
    """A language model that says what a function tells it to.

    Args:
        name: How it is called in messages.
        next_token: What it says after a path of tokens.
        vocab_size: V; tokens are 0 to V - 1.
        context: Positions it can hold.
    """

    def __init__(self, name: str, next_token: NextToken, vocab_size: int, context: int = 1 << 20) -> None:
        check_range("vocab_size", vocab_size, 2)
        self.name = name
        self.vocab_size = vocab_size
        self.context = context
        self.depth = 0
        self._next_token = next_token

    def new_cache(self, slots: int, capacity: int) -> Slots:
        """Return empty slots: the tokens are all the cache it needs."""
        return Slots(slots, capacity, self.context)

    def forward(
        self,
        cache: Slots,
        rows: Rows,
        want: Sequence[int] | np.ndarray,
        hidden: Sequence[int] = (),
        fuzzy: Fuzzy | None = None,  # noqa: ARG002 - it says the same either way
        stage_io: StageIO | None = None,  # noqa: ARG002 - as does each of its stages
    ) -> Output:
        """Add the rows to the cache and say what follows the wanted ones.

        Args:
            cache: What `new_cache` made.
            rows: T new rows.
            want: Indices into the new rows, (W,).
            hidden: Must be empty.
            fuzzy: Makes no difference: there are no layers.
            stage_io: Nor does this.

        Raises:
            UsageError: Hidden states were asked for, or the function said a token outside the vocabulary.
        """
        if len(hidden):
            raise UsageError(f"{self.name} is scripted: it has no hidden states, which this method needs")
        inside = cache.append(rows)
        logits = torch.full((len(want), self.vocab_size), IMPOSSIBLE)
        for line, row in enumerate(want):
            slot = int(rows.slots[row])
            token = self._next_token(cache.tokens_to(slot, int(inside[row])), cache.sequences[slot])
            if not 0 <= token < self.vocab_size:
                raise UsageError(
                    f"{self.name} said token {token}; its vocabulary is 0 to {self.vocab_size - 1}"
                )
            logits[line, token] = 0
        each = [(slot, end - first) for slot, first, end in rows.segments()]
        return Output(logits, {}, sum(count * cache.rows_read(slot, count) for slot, count in each))


def scripted_pair(
    target: Callable[[np.ndarray], int], drafter: Callable[[np.ndarray], int], vocab_size: int = 1024
) -> tuple[Scripted, Scripted]:
    """Return (target, drafter) that say what two functions of the tokens so far, (L,) int64, return."""
    return (
        Scripted("target", lambda path, _: target(path), vocab_size),
        Scripted("drafter", lambda path, _: drafter(path), vocab_size),
    )


def bernoulli_pair(
    rate: float, vocab_size: int, prompt_length: int = 0, seed: int = 0, avoid: Iterable[int] = ()
) -> tuple[Scripted, Scripted]:
    """Return (target, drafter) whose tokens agree with one probability, each position by itself.

    The target's token is a keyed hash of the seed, the sequence, the position and the token before, so a wrong draft
    leads away from its text. The drafter says the same with probability `rate` (a keyed hash of the seed, the sequence
    and the position decides), otherwise another token; that holds on every path, the target's own included.

    Args:
        rate: Acceptance rate of a drafted token, given that those before it were accepted; 0 to 1.
        vocab_size: V, at least 2 more than the tokens to avoid.
        prompt_length: Where positions count from. Given the prompt's length, text and agreement do not depend on the prompt.
        seed: Chooses the text and the positions of agreement.
        avoid: Token ids never said, such as those that end a text.

    Raises:
        UsageError: The rate or the vocabulary is out of range.
    """
    target, drafter = bernoulli_models((rate,), vocab_size, prompt_length, seed, avoid)
    return target, drafter


def bernoulli_models(
    rates: Sequence[float],
    vocab_size: int,
    prompt_length: int = 0,
    seed: int = 0,
    avoid: Iterable[int] = (),
) -> tuple[Scripted, ...]:
    """Return the target and a drafter for each rate; which positions one is right at says nothing of the others'.

    Otherwise as `bernoulli_pair`, whose drafter is the first one.
    """
    for rate in rates:
        check_range("acceptance rate", rate, 0, 1)
    words = np.setdiff1d(np.arange(vocab_size), np.fromiter(avoid, dtype=np.int64))
    check_range("the number of tokens to choose from", len(words), 2)

    def place(path: np.ndarray) -> tuple[int, int]:
        position = len(path) - prompt_length
        return position, int(path[-1]) if position > 0 else -1

    def say(path: np.ndarray, sequence: int) -> int:
        return _number("say", seed, sequence, *place(path)) % len(words)

    def propose(number: int, path: np.ndarray, sequence: int) -> int:
        position, last = place(path)
        right, own = say(path, sequence), (number,) if number else ()
        if _agrees(rates[number], seed, sequence, position, *own):
            return int(words[right])
        return int(words[_another(right, len(words), "other", seed, sequence, position, last, *own)])

    return (
        Scripted("target", lambda path, sequence: int(words[say(path, sequence)]), vocab_size),
        *(Scripted(drafter_key(i), partial(propose, i), vocab_size) for i in range(len(rates))),
    )


def recorded_pair(trace: Trace) -> tuple[Scripted, Scripted]:
    """Return (target, drafter) that say again what they said in a recorded run, sequence by sequence.

    The target says the recorded tokens; after them the end token (the run's first, or else its last token again). The
    drafter proposes what was proposed at each position: the token itself where it was accepted, the rejected token
    where it was rejected. Where no draft was tested (bonus and plain tokens, and after the end) it agrees by a keyed hash with
    the run's own rate, accepted over tested positions; discarded drafts were never tested and are left out. Off the
    recorded text both say hashes.

    Raises:
        UsageError: The run has no tokens or tested no draft; in a forward: its prompt is not the one recorded.
    """
    recording = _Recording(trace)
    return (
        Scripted("target", recording.say, recording.vocab_size),
        Scripted("drafter", recording.propose, recording.vocab_size),
    )


class _Recording:
    """What a run left behind, as two functions of the tokens so far."""

    def __init__(self, trace: Trace) -> None:
        header = trace.header
        self._run = f"the recorded run {header.run_id}"
        tested = [d for d in trace.decisions if d.node >= 0 and d.outcome in ("accepted", "rejected")]
        if not trace.commits:
            raise UsageError(f"{self._run} has no tokens; record one that got further")
        self._seed = int(header.sampling.get("seed", 0))
        ends = [int(token) for token in header.limits.get("eos", ())]
        ids = [token for prompt in header.prompt_ids for token in prompt]
        ids += ends + [c.token for c in trace.commits] + [d.token for d in tested]
        self.vocab_size = max(8, 1 + max(ids))
        self._sequences = [
            _Sequence(prompt, trace.token_ids(s), ends, [d for d in tested if d.sequence == s])
            for s, prompt in enumerate(header.prompt_ids)
        ]
        agreed = [fits for sequence in self._sequences for fits in sequence.agreements()]
        if not agreed:
            raise UsageError(
                f"{self._run} tested no draft, so there is none to replay; record a method with a drafter"
            )
        self._rate = sum(agreed) / len(agreed)

    def say(self, path: np.ndarray, sequence: int) -> int:
        """Return the target's token after the path."""
        token = self._sequence(path, sequence).after(path)
        return self._stray("say", path, sequence) if token is None else token

    def propose(self, path: np.ndarray, sequence: int) -> int:
        """Return the drafter's token after the path."""
        text, position = self._sequence(path, sequence), len(path)
        token = text.after(path)
        if token is None:
            return self._stray("propose", path, sequence)
        if position in text.drafts:
            return text.drafts[position]
        if _agrees(self._rate, self._seed, sequence, position):
            return token
        return _another(token, self.vocab_size, "other", self._seed, sequence, position)

    def _sequence(self, path: np.ndarray, sequence: int) -> _Sequence:
        if sequence >= len(self._sequences) or not self._sequences[sequence].knows(path):
            raise UsageError(
                f"sequence {sequence} has another prompt than {self._run}; replay it with the recorded prompt"
            )
        return self._sequences[sequence]

    def _stray(self, purpose: str, path: np.ndarray, sequence: int) -> int:
        return _number(purpose, self._seed, sequence, len(path), path[-1]) % self.vocab_size


class _Sequence:
    """One recorded sequence: its prompt, its text, and what was drafted at its positions."""

    def __init__(
        self, prompt: Sequence[int], text: Sequence[int], ends: list[int], tested: list[Decision]
    ) -> None:
        self._prompt = np.array(prompt, dtype=np.int64)
        self._text = np.array(text, dtype=np.int64)
        self._end = [*ends, *text[-1:], 0][0]
        self.drafts: dict[int, int] = {}
        """Position in the sequence to the token drafted there."""
        for decision in tested:
            if not 0 <= decision.position - len(prompt) < len(text):
                continue
            # of a tree's siblings the accepted one speaks, else the first rejected one
            if decision.outcome == "accepted" or decision.position not in self.drafts:
                self.drafts[decision.position] = decision.token

    def agreements(self) -> list[bool]:
        """Whether the draft was the target's token, for each position with a draft."""
        return [int(self._text[at - len(self._prompt)]) == token for at, token in self.drafts.items()]

    def knows(self, path: np.ndarray) -> bool:
        """Whether the path starts with the recorded prompt."""
        return np.array_equal(path[: len(self._prompt)], self._prompt)

    def after(self, path: np.ndarray) -> int | None:
        """Return the token the target said after the path; None when the path left the text."""
        output = path[len(self._prompt) :]
        inside, beyond = output[: len(self._text)], output[len(self._text) :]
        if not np.array_equal(inside, self._text[: len(inside)]) or (beyond != self._end).any():
            return None
        return int(self._text[len(output)]) if len(output) < len(self._text) else self._end


def _number(*key: object) -> int:
    """Return a number below 2^64 that is a function of the key alone."""
    return int.from_bytes(blake2b(" ".join(map(str, key)).encode(), digest_size=8).digest(), "big")


def _agrees(rate: float, *key: int) -> bool:
    return (_number("agree", *key) >> 11) * 2.0**-53 < rate


def _another(index: int, size: int, *key: object) -> int:
    """Return a number below size that is not `index`, each of the others equally likely."""
    return (index + 1 + _number(*key) % (size - 1)) % size
