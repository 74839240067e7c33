"""Every round of a method equals the round of a slow reference algorithm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from specscope.engine.methods import find
from specscope.engine.sampling.draws import Draws
from specscope.engine.types import Sampling
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
NEW = 45
END = len(PROMPT) + NEW
TEXT = list(PROMPT)
Ways = Callable[[Reference], list[Round]]


def check(
    key: str,
    config: dict,
    seed: int,
    models: tuple[Logits, Logits],
    sampling: Sampling,
    sampled: bool,
    way: Ways,
) -> ToyRun:
    """Run a method; check that its rounds are those of a reference. Return the run."""
    run = ToyRun(*models, Draws(seed, 0), sampling, NEW)
    rounds = rounds_of(key, config, run)
    assert rounds == way(Reference(*models, sampling, Draws(seed, 0), sampled))
    return run


def accepted(run: ToyRun) -> set[int]:
    return {len(v.accepted) for v in run.verdicts}


def noisy(seed: int, noise: float, banned: int = 0) -> tuple[Logits, Logits]:
    """A target, and a drafter that is often right."""
    p, other = Table(seed, 6, sharpness=2.0), Table(seed + 50, 6, banned=banned)
    return p, lambda context: p(context) + noise * other(context)


def alone(seed: int) -> tuple[Logits, Logits]:
    """A target that needs no drafter."""
    p = Table(seed, 6, sharpness=3.0)
    return p, p


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
    lengths = set[int]()
    for seed in SEEDS:
        way = lambda world: reference(world, TEXT, gamma, END)  # noqa: E731
        lengths |= accepted(
            check(key, {"gamma": gamma, **config}, seed, noisy(seed, 0.7), sampling, sampled, way)
        )
    assert len(lengths) > 1, "rejections and acceptances both occur"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafts", ["sampled", "greedy"])
@pytest.mark.parametrize(("width", "depth"), [(1, 4), (2, 3), (4, 5), (8, 2)])
def test_every_round_of_a_tree_equals_the_reference(width, depth, drafts, sampling):
    lengths, branches = set[int](), 0
    config, sampled = {"width": width, "depth": depth, "drafts": drafts}, drafts == "sampled"
    for seed in SEEDS:
        way = lambda world: tree(world, TEXT, width, depth, END)  # noqa: E731
        run = check("tree", config, seed, noisy(seed, 1.0, banned=1), sampling, sampled, way)
        assert all(len(v.draft) <= width * depth for v in run.verdicts)
        lengths |= accepted(run)
        branches += sum(v.nodes != tuple(range(len(v.nodes))) for v in run.verdicts)
    assert len(lengths) > 1, "rejections and acceptances both occur"
    assert branches > 0 or width == 1, "other paths than the first are accepted"


COPIES = {
    "llma": (
        [(1, 7, ""), (2, 7, "01234501203"), (1, 1, ""), (3, 4, "0123")],
        lambda match, copy, document: {"match": match, "copy": copy, "reference": document},
        lambda world, match, copy, document: llma(world, TEXT, match, END, copy, list(map(int, document))),
    ),
    "prompt_lookup": (
        [(n, copy, which) for n, copy in ((1, 4), (3, 10), (5, 1)) for which in ("first", "latest")],
        lambda ngram, copy, which: {"ngram": ngram, "copy": copy, "which": which},
        lambda world, ngram, copy, which: prompt_lookup(world, TEXT, ngram, copy, which, END),
    ),
}
"""Settings of each method that copies, the config they make, and the reference."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("key", "settings"), [(key, s) for key in COPIES for s in COPIES[key][0]], ids=str)
def test_every_round_of_copies_equals_the_reference(key, settings, sampling):
    lengths, (_, config, reference) = set(), COPIES[key]
    for seed in SEEDS:
        way = lambda world: reference(world, *settings)  # noqa: E731
        run = check(key, config(*settings), seed, alone(seed), sampling, False, way)
        assert all(len(v.draft) <= settings[1] for v in run.verdicts)
        lengths |= {(len(v.draft) > 0, len(v.accepted)) for v in run.verdicts}
    assert {drafted for drafted, _ in lengths} == {True, False}, "some rounds copy, some are plain"
    assert len(lengths) > 2, "rejections and acceptances both occur"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafts", ["sampled", "greedy"])
@pytest.mark.parametrize(("start", "confidence"), [(1, 0.0), (5, 0.4), (3, 0.7)])
def test_every_round_of_assisted_generation_equals_the_reference(start, confidence, drafts, sampling):
    lengths, sampled = set[int](), drafts == "sampled"
    config = {"start": start, "confidence": confidence, "drafts": drafts}
    for seed in SEEDS:
        way = lambda world: assisted(world, TEXT, start, confidence, END)  # noqa: E731
        run = check("assisted", config, seed, noisy(seed, 0.7), sampling, sampled, way)
        lengths |= {len(v.draft) for v in run.verdicts}
    assert len(lengths) > 1, "the draft length changes"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("level", "window", "guesses"), [(2, 5, 3), (3, 4, 2), (5, 7, 7), (4, 1, 1)])
def test_every_round_of_lookahead_equals_the_reference(level, window, guesses, sampling):
    lengths, config = set[int](), {"level": level, "window": window, "guesses": guesses}
    for seed in SEEDS:
        way = lambda world: lookahead(world, TEXT, level, window, guesses, END)  # noqa: E731
        lengths |= accepted(check("lookahead", config, seed, alone(seed), sampling, False, way))
    assert {0, level - 1} <= lengths, "nothing, and a whole n-gram to its last token, is accepted"


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("gamma", "phrases", "level", "window", "guesses"),
    [(4, 3, 3, 5, 4), (1, 2, 2, 3, 2), (6, 0, 5, 7, 7), (3, 4, 4, 2, 6)],
)
def test_every_round_of_ouroboros_equals_the_reference(gamma, phrases, level, window, guesses, sampling):
    lengths, appended = set[int](), 0
    settings = (gamma, phrases, level, window, guesses)
    config = dict(zip(("gamma", "phrases", "level", "window", "guesses"), settings, strict=True))
    for seed in SEEDS:
        way = lambda world: ouroboros(world, TEXT, *settings, END)  # noqa: E731
        run = check("ouroboros", config, seed, noisy(seed, 0.5), sampling, False, way)
        lengths |= accepted(run)
        appended += sum(len(v.draft.grams) for v in run.verdicts)
    assert len(lengths) > 2, "rejections and acceptances both occur"
    assert (appended > 0) == (phrases > 0)
