"""Every round of a method equals the round of a slow reference algorithm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import torch

from engine.methods import find
from engine.sampling.draws import Draws
from engine.types import Sampling
from tests.engine.reference import (
    Reference,
    Round,
    assisted,
    llma,
    lookahead,
    ouroboros,
    pearl,
    prompt_lookup,
    speculative,
    tree,
)
from tests.engine.toy import PROMPT, Logits, Table, ToyRun


def rounds_of(key: str, config: dict, run: ToyRun) -> list[Round]:
    """Return the rounds of the real method."""
    method = find(key)
    asyncio.run(finished(method.decode(run, method.configure(config))))
    return [Round(len(v.accepted), v.emitted) for v in run.verdicts]


async def finished(decoding) -> None:
    await decoding


SEEDS = (0, 1)
"""Seeds of the tables and of the draws."""
SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(0.6, top_k=4), Sampling(1.4, top_p=0.85)]
CASES: dict[str, tuple[str, dict, Callable, bool]] = {
    "speculative": ("speculative", {}, speculative, True),
    "speculative, greedy drafts": ("speculative", {"drafts": "greedy"}, speculative, False),
    "pearl": ("pearl", {}, pearl, True),
    "pearl, both off": ("pearl", {"pre_verify": False, "post_verify": False}, speculative, True),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("case", CASES)
def test_every_round_equals_the_reference(case, gamma, sampling):
    key, config, reference, sampled = CASES[case]
    lengths = set()
    for seed in SEEDS:
        p = Table(seed, 6, sharpness=2.0)
        noise = Table(seed + 50, 6)

        def q(context, p=p, noise=noise) -> torch.Tensor:
            return p(context) + 0.7 * noise(context)

        run = ToyRun(p, q, Draws(seed, 0), sampling, 40)
        rounds = rounds_of(key, {"gamma": gamma, **config}, run)
        world = Reference(p, q, sampling, Draws(seed, 0), sampled)
        assert rounds == reference(world, list(PROMPT), gamma, len(PROMPT) + 40)
        lengths |= {r.accepted for r in rounds}
    assert len(lengths) > 1, "rejections and acceptances both occur"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafts", ["sampled", "greedy"])
@pytest.mark.parametrize(("width", "depth"), [(1, 4), (2, 3), (4, 5), (8, 2)])
def test_every_round_of_a_tree_equals_the_reference(width, depth, drafts, sampling):
    lengths, branches = set(), 0
    for seed in SEEDS:
        p, noise = Table(seed, 6, sharpness=2.0), Table(seed + 50, 6, banned=1)

        def q(context, p=p, noise=noise) -> torch.Tensor:
            return p(context) + noise(context)

        run = ToyRun(p, q, Draws(seed, 0), sampling, 40)
        rounds = rounds_of("tree", {"width": width, "depth": depth, "drafts": drafts}, run)
        world = Reference(p, q, sampling, Draws(seed, 0), drafts == "sampled")
        assert rounds == tree(world, list(PROMPT), width, depth, len(PROMPT) + 40)
        assert all(len(v.draft) <= width * depth for v in run.verdicts)
        lengths |= {r.accepted for r in rounds}
        branches += sum(v.nodes != tuple(range(len(v.nodes))) for v in run.verdicts)
    assert len(lengths) > 1, "rejections and acceptances both occur"
    assert branches > 0 or width == 1, "other paths than the first are accepted"


COPIES = {
    "llma": (
        [(1, 7, ""), (2, 7, "01234501203"), (1, 1, ""), (3, 4, "0123")],
        lambda match, copy, document: {"match": match, "copy": copy, "reference": document},
        lambda world, end, match, copy, document: llma(
            world, list(PROMPT), match, end, copy, [int(c) for c in document]
        ),
    ),
    "prompt_lookup": (
        [(n, copy, which) for n, copy in ((1, 4), (3, 10), (5, 1)) for which in ("first", "latest")],
        lambda ngram, copy, which: {"ngram": ngram, "copy": copy, "which": which},
        lambda world, end, ngram, copy, which: prompt_lookup(world, list(PROMPT), ngram, copy, which, end),
    ),
}
"""Settings of each method that copies, the config they make, and the reference."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("key", "settings"), [(key, s) for key in COPIES for s in COPIES[key][0]], ids=str)
def test_every_round_of_copies_equals_the_reference(key, settings, sampling):
    lengths, (_, config, reference) = set(), COPIES[key]
    for seed in SEEDS:
        p = Table(seed, 6, sharpness=3.0)
        run = ToyRun(p, p, Draws(seed, 0), sampling, 40)
        rounds = rounds_of(key, config(*settings), run)
        world = Reference(p, p, sampling, Draws(seed, 0), sampled=False)
        assert rounds == reference(world, len(PROMPT) + 40, *settings)
        assert all(len(v.draft) <= settings[1] for v in run.verdicts)
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
def test_every_round_of_assisted_generation_equals_the_reference(start, confidence, drafts, sampling):
    lengths = set()
    for seed in SEEDS:
        p, q = noisy(seed, 0.7)
        run = ToyRun(p, q, Draws(seed, 0), sampling, 45)
        config = {"start": start, "confidence": confidence, "drafts": drafts}
        rounds = rounds_of("assisted", config, run)
        world = Reference(p, q, sampling, Draws(seed, 0), drafts == "sampled")
        assert rounds == assisted(world, list(PROMPT), start, confidence, len(PROMPT) + 45)
        lengths |= {len(v.draft) for v in run.verdicts}
    assert len(lengths) > 1, "the draft length changes"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("level", "window", "guesses"), [(2, 5, 3), (3, 4, 2), (5, 7, 7), (4, 1, 1)])
