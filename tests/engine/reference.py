"""Slow reference algorithms in plain Python, without caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specscope.engine.sampling.draws import Draws, Key
from specscope.engine.types import Sampling
from tests.engine.toy import Logits, warp_plainly

Text = list[int]
ONE = Sampling(1.0)


class Round(NamedTuple):
    accepted: int
    emitted: tuple[int, ...]


class Reference:
    """p, q and the decisions of a round, computed from the whole text each time."""

    def __init__(self, p: Logits, q: Logits, sampling: Sampling, draws: Draws, sampled: bool) -> None:
        self.p, self.q, self._sampling, self._draws = p, q, sampling, draws
        self.sampled = sampled and not sampling.greedy

    def _pick(self, weights: Sequence[float], position: int, purpose: str, node: int = 0) -> int:
        u, mass, total = self._draws.value(Key(position, purpose, node)), 0.0, float(sum(weights))
        for token, weight in enumerate(weights):
            mass += weight / total
            if u < mass:
                return token
        raise AssertionError("the weights do not sum to 1")

    def draft(self, x: Text) -> int:
        if self.sampled:
            return self._pick(warp_plainly(self.q(x), self._sampling), len(x), "draft")
        return int(np.argmax(self.q(x)))

    def probability(self, x: Text, drafted: int) -> float:
        """Return the drafter's probability of a token that it drafted after x."""
        return float(warp_plainly(self.q(x), self._sampling if self.sampled else ONE)[drafted])

    def own(self, x: Text) -> int:
        """Return the target's own token after x."""
        if self._sampling.greedy:
            return int(np.argmax(self.p(x)))
        return self._pick(warp_plainly(self.p(x), self._sampling), len(x), "target")

    def check(self, x: Text, drafted: int) -> int:
        """Return the token after x if `drafted` was drafted there: `drafted` if it is accepted."""
        if not self.sampled:
            return self.own(x)
        p, q = warp_plainly(self.p(x), self._sampling), warp_plainly(self.q(x), self._sampling)
        if self._draws.value(Key(len(x), "accept")) < min(1, p[drafted] / q[drafted]):
            return drafted
        return self._pick([max(0, a - b) for a, b in zip(p, q, strict=True)], len(x), "residual")

    def verify(self, x: Text, drafts: Text) -> Round:
        """Return the round of a chain drafted after x."""
        out: Text = []
        while len(out) < len(drafts) and out == drafts[: len(out)]:
            out.append(self.check(x + out, drafts[len(out)]))
        accepted = sum(a == b for a, b in zip(out, drafts, strict=False))
        if accepted == len(drafts):
            out.append(self.own(x + out))
        return Round(accepted, tuple(out))

    def rounds(self, x: Text, end: int, draft: Callable[[Text], Text]) -> list[Round]:
        """Draft chains and verify them until the text is long enough."""
        rounds = list[Round]()
        while len(x) < end:
            rounds.append(self.verify(x, draft(x)))
            x = [*x, *rounds[-1].emitted]
        return rounds

    def children(self, x: Text, paths: list[tuple[Text, float]], width: int) -> list[tuple[Text, float]]:
        """Return the next level of a tree after x: each path, and its value in the order."""
        rows = [warp_plainly(self.q(x + path), self._sampling if self.sampled else ONE) for path, _ in paths]
        if not self.sampled:
            candidates = [
                (-p * q, i, t) for i, (_, p) in enumerate(paths) for t, q in enumerate(rows[i]) if q
            ]
            return [([*paths[i][0], t], -minus) for minus, i, t in sorted(candidates)[:width]]
        places = [(n + i, at) for at, (_, n) in enumerate(paths) for i in range(np.count_nonzero(rows[at]))]
        level: list[tuple[Text, float]] = []
        for at, (path, rejections) in enumerate(paths):
            left = list(rows[at])
            for i in range(sum(at == other for _, other in sorted(places)[:width])):
                token = self._pick(left, len(x) + len(path), "draft", len(level))
                left[token] = 0
                level.append(([*path, token], rejections + i))
        return level

    def check_all(self, x: Text, drafted: Text) -> int:
        """Return the token after x if these siblings were drafted there, in this order."""
        if not self.sampled:
            return self.own(x)
        p, q = (list(warp_plainly(f(x), self._sampling)) for f in (self.p, self.q))
        for i, token in enumerate(drafted):
            if self._draws.value(Key(len(x), "accept", i)) < min(1, p[token] / q[token]):
                return token
            p = [max(0, a - b) for a, b in zip(p, q, strict=True)]
            p = [a / sum(p) for a in p]
            q[token] = 0
            q = [b / sum(q) for b in q] if any(q) else q
        return self._pick(p, len(x), "residual")


