"""Models that repeat a recorded run: token sources for virtual runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specscope.engine.errors import UsageError
from specscope.engine.simulate.oracle import Scripted, agrees, another, number
from specscope.engine.trace.events import Decision, Top
from specscope.engine.trace.trace import Trace

ALMOST = 1 - 1e-6
"""Probability of a drafted token whose q is unknown: trees still find siblings of it."""


def recorded_pair(
    trace: Trace, *, doubts: bool = False, drawn: set[tuple[int, ...]] | None = None
) -> tuple[Scripted, Scripted]:
    """Return (target, drafter) that repeat a recorded run, sequence by sequence.

    The target returns the recorded tokens, and after them the run's first EOS id, or else the last
    token again. The drafter returns the token tested at each position, accepted or rejected. At
    positions without a tested draft (bonus and plain tokens, and after the end) it agrees with the
    run's acceptance rate, by a keyed hash. Discarded drafts were not tested and are left out. Off
    the recorded text both return hashes. A forward after another prompt raises a UsageError.

    With `doubts` the drafter's tokens have the recorded q instead of probability 1. Where none is
    recorded, the q of another right or wrong draft counts, and after a wrong draft that of a
    discarded one; without any, a token is almost certain. Then only greedy runs repeat the recorded
    run. `drawn` is filled with (sequence, position, first position off the text) of the tokens for
    which no q is recorded. The drafter's second choices are the recorded `top_q`, where there are
    any.
    """
    recording = _Recording(trace, set() if drawn is None else drawn)
    return (
        Scripted("target", recording.target_token, recording.vocab_size),
        Scripted(
            "drafter",
            recording.drafter_token,
            recording.vocab_size,
            certainty=recording.certainty if doubts else None,
            choices=recording.choices,
        ),
    )


class _Recording:
    """A recorded run as two functions of the tokens so far."""

    def __init__(self, trace: Trace, drawn: set[tuple[int, ...]]) -> None:
        header, self._drawn = trace.header, drawn
        self._run = f"the recorded run {header.run_id}"
        tested = [d for d in trace.decisions if d.node >= 0 and d.outcome in ("accepted", "rejected")]
        if not trace.commits:
            raise UsageError(f"{self._run} has no tokens; record one that got further")
        self._seed = int(header.sampling.get("seed", 0))
        ends = [int(token) for token in header.limits.get("eos", ())]
        ids = [token for prompt in header.prompt_ids for token in prompt]
        ids += ends + [c.token for c in trace.commits] + [d.token for d in tested]
        ids += [token for d in tested for token, _ in d.top_q]
        self.vocab_size = max(8, 1 + max(ids))
        self._sequences = [
            _Sequence(
                prompt,
                trace.token_ids(s),
                ends,
                [d for d in tested if d.sequence == s],
                [d for d in trace.decisions if d.sequence == s and d.outcome == "discarded"],
            )
            for s, prompt in enumerate(header.prompt_ids)
        ]
        self._certainties: dict[str, list[float]] = {"right": [], "wrong": [], "strayed": []}
        for text in self._sequences:
            for position, q in text.certainties.items():
                self._certainties["right" if text.is_right(position) else "wrong"].append(q)
            self._certainties["strayed"] += text.strayed.values()
        agreed = [text.is_right(position) for text in self._sequences for position in text.drafts]
        if not agreed:
            raise UsageError(
                f"{self._run} tested no draft, so there is none to replay; record a method with a drafter"
            )
        self._rate = sum(agreed) / len(agreed)

    def target_token(self, path: np.ndarray, sequence: int) -> int:
        token = self._sequence(path, sequence).after(path)
        return self._hashed_token("say", path, sequence) if token is None else token

    def drafter_token(self, path: np.ndarray, sequence: int) -> int:
        text, position = self._sequence(path, sequence), len(path)
        token = text.after(path)
        if token is None:
            return self._hashed_token("propose", path, sequence)
        if position in text.drafts:
            return text.drafts[position]
        if agrees(self._rate, self._seed, sequence, position):
            return token
        return another(token, self.vocab_size, "other", self._seed, sequence, position)

    def certainty(self, path: np.ndarray, sequence: int) -> float:
        text, position = self._sequence(path, sequence), len(path)
        token, left = text.after(path), position
        if token is None:
            left = text.left(path)
            found, kinds = text.strayed.get((left, position)), ("strayed", "wrong")
        else:
            right = self.drafter_token(path, sequence) == token
            found, kinds = text.certainties.get(position), ("right" if right else "wrong",)
        if not found:
            self._drawn.add((sequence, position, left))
            found = next(filter(None, (self._any(kind, sequence, position) for kind in kinds)), None)
        return found or ALMOST

    def choices(self, path: np.ndarray, sequence: int) -> list[tuple[int, float]]:
        text, position = self._sequence(path, sequence), len(path)
        first = self.drafter_token(path, sequence)
        top = text.choices.get(position, ()) if text.after(path) is not None else ()
        others = [(token, q) for token, q in top if token != first and q > 0 and token < self.vocab_size]
        rest = 1 - sum(q for token, q in top if token == first)
        total = max(rest, sum(q for _, q in others))
        return [(token, q / total) for token, q in others]

    def _any(self, kind: str, sequence: int, position: int) -> float | None:
        values = self._certainties[kind]
        return values[number(kind, self._seed, sequence, position) % len(values)] if values else None

    def _sequence(self, path: np.ndarray, sequence: int) -> _Sequence:
        if sequence >= len(self._sequences) or not self._sequences[sequence].has_prompt(path):
            raise UsageError(
                f"sequence {sequence} has another prompt than {self._run}; replay it with the recorded prompt"
            )
        return self._sequences[sequence]

    def _hashed_token(self, purpose: str, path: np.ndarray, sequence: int) -> int:
        return number(purpose, self._seed, sequence, len(path), path[-1]) % self.vocab_size


class _Sequence:
    """One recorded sequence: its prompt, its text and the drafted token of each position."""

    def __init__(
        self,
        prompt: Sequence[int],
        text: Sequence[int],
        ends: list[int],
        tested: list[Decision],
        discarded: list[Decision],
    ) -> None:
        self._prompt = np.array(prompt, dtype=np.int64)
        self._text = np.array(text, dtype=np.int64)
        self._end = [*ends, *text[-1:], 0][0]
        self.drafts: dict[int, int] = {}
        """Position in the sequence -> drafted token."""
        self.certainties: dict[int, float] = {}
        """Position -> q of that token."""
        self.choices: dict[int, Top] = {}
        """Position -> the drafter's likeliest tokens."""
        for decision in tested:
            if not 0 <= decision.position - len(prompt) < len(text):
                continue
            # of siblings in a tree: the accepted one, else the first rejected one
            if decision.outcome == "accepted" or decision.position not in self.drafts:
                self.drafts[decision.position] = decision.token
                self.choices[decision.position] = decision.top_q
                if decision.q is not None and 0 < decision.q <= 1:
                    self.certainties[decision.position] = decision.q
        wrong = {d.step: d.position for d in tested if d.outcome == "rejected"}
        self.strayed = {
            (wrong[d.step], d.position): d.q
            for d in discarded
            if d.step in wrong and d.position > wrong[d.step] and d.q is not None and 0 < d.q <= 1
        }
        """(position of a wrong draft, later position) -> q of the draft there."""

    def is_right(self, position: int) -> bool:
        return int(self._text[position - len(self._prompt)]) == self.drafts[position]

    def left(self, path: np.ndarray) -> int:
        output = path[len(self._prompt) :]
        known = np.append(self._text, np.full(max(0, len(output) - len(self._text)), self._end))
        return len(self._prompt) + int((output != known[: len(output)]).argmax())

    def has_prompt(self, path: np.ndarray) -> bool:
        return np.array_equal(path[: len(self._prompt)], self._prompt)

    def after(self, path: np.ndarray) -> int | None:
        """Return the target's token after the path; None if the path left the text."""
        output = path[len(self._prompt) :]
        text, after = output[: len(self._text)], output[len(self._text) :]
        if not np.array_equal(text, self._text[: len(text)]) or (after != self._end).any():
            return None
        return int(self._text[len(output)]) if len(output) < len(self._text) else self._end