def test_every_round_of_lookahead_equals_the_reference(level, window, guesses, sampling):
    lengths = set()
    for seed in SEEDS:
        p = Table(seed, 6, sharpness=3.0)
        run = ToyRun(p, p, Draws(seed, 0), sampling, 45)
        rounds = rounds_of("lookahead", {"level": level, "window": window, "guesses": guesses}, run)
        world = Reference(p, p, sampling, Draws(seed, 0), sampled=False)
        assert rounds == lookahead(world, list(PROMPT), level, window, guesses, len(PROMPT) + 45)
        lengths |= {r.accepted for r in rounds}
    assert {0, level - 1} <= lengths, "nothing, and a whole n-gram to its last token, is accepted"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("gamma", "phrases", "level", "window", "guesses"),
    [(4, 3, 3, 5, 4), (1, 2, 2, 3, 2), (6, 0, 5, 7, 7), (3, 4, 4, 2, 6)],
)
def test_every_round_of_ouroboros_equals_the_reference(gamma, phrases, level, window, guesses, sampling):
    lengths, appended = set(), 0
    for seed in SEEDS:
        p, q = noisy(seed, 0.5)
        run = ToyRun(p, q, Draws(seed, 0), sampling, 45)
        config = {"gamma": gamma, "phrases": phrases, "level": level, "window": window, "guesses": guesses}
        rounds = rounds_of("ouroboros", config, run)
        world = Reference(p, q, sampling, Draws(seed, 0), sampled=False)
        expected = ouroboros(world, list(PROMPT), gamma, phrases, level, window, guesses, len(PROMPT) + 45)
        assert rounds == expected
        lengths |= {r.accepted for r in rounds}
        appended += sum(len(v.draft.grams) for v in run.verdicts)
    assert len(lengths) > 2, "rejections and acceptances both occur"
    assert (appended > 0) == (phrases > 0)


SCRIPTS = {
    "PEARL, table 9": (5, {0, 3, 8, 17}, [1, 1, 2, 1, 4, 1, 5, 3]),
    "PEARL, figure 3": (3, {0, 6}, [1, 1, 3, 2]),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_pearl_emits_the_tokens_of_the_papers_examples(name):
    gamma, wrong, emitted = SCRIPTS[name]

    def scripted(text: Callable[[int], int]) -> Logits:
        return lambda context: torch.eye(7, dtype=torch.float64)[text(len(context) - len(PROMPT))]

    p, q = scripted(lambda i: i % 6), scripted(lambda i: 6 if i in wrong else i % 6)
    run = ToyRun(p, q, Draws(0, 0), Sampling(), sum(emitted))
    assert [len(r.emitted) for r in rounds_of("pearl", {"gamma": gamma}, run)] == emitted
    assert run.text == tuple(i % 6 for i in range(sum(emitted)))
