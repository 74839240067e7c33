"""Every round of lookahead and Ouroboros equals the round of a slow algorithm without caches.

The target draws every token of both, so their text proves nothing about what they draft.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import numpy as np
import pytest

from specscope.engine.sampling.draws import Draws, Key
from specscope.engine.types import Sampling
from tests.engine.toy import PROMPT, Logits, Table, ToyRun, warp_plainly
from tests.engine.toy_methods import method

Text = list[int]
SEEDS = (0, 1)
"""Seeds of the tables and of the draws."""
END = len(PROMPT) + 45
SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(0.6, top_k=4), Sampling(1.4, top_p=0.85)]


class Round(NamedTuple):
    accepted: int
    emitted: tuple[int, ...]


class Reference:
    """p, q and the target's draws, computed from the whole text each time."""

    def __init__(self, p: Logits, q: Logits, sampling: Sampling, draws: Draws) -> None:
        self.p, self.q, self._sampling, self._draws = p, q, sampling, draws

    def own(self, x: Text) -> int:
        if self._sampling.greedy:
            return int(np.argmax(self.p(x)))
        mass = np.cumsum(warp_plainly(self.p(x), self._sampling))
        return int((mass > self._draws.value(Key(len(x), "target")) * mass[-1]).argmax())


def walk(world: Reference, x: Text, guesses: list[Text]) -> Round:
    """Return the target's own tokens while they begin some guess, and one more."""
    out: Text = []
    while not out or any(guess[: len(out)] == out for guess in guesses):
        out.append(world.own(x + out))
    return Round(len(out) - 1, tuple(out))


