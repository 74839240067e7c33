"""Every round equals that of a slow, obviously correct reference: no cache, full recomputation, plain Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch

from engine.draws import Draws, Key
from engine.methods import find
from engine.types import Sampling
from tests.engine.toy import PROMPT, Logits, Table, ToyRun, warp_plainly

Text = list[int]


ONE = Sampling(1.0)


class Round(NamedTuple):
    accepted: int
    emitted: tuple[int, ...]


class Reference:
    """p, q and the two decisions of a round, computed from the whole text each time."""

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
        """The drafter's probability of a token that it drafted after x."""
        return float(warp_plainly(self.q(x), self._sampling if self.sampled else ONE)[drafted])

    def own(self, x: Text) -> int:
        """The target's own token after x."""
        if self._sampling.greedy:
            return int(np.argmax(self.p(x)))
        return self._pick(warp_plainly(self.p(x), self._sampling), len(x), "target")

    def check(self, x: Text, drafted: int) -> int:
        """The token that comes after x once `drafted` was drafted there: `drafted` when it is accepted."""
        if not self.sampled:
            return self.own(x)
        p, q = warp_plainly(self.p(x), self._sampling), warp_plainly(self.q(x), self._sampling)
        if self._draws.value(Key(len(x), "accept")) < min(1, p[drafted] / q[drafted]):
            return drafted
        return self._pick([max(0, a - b) for a, b in zip(p, q, strict=True)], len(x), "residual")

    def children(self, x: Text, paths: list[tuple[Text, float]], width: int) -> list[tuple[Text, float]]:
        """The next level of a tree after x: each path with what its level above was ordered by."""
        rows = [warp_plainly(self.q(x + path), self._sampling if self.sampled else ONE) for path, _ in paths]
        if not self.sampled:
            found = [(-p * q, i, t) for i, (_, p) in enumerate(paths) for t, q in enumerate(rows[i]) if q]
            return [([*paths[i][0], t], -minus) for minus, i, t in sorted(found)[:width]]
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
        """The token that comes after x once these siblings were drafted there, in this order."""
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
    """SpecInfer: draft a tree, walk down it while the target's token is one of the children."""
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
    rounds = []
    while len(x) < end:
        drafts: Text = []
        for _ in range(gamma):
            drafts.append(world.draft(x + drafts))
        out: Text = []
        while len(out) < gamma and out == drafts[: len(out)]:
            out.append(world.check(x + out, drafts[len(out)]))
        accepted = sum(a == b for a, b in zip(out, drafts, strict=False))
        if accepted == gamma:
            out.append(world.own(x + out))
        x = x + out
        rounds.append(Round(accepted, tuple(out)))
    return rounds


def pearl(world: Reference, x: Text, gamma: int, end: int) -> list[Round]:
    """PEARL, algorithm 2: x is the verified text, chunk[0] is verified too in post-verify mode."""
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
    """LLMA: look for the last tokens everywhere, the longest match first, then the latest; copy what follows."""
    rounds = []
    while len(x) < end:
        drafts = list(copied(x, document, match, copy))[: end - len(x)]
        out: Text = []
        while len(out) < len(drafts) and out == drafts[: len(out)]:
            out.append(world.own(x + out))
        accepted = sum(a == b for a, b in zip(out, drafts, strict=False))
        if accepted == len(drafts):
            out.append(world.own(x + out))
        x = x + out
        rounds.append(Round(accepted, tuple(out)))
    return rounds


def copied(x: Text, document: Text, match: int, copy: int) -> Text:
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
    for n in range(ngram, 0, -1):
        places = [start for start in range(n, len(x)) if x[start - n : start] == x[len(x) - n :]]
        if places:
            start, ids = places[0 if which == "first" else -1], list[int]()
            for i in range(copy):
                ids.append((x + ids)[start + i])
            return ids
    return []


def walk(world: Reference, x: Text, guesses: list[Text]) -> Round:
    """The target's own tokens, for as long as they are the beginning of some guess, and one more."""
    out: Text = []
    while not out or any(guess[: len(out)] == out for guess in guesses):
        out.append(world.own(x + out))
    return Round(len(out) - 1, tuple(out))