def tree(world: Reference, x: Text, width: int, depth: int, end: int) -> list[Round]:
    """SpecInfer: draft a tree; descend while the target's token is one of the children."""
    rounds = []
    while len(x) < end:
        level, paths = [(list[int](), 0.0 if world.sampled else 1.0)], list[Text]()
        for _ in range(min(depth, end - len(x))):
            level = world.children(x, level, width)
            paths += [path for path, _ in level]
        out: Text = []
        while children := [path[-1] for path in paths if path[:-1] == out]:
            out.append(world.check_all(x + out, children))
            if out[-1] not in children:
                break
        accepted = len(out) if out in paths or not out else len(out) - 1
        if accepted == len(out):
            out.append(world.own(x + out))
        x = x + out
        rounds.append(Round(accepted, tuple(out)))
    return rounds


def speculative(world: Reference, x: Text, gamma: int, end: int) -> list[Round]:
    """Leviathan et al. 2023, algorithm 1."""

    def draft(x: Text) -> Text:
        drafts: Text = []
        for _ in range(gamma):
            drafts.append(world.draft(x + drafts))
        return drafts

    return world.rounds(x, end, draft)


def pearl(world: Reference, x: Text, gamma: int, end: int) -> list[Round]:
    """PEARL, algorithm 2: x is the verified text; in post-verify mode chunk[0] is verified, too."""
    rounds = []
    mode, chunk = "pre-verify", list[int]()
    while len(x) < end:
        if mode == "pre-verify":
            chunk = []
            for _ in range(gamma):
                chunk.append(world.draft(x + chunk))
            y = world.check(x, chunk[0])
            accepted = int(y == chunk[0])
            x = [*x, y]
            rounds.append(Round(accepted, (y,)))
            mode = "post-verify" if accepted and gamma > 1 else "pre-verify"
            continue
        ahead: Text = []
        for _ in range(gamma):
            ahead.append(world.draft(x + chunk[1:] + ahead))
        tests = [*chunk[1:], ahead[0]]
        out: Text = []
        while len(out) < len(tests) and out == tests[: len(out)]:
            out.append(world.check(x + out, tests[len(out)]))
        accepted = (
            sum(a == b for a, b in zip(out, tests, strict=True)) if len(out) == len(tests) else len(out) - 1
        )
        x = x + out
        rounds.append(Round(accepted, tuple(out)))
        mode, chunk = ("post-verify", ahead) if accepted == len(tests) else ("pre-verify", [])
    return rounds


def llma(world: Reference, x: Text, match: int, end: int, copy: int, document: Text) -> list[Round]:
    """LLMA: copy the tokens after the longest, then the latest earlier match of the last tokens."""
    return world.rounds(x, end, lambda x: list(copied(x, document, match, copy))[: end - len(x)])


def copied(x: Text, document: Text, match: int, copy: int) -> Text:
    """Return the tokens that LLMA copies."""
    for n in range(match + 3, match - 1, -1):
        for text in (x, document):
            for start in range(len(text) - 1, n - 1, -1):
                if len(x) >= n and text[start - n : start] == x[len(x) - n :]:
                    ids: Text = []
                    for i in range(copy):
                        ids += (x + ids if text is x else text)[start + i : start + i + 1]
                    return ids
    return []


def looked_up(x: Text, ngram: int, copy: int, which: str) -> Text:
    """Return the tokens that prompt lookup copies."""
    for n in range(ngram, 0, -1):
        places = [start for start in range(n, len(x)) if x[start - n : start] == x[len(x) - n :]]
        if places:
            start, ids = places[0 if which == "first" else -1], list[int]()
            for i in range(copy):
                ids.append((x + ids)[start + i])
            return ids
    return []


def walk(world: Reference, x: Text, guesses: list[Text]) -> Round:
    """Return the target's own tokens while they begin some guess, and one more."""
    out: Text = []
    while not out or any(guess[: len(out)] == out for guess in guesses):
        out.append(world.own(x + out))
    return Round(len(out) - 1, tuple(out))


def prompt_lookup(world: Reference, x: Text, ngram: int, copy: int, which: str, end: int) -> list[Round]:
    """Prompt lookup: copy the tokens after an earlier match, the longest n-gram first."""
    return world.rounds(x, end, lambda x: looked_up(x, ngram, copy, which)[: end - len(x)])


def assisted(world: Reference, x: Text, start: int, confidence: float, end: int) -> list[Round]:
    """Assisted generation: two tokens more after a fully accepted draft, otherwise one less."""
    rounds, length = list[Round](), start
    while len(x) < end:
        drafts, sure = list[int](), True
        while sure and len(drafts) < length:
            drafts.append(world.draft(x + drafts))
            sure = world.probability(x + drafts[:-1], drafts[-1]) >= confidence
        rounds.append(world.verify(x, drafts))
        length = length + 2 if rounds[-1].accepted == len(drafts) else max(1, length - 1)
        x = [*x, *rounds[-1].emitted]
    return rounds


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