class Ahead:
    """Fu et al. 2024: window cells computed one by one; n-grams in one list, most recent last."""

    def __init__(self, model: Logits, x: Text, level: int, width: int, most: int) -> None:
        self._model, self._level, self._most = model, level, most
        self.met: list[Text] = []
        first = width + level - 2
        self.rows = [[x[i * len(x) // first] for i in range(first)]]

    def after(self, last: int, most: int, room: int) -> list[Text]:
        """Return the tails of the n-grams that begin with a token, most recent first."""
        grams = [g for g in reversed(self.met) if g[0] == last]
        return [g[1 : 1 + room] for g in grams[:most]]

    def meet(self, gram: Text) -> None:
        """Append an n-gram; of too many with the same first token, drop the oldest."""
        self.met = [*(g for g in self.met if g != gram), gram]
        alike = [g for g in self.met if g[0] == gram[0]]
        if len(alike) > self._most:
            self.met.remove(alike[0])

    def step(self, x: Text, room: int) -> None:
        """Do one forward after x; the output can still take `room` tokens."""
        deepest = len(self.rows) - 1
        self.rows = [[t for j, t in enumerate(row) if j + deepest <= room] for row in self.rows]
        if not self.rows[0]:
            return
        self.rows[0][0] = x[-1]
        best = []
        for j in range(len(self.rows[0])):
            path = self.rows[0][1 : j + 1] + [row[j] for row in self.rows[1:]]
            best.append(int(np.argmax(self._model(x + path))))
        self.rows.append(best)
        if len(self.rows) == self._level:
            for j in range(len(best)):
                self.meet([row[j] for row in self.rows])
            self.rows = self.rows[1:]
        else:
            self.rows = [row[1:] for row in self.rows]


def lookahead(world: Reference, x: Text, level: int, width: int, most: int, end: int) -> list[Round]:
    """Fu et al. 2024, algorithm 2."""
    rounds, ahead = [], Ahead(world.p, x, level, width, most)
    while len(x) < end:
        rounds.append(walk(world, x, ahead.after(x[-1], most, end - len(x))))
        ahead.step(x, end - len(x))
        x = [*x, *rounds[-1].emitted]
    return rounds


def ouroboros(
    world: Reference, x: Text, gamma: int, phrases: int, level: int, width: int, most: int, end: int
) -> list[Round]:
    """Zhao et al. 2024: the drafter looks ahead; phrases follow its draft and are corrected."""
    rounds, ahead = [], Ahead(world.q, x, level, width, most)
    while len(x) < end:
        chain: Text = []
        while len(chain) < min(gamma, end - len(x)):
            room, y = end - len(x) - len(chain), x + chain
            guesses = [g for g in ahead.after(y[-1], most, room - 1) if g]
            more: Text = []
            while not more or any(g[: len(more)] == more for g in guesses):
                more.append(int(np.argmax(world.q(y + more))))
            ahead.step(y, room)
            chain += more
        tails = ahead.after(chain[-1], phrases, end - len(x) - len(chain))
        rounds.append(walk(world, x, [chain, *(chain + tail for tail in tails)]))
        accepted, emitted = rounds[-1]
        if accepted < len(chain):
            best = [emitted[-1]]
            best += [int(np.argmax(world.p(x + chain[: i + 1]))) for i in range(accepted, len(chain))]
            for i in range(len(best) - level + 1):
                ahead.meet(best[i : i + level])
            lost = chain[accepted:]
            for i in range(len(lost)):
                after = [chain[: accepted + i + j + 1] for j in range(level - 1)]
                own = [int(np.argmax(world.p(x + text))) for text in after]
                if i + level - 1 <= len(lost) and own[:-1] == lost[i + 1 : i + level - 1]:
                    ahead.meet([lost[i], *own])
        whole = [tail for tail in tails if len(tail) == level - 1]
        ahead.met = [g for g in ahead.met if g[0] != chain[-1] or g[1:] not in whole]
        for tail in reversed(whole):
            best = [int(np.argmax(world.p(x + chain + tail[:i]))) for i in range(level - 1)]
            ahead.meet([chain[-1], *best])
        x = [*x, *emitted]
    return rounds


def noisy(seed: int) -> tuple[Logits, Logits]:
    """A target, and a drafter that is often right."""
    p, other = Table(seed, 6, sharpness=2.0), Table(seed + 50, 6)
    return p, lambda context: p(context) + 0.5 * other(context)


def compared(key: str, reference, settings: dict[str, int], models, seed: int, sampling: Sampling) -> ToyRun:
    """Run a method; check that its rounds are those of a reference. Return the run."""
    run = ToyRun(*models, Draws(seed, 0), sampling, END - len(PROMPT))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(method(key, **settings)(run))
    loop.close()
    world = Reference(*models, sampling, Draws(seed, 0))
    rounds = [Round(len(v.accepted), v.emitted) for v in run.verdicts]
    assert rounds == reference(world, list(PROMPT), *settings.values(), END)
    return run


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize(("level", "window", "guesses"), [(2, 5, 3), (3, 4, 2), (5, 7, 7), (4, 1, 1)])
def test_every_round_of_lookahead_equals_the_reference(level, window, guesses, sampling):
    lengths, settings = set[int](), {"level": level, "window": window, "guesses": guesses}
    for seed in SEEDS:
        p = Table(seed, 6, sharpness=3.0)
        run = compared("lookahead", lookahead, settings, (p, p), seed, sampling)
        lengths |= {len(v.accepted) for v in run.verdicts}
    assert {0, level - 1} <= lengths, "nothing, and a whole n-gram to its last token, is accepted"


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize(
    ("gamma", "phrases", "level", "window", "guesses"),
    [(4, 3, 3, 5, 4), (1, 2, 2, 3, 2), (6, 0, 5, 7, 7), (3, 4, 4, 2, 6)],
)
def test_every_round_of_ouroboros_equals_the_reference(gamma, phrases, level, window, guesses, sampling):
    lengths, appended = set[int](), 0
    settings = {"gamma": gamma, "phrases": phrases, "level": level, "window": window, "guesses": guesses}
    for seed in SEEDS:
        run = compared("ouroboros", ouroboros, settings, noisy(seed), seed, sampling)
        lengths |= {len(v.accepted) for v in run.verdicts}
        appended += sum(len(v.draft.grams) for v in run.verdicts)
    assert len(lengths) > 2, "rejections and acceptances both occur"
    assert (appended > 0) == (phrases > 0)