def prompt_lookup(world: Reference, x: Text, ngram: int, copy: int, which: str, end: int) -> list[Round]:
    """Prompt lookup: the last tokens, the longest n-gram first, where they stood before."""
    rounds = []
    while len(x) < end:
        drafts = looked_up(x, ngram, copy, which)[: end - len(x)]
        rounds.append(walk(world, x, [drafts] if drafts else []))
        x = [*x, *rounds[-1].emitted]
    return rounds


def assisted(world: Reference, x: Text, start: int, confidence: float, end: int) -> list[Round]:
    """Assisted generation: two tokens more after a draft that was accepted whole, else one less."""
    rounds, length = [], start
    while len(x) < end:
        drafts, sure = list[int](), True
        while sure and len(drafts) < length:
            drafts.append(world.draft(x + drafts))
            sure = world.probability(x + drafts[:-1], drafts[-1]) >= confidence
        out: Text = []
        while len(out) < len(drafts) and out == drafts[: len(out)]:
            out.append(world.check(x + out, drafts[len(out)]))
        accepted = sum(a == b for a, b in zip(out, drafts, strict=False))
        length = length + 2 if accepted == len(drafts) else max(1, length - 1)
        if accepted == len(drafts):
            out.append(world.own(x + out))
        x = x + out
        rounds.append(Round(accepted, tuple(out)))
    return rounds


class Ahead:
    """Fu et al. 2024: the window's cells computed one by one, and all n-grams in one list, the latest met last."""

    def __init__(self, says: Logits, x: Text, level: int, width: int, most: int) -> None:
        self._says, self._level, self._most = says, level, most
        self.met: list[Text] = []
        self.rows = [[x[i * len(x) // width] for i in range(width)]]

    def after(self, last: int, most: int, room: int) -> list[Text]:
        """What came after a token in the n-grams that begin with it, the latest first."""
        found = [g for g in reversed(self.met) if g[0] == last]
        return [g[1 : 1 + room] for g in found[:most]]

    def meet(self, gram: Text) -> None:
        """Put an n-gram at the end of the list; of too many that begin alike the first one leaves."""
        self.met = [*(g for g in self.met if g != gram), gram]
        alike = [g for g in self.met if g[0] == gram[0]]
        if len(alike) > self._most:
            self.met.remove(alike[0])

    def step(self, x: Text, room: int) -> None:
        """One forward after x, in which the output can still take `room` tokens."""
        deepest = len(self.rows) - 1
        self.rows = [[t for j, t in enumerate(row) if j + deepest <= room] for row in self.rows]
        if not self.rows[0]:
            return
        self.rows[0][0] = x[-1]
        said = []
        for j in range(len(self.rows[0])):
            path = self.rows[0][1 : j + 1] + [row[j] for row in self.rows[1:]]
            said.append(int(np.argmax(self._says(x + path))))
        self.rows.append(said)
        if len(self.rows) == self._level:
            for j in range(len(said)):
                self.meet([row[j] for row in self.rows])
            self.rows = self.rows[1:]


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
    """Zhao et al. 2024: lookahead of the drafter, phrases behind its draft, phrases from what was verified."""
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
            said = [emitted[-1]]
            said += [int(np.argmax(world.p(x + chain[: i + 1]))) for i in range(accepted, len(chain))]
            for i in range(len(said) - level + 1):
                ahead.meet(said[i : i + level])
        whole = [tail for tail in tails if len(tail) == level - 1]
        ahead.met = [g for g in ahead.met if g[0] != chain[-1] or g[1:] not in whole]
        for tail in reversed(whole):
            said = [int(np.argmax(world.p(x + chain + tail[:i]))) for i in range(level - 1)]
            ahead.meet([chain[-1], *said])
        x = [*x, *emitted]
    return rounds


def rounds_of(key: str, config: dict, run: ToyRun) -> list[Round]:
    """The rounds of the real method."""
    method = find(key)
    asyncio.run(finished(method.decode(run, method.configure(config))))
    return [Round(len(v.accepted), v.emitted) for v in run.verdicts]


async def finished(decoding) -> None:
    await decoding


SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(0.6, top_k=4), Sampling(1.4, top_p=0.85)]
CASES: dict[str, tuple[str, dict, Callable, bool]] = {
    "speculative": ("speculative", {}, speculative, True),
    "speculative, greedy drafts": ("speculative", {"drafts": "greedy"}, speculative, False),
    "pearl": ("pearl", {}, pearl, True),
    "pearl, both off": ("pearl", {"pre_verify": False, "post_verify": False}, speculative, True),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("case", CASES)
def test_every_round_is_that_of_the_reference(case, gamma, sampling):
    key, config, reference, sampled = CASES[case]
    lengths = set()
    for seed in range(2):
        p = Table(seed, 6, sharpness=2.0)
        noise = Table(seed + 50, 6)

        def q(context, p=p, noise=noise) -> torch.Tensor:
            return p(context) + 0.7 * noise(context)

        run = ToyRun(p, q, Draws(seed, 0), sampling, 40)
        found = rounds_of(key, {"gamma": gamma, **config}, run)
        world = Reference(p, q, sampling, Draws(seed, 0), sampled)
        assert found == reference(world, list(PROMPT), gamma, len(PROMPT) + 40)
        lengths |= {r.accepted for r in found}
    assert len(lengths) > 1, "rejections and acceptances both occur"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafts", ["sampled", "greedy"])
@pytest.mark.parametrize(("width", "depth"), [(1, 4), (2, 3), (4, 5), (8, 2)])
def test_every_round_of_a_tree_is_that_of_the_reference(width, depth, drafts, sampling):
    lengths, branches = set(), 0
    for seed in range(3):
        p, noise = Table(seed, 6, sharpness=2.0), Table(seed + 50, 6, banned=1)

        def q(context, p=p, noise=noise) -> torch.Tensor:
            return p(context) + noise(context)

        run = ToyRun(p, q, Draws(seed, 0), sampling, 40)
        found = rounds_of("tree", {"width": width, "depth": depth, "drafts": drafts}, run)
        world = Reference(p, q, sampling, Draws(seed, 0), drafts == "sampled")
        assert found == tree(world, list(PROMPT), width, depth, len(PROMPT) + 40)
        assert all(len(v.draft) <= width * depth for v in run.verdicts)
        lengths |= {r.accepted for r in found}
        branches += sum(v.nodes != tuple(range(len(v.nodes))) for v in run.verdicts)
    assert len(lengths) > 1, "rejections and acceptances both occur"
    assert branches > 0 or width == 1, "paths beside the first one are accepted"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("match", "copy", "document"), [(1, 7, ""), (2, 7, "01234501203"), (1, 1, ""), (3, 4, "0123")]
)
def test_every_round_of_llma_is_that_of_the_reference(match, copy, document, sampling):
    lengths = set()
    for seed in range(4):
        p = Table(seed, 6, sharpness=3.0)
        run = ToyRun(p, p, Draws(seed, 0), sampling, 40)
        found = rounds_of("llma", {"match": match, "copy": copy, "reference": document}, run)
        world = Reference(p, p, sampling, Draws(seed, 0), sampled=False)
        expected = llma(world, list(PROMPT), match, len(PROMPT) + 40, copy, [int(c) for c in document])
        assert found == expected
        assert all(len(v.draft) <= copy for v in run.verdicts)
        lengths |= {(len(v.draft) > 0, len(v.accepted)) for v in run.verdicts}
    assert {drafted for drafted, _ in lengths} == {True, False}, "some rounds copy, some are plain"
    assert len(lengths) > 2, "rejections and acceptances both occur"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("which", ["first", "latest"])
@pytest.mark.parametrize(("ngram", "copy"), [(1, 4), (3, 10), (5, 1)])
def test_every_round_of_prompt_lookup_is_that_of_the_reference(ngram, copy, which, sampling):
    lengths = set()
    for seed in range(4):
        p = Table(seed, 6, sharpness=3.0)
        run = ToyRun(p, p, Draws(seed, 0), sampling, 40)
        found = rounds_of("prompt_lookup", {"ngram": ngram, "copy": copy, "which": which}, run)
        world = Reference(p, p, sampling, Draws(seed, 0), sampled=False)
        assert found == prompt_lookup(world, list(PROMPT), ngram, copy, which, len(PROMPT) + 40)
        lengths |= {(len(v.draft) > 0, len(v.accepted)) for v in run.verdicts}
    assert {drafted for drafted, _ in lengths} == {True, False}, "some rounds copy, some are plain"
    assert len(lengths) > 2, "rejections and acceptances both occur"


def noisy(seed: int, noise: float) -> tuple[Table, Logits]:
    """A target, and a drafter that is often right."""
    p, other = Table(seed, 6, sharpness=2.0), Table(seed + 50, 6)
    return p, lambda context: p(context) + noise * other(context)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafts", ["sampled", "greedy"])
@pytest.mark.parametrize(("start", "confidence"), [(1, 0.0), (5, 0.4), (3, 0.7)])
def test_every_round_of_assisted_generation_is_that_of_the_reference(start, confidence, drafts, sampling):
    lengths = set()
    for seed in range(3):
        p, q = noisy(seed, 0.7)
        run = ToyRun(p, q, Draws(seed, 0), sampling, 60)
        config = {"start": start, "confidence": confidence, "drafts": drafts}
        found = rounds_of("assisted", config, run)
        world = Reference(p, q, sampling, Draws(seed, 0), drafts == "sampled")
        assert found == assisted(world, list(PROMPT), start, confidence, len(PROMPT) + 60)
        lengths |= {len(v.draft) for v in run.verdicts}
    assert len(lengths) > 1, "the draft length changes"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("level", "window", "guesses"), [(2, 5, 3), (3, 4, 2), (5, 7, 7), (4, 1, 1)])
def test_every_round_of_lookahead_is_that_of_the_reference(level, window, guesses, sampling):
    lengths = set()
    for seed in range(4):
        p = Table(seed, 6, sharpness=3.0)
        run = ToyRun(p, p, Draws(seed, 0), sampling, 60)
        found = rounds_of("lookahead", {"level": level, "window": window, "guesses": guesses}, run)
        world = Reference(p, p, sampling, Draws(seed, 0), sampled=False)
        assert found == lookahead(world, list(PROMPT), level, window, guesses, len(PROMPT) + 60)
        lengths |= {r.accepted for r in found}
    assert {0, level - 1} <= lengths, "nothing, and a whole n-gram to its last token, is accepted"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("gamma", "phrases", "level", "window", "guesses"),
    [(4, 3, 3, 5, 4), (1, 2, 2, 3, 2), (6, 0, 5, 7, 7), (3, 4, 4, 2, 6)],
)
def test_every_round_of_ouroboros_is_that_of_the_reference(gamma, phrases, level, window, guesses, sampling):
    lengths, appended = set(), 0
    for seed in range(4):
        p, q = noisy(seed, 0.5)
        run = ToyRun(p, q, Draws(seed, 0), sampling, 60)
        config = {"gamma": gamma, "phrases": phrases, "level": level, "window": window, "guesses": guesses}
        found = rounds_of("ouroboros", config, run)
        world = Reference(p, q, sampling, Draws(seed, 0), sampled=False)
        expected = ouroboros(world, list(PROMPT), gamma, phrases, level, window, guesses, len(PROMPT) + 60)
        assert found == expected
        lengths |= {r.accepted for r in found}
        appended += sum(len(v.draft.grams) for v in run.verdicts)
    assert len(lengths) > 2, "rejections and acceptances both occur"
    assert (appended > 0) == (phrases > 0)


SCRIPTS = {
    "PEARL, table 9": (5, {0, 3, 8, 17}, [1, 1, 2, 1, 4, 1, 5, 3]),
    "PEARL, figure 3": (3, {0, 6}, [1, 1, 3, 2]),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_pearl_emits_what_the_paper_shows(name):
    gamma, wrong, emitted = SCRIPTS[name]

    def says(text: Callable[[int], int]) -> Logits:
        return lambda context: torch.eye(7, dtype=torch.float64)[text(len(context) - len(PROMPT))]

    p, q = says(lambda i: i % 6), says(lambda i: 6 if i in wrong else i % 6)
    run = ToyRun(p, q, Draws(0, 0), Sampling(), sum(emitted))
    assert [len(r.emitted) for r in rounds_of("pearl", {"gamma": gamma}, run)] == emitted
    assert run.text == tuple(i % 6 for i in range(sum(emitted)))
