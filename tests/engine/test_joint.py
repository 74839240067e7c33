"""The joint distribution of several consecutive tokens equals the target's, by exact enumeration."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from pathlib import Path

import pytest

from engine.accept import Draws, Key, warp
from engine.drafters.tree import Wide
from engine.methods import find
from engine.types import Draft, DraftToken, Pipelined, Sampling
from tests.engine.toy import (
    Blurred,
    Enumerated,
    Method,
    Parallel,
    Table,
    ToyRun,
    always_wrong,
    distance,
    joint,
    target_joint,
)

EXACT = 1e-9
BIASED = 1e-3
ONE = Sampling(1.0)

SMALL, TWO = (str(Path(__file__).parent / "trees" / f"{name}.toml") for name in ("small", "two"))
METHODS = {
    "autoregressive": ("autoregressive", {}),
    "speculative-1": ("speculative", {"gamma": 1}),
    "speculative-2": ("speculative", {"gamma": 2}),
    "speculative-3": ("speculative", {"gamma": 3}),
    "speculative-greedy-1": ("speculative", {"gamma": 1, "drafts": "greedy"}),
    "speculative-greedy-3": ("speculative", {"gamma": 3, "drafts": "greedy"}),
    "pearl-1": ("pearl", {"gamma": 1}),
    "pearl-2": ("pearl", {"gamma": 2}),
    "pearl-3": ("pearl", {"gamma": 3}),
    "pearl-2-no-pre": ("pearl", {"gamma": 2, "pre_verify": False}),
    "pearl-2-no-post": ("pearl", {"gamma": 2, "post_verify": False}),
    "pearl-2-guesses": ("pearl", {"gamma": 2, "guesses": 2}),
    "pearl-3-pipeline": ("pearl", {"gamma": 3, "placement": "pipeline", "stages": 2}),
    "pearl-3-guesses": ("pearl", {"gamma": 3, "guesses": 1}),
    "dsi": ("dsi", {"lookahead": 2, "sp": 1}),
    "dsi-rejection": ("dsi", {"lookahead": 1, "sp": 1, "acceptance": "rejection"}),
    "llma": ("llma", {"match": 1, "copy": 3}),
    "llma-reference": ("llma", {"match": 1, "copy": 2, "reference": "0123012"}),
    "prompt-lookup-first": ("prompt_lookup", {"ngram": 2, "copy": 3}),
    "prompt-lookup-latest": ("prompt_lookup", {"ngram": 1, "copy": 2, "which": "latest"}),
    "assisted-1": ("assisted", {"start": 1, "confidence": 0.0}),
    "assisted-3-sure": ("assisted", {"start": 3, "confidence": 0.5}),
    "assisted-2-greedy": ("assisted", {"start": 2, "confidence": 0.4, "drafts": "greedy"}),
    "lookahead-2": ("lookahead", {"level": 2, "window": 4, "guesses": 4}),
    "lookahead-3": ("lookahead", {"level": 3, "window": 3, "guesses": 2}),
    "ouroboros": ("ouroboros", {"gamma": 1, "level": 2, "window": 3, "guesses": 3, "phrases": 2}),
    "ouroboros-2": ("ouroboros", {"gamma": 2, "level": 3, "window": 2, "guesses": 2, "phrases": 3}),
    "tree-1x3": ("tree", {"width": 1, "depth": 3}),
    "tree-2x1": ("tree", {"width": 2, "depth": 1}),
    "tree-2x2": ("tree", {"width": 2, "depth": 2}),
    "tree-2x3": ("tree", {"width": 2, "depth": 3}),
    "tree-3x1": ("tree", {"width": 3, "depth": 1}),
    "tree-greedy-2x2": ("tree", {"width": 2, "depth": 2, "drafts": "greedy"}),
    "tree-greedy-3x3": ("tree", {"width": 3, "depth": 3, "drafts": "greedy"}),
    "ems-llma": ("ems", {"match": 1, "copy": 3}),
    "ems-speculative": ("ems", {"base": "speculative", "gamma": 2}),
    "ems-tree-2x2": ("ems", {"base": "speculative", "gamma": 2, "width": 2}),
    "ems-tree-3x2": ("ems", {"base": "speculative", "gamma": 2, "width": 3}),
    "easyspec-3": ("easyspec", {"gamma": 3}),
    "easyspec-3-no-calibration": ("easyspec", {"gamma": 3, "calibrate": False}),
    "easyspec-2x2": ("easyspec", {"gamma": 2, "width": 2}),
    "easyspec-greedy-3x3": ("easyspec", {"gamma": 3, "width": 3, "drafts": "greedy"}),
    "eagle": ("eagle", {"tree": TWO}),
    "eagle-greedy": ("eagle", {"tree": SMALL, "drafts": "greedy"}),
    "eagle2": ("eagle2", {"top": 2, "depth": 3, "total": 6}),
    "hydra": ("hydra", {"tree": SMALL}),
    "medusa": ("medusa", {"tree": SMALL}),
    "parallelspec_medusa": ("parallelspec_medusa", {"tree": SMALL, "masks": 2}),
    "parallelspec_eagle": ("parallelspec_eagle", {"tree": TWO, "masks": 2}),
    "parallelspec_eagle-greedy": ("parallelspec_eagle", {"tree": SMALL, "masks": 2, "drafts": "greedy"}),
    "pearl-2-neither": ("pearl", {"gamma": 2, "pre_verify": False, "post_verify": False}),
}
PARALLEL = ("medusa", "parallelspec_medusa", "parallelspec_eagle")
"""Methods whose drafters say all levels at once, whatever comes between."""
SAMPLINGS = [
    Sampling(1.0, top_k=3),
    Sampling(0.7, top_p=0.8),
    Sampling(1.5, top_k=3, top_p=0.9),
    Sampling(2.0, top_p=0.95),
    Sampling(0.5),
]
MIXED = Table(11, banned=2)
PAIRS = {
    "random": (Table(1), Blurred(2, banned=2)),
    "same": (Table(3, banned=1), Table(3, banned=1)),
    "wrong": (MIXED, always_wrong(MIXED)),
    "q-zeros": (Table(4), Blurred(5, banned=3)),
    "p-zeros": (Table(6, banned=2), Table(7, banned=1)),
}


def method(key: str, **config: object) -> Method:
    """Return the real method with these settings."""
    found = find(key)
    settings = found.configure(config)

    def decode(run: ToyRun) -> Coroutine[None, None, None]:
        if isinstance(found.layout(settings).arrangement, Pipelined):  # a drafter at both ends
            run.drafters = [run.drafter, run.drafter]
        return found.decode(run, settings)

    return decode


def sampled_tree(*widths: int, wide: bool = True) -> Method:
    """Return a method that samples children without replacement, so many per level, and verifies the tree."""

    async def decode(run: ToyRun) -> None:
        while not run.done:
            tokens, contexts, level = list[DraftToken](), {-1: tuple(run.x.tokens.tolist())}, [-1]
            for width in widths:
                grown = list[int]()
                for parent in level:
                    context = contexts[parent]
                    q = warp(run.drafter.logits(context)[None], run.sampling)[0]
                    row, rest = run.keep(q), q.clone()
                    for _ in range(min(width, int((q > 0).sum()))):
                        node = len(tokens)
                        token = run.draws.choose(Key(len(context), "draft", node), rest)
                        rest[token] = 0
                        tokens.append(DraftToken(token, parent, row))
                        contexts[node] = (*context, token)
                        grown.append(node)
                level = grown if wide else grown[:1]
            run.commit(await run.target.verify(run.x, Draft(tuple(tokens))))

    return decode


def top_tree(*widths: int, as_sampled: bool = False) -> Method:
    """Return a method whose tree holds the drafter's most probable tokens: rule 2, or (an error) rule 1."""

    async def decode(run: ToyRun) -> None:
        while not run.done:
            tokens, contexts, level = list[DraftToken](), {-1: tuple(run.x.tokens.tolist())}, [-1]
            for width in widths:
                grown = list[int]()
                for parent in level:
                    logits = run.drafter.logits(contexts[parent])
                    row = run.keep(logits.softmax(-1)) if as_sampled else None
                    for token in logits.topk(width).indices.tolist():
                        grown.append(len(tokens))
                        contexts[len(tokens)] = (*contexts[parent], token)
                        tokens.append(DraftToken(token, parent, row))
                level = grown
            run.commit(await run.target.verify(run.x, Draft(tuple(tokens))))

    return decode


def first_token(texts: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    marginal: dict[tuple[int, ...], float] = defaultdict(float)
    for text, probability in texts.items():
        marginal[text[:1]] += probability
    return marginal


@pytest.mark.parametrize(
    ("size", "banned", "sampling"),
    [(3, 0, ONE), (4, 1, Sampling(0.8, top_k=3)), (4, 2, Sampling(1.3, top_p=0.9))],
    ids=str,
)
@pytest.mark.parametrize("name", [name for name, (key, _) in METHODS.items() if key in PARALLEL])
def test_the_joint_distribution_is_the_targets_where_levels_are_drafted_at_once(name, size, banned, sampling):
    key, config = METHODS[name]
    p, q = Table(71 + banned, size, banned=min(banned, 1)), Parallel(74 + banned, size, banned=banned)
    tokens = 3 if size == 3 else 2
    texts = joint(method(key, **config), p, q, sampling, tokens)
    assert distance(texts, target_joint(p, sampling, tokens)) < EXACT


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", METHODS)
def test_the_joint_distribution_is_the_targets(name, pair):
    key, config = METHODS[name]
    p, q = PAIRS[pair]
    sampling = SAMPLINGS[(list(METHODS).index(name) + list(PAIRS).index(pair)) % len(SAMPLINGS)]
    assert distance(joint(method(key, **config), p, q, sampling), target_joint(p, sampling)) < EXACT


@pytest.mark.parametrize(("name", "seed"), [("speculative-2", 21), ("pearl-2", 22)])
def test_the_joint_distribution_is_the_targets_for_more_tables_at_temperature_1(name, seed):
    key, config = METHODS[name]
    p, q = Table(seed, sharpness=1.5), Table(seed + 100, banned=1)
    assert distance(joint(method(key, **config), p, q, ONE), target_joint(p, ONE)) < EXACT


@pytest.mark.parametrize("lookahead", [1, 2])
@pytest.mark.parametrize("sampling", [ONE, Sampling(0.7, top_p=0.8)], ids=str)
def test_the_joint_distribution_with_several_drafters_is_the_targets(lookahead, sampling):
    decode = method("dsi", lookahead=lookahead, sp=1, drafters=3)
    for p, q in PAIRS.values():
        found = joint(decode, p, q, sampling, further=[Blurred(8), always_wrong(p)])
        assert distance(found, target_joint(p, sampling)) < EXACT


@pytest.mark.parametrize("name", ["speculative-1", "pearl-2"])
def test_the_joint_distribution_is_the_targets_on_five_tokens(name):
    key, config = METHODS[name]
    p, q = Table(31, 5), Table(32, 5, banned=3)
    assert distance(joint(method(key, **config), p, q, ONE), target_joint(p, ONE)) < EXACT


@pytest.mark.parametrize("name", METHODS)
def test_at_temperature_0_every_method_gives_the_argmax_text(name):
    key, config = METHODS[name]
    texts = joint(method(key, **config), Table(1), Table(2), Sampling(), tokens=12)
    assert texts == target_joint(Table(1), Sampling(), tokens=12)


TREES = {
    "three wide": (sampled_tree(3), Table(41), Table(42), 1),
    "three wide, five tokens": (sampled_tree(3), Table(43, 5), Table(44, 5), 1),
    "two wide, twice": (sampled_tree(2, 2), Table(45, banned=1), Table(46, banned=2), 2),
    "two wide, then below the first": (sampled_tree(2, 2, wide=False), Table(47), Table(48, banned=1), 2),
    "two wide, three tokens": (sampled_tree(2), Table(49), Table(50, banned=2), 3),
    "drafter is the target": (sampled_tree(3, 1, wide=False), Table(51), Table(51), 2),
    "the method, 2 x 2": (method("tree", width=2, depth=2), Table(63, banned=1), Table(64), 2),
    "the method, 2 x 2, p and q with zeros": (
        method("tree", width=2, depth=2),
        Table(65, banned=2),
        Table(66, banned=2),
        3,
    ),
    "the method, 3 x 2": (method("tree", width=3, depth=2), Table(67, banned=1), Table(68, banned=1), 2),
    "the method, 3 x 3, of two tokens": (
        method("tree", width=3, depth=3),
        Table(69, banned=1),
        Table(70, banned=2),
        3,
    ),
    "the method, wider than q": (method("tree", width=5, depth=1), Table(71), Table(72, banned=1), 2),
    "the method, always wrong": (method("tree", width=3, depth=2), MIXED, always_wrong(MIXED), 2),
    "the method, drafter is the target": (method("tree", width=2, depth=2), Table(73), Table(73), 2),
    "most probable": (top_tree(2, 2), Table(52), Table(53), 3),
    "most probable, three wide": (top_tree(3, 1), Table(54, 5), Table(55, 5), 3),
}


@pytest.mark.parametrize("name", TREES)
def test_the_joint_distribution_of_a_tree_is_the_targets(name):
    decode, p, q, tokens = TREES[name]
    assert distance(joint(decode, p, q, ONE, tokens), target_joint(p, ONE, tokens)) < EXACT


def test_at_temperature_0_a_tree_gives_the_argmax_text():
    for decode in (top_tree(2, 2), top_tree(2, 2, as_sampled=True)):
        texts = joint(decode, Table(52), Table(53), Sampling(), tokens=12)
        assert texts == target_joint(Table(52), Sampling(), tokens=12)


def dropping(below: float) -> Method:
    """Return a method with a known error: it drops a drawn token that its drafter finds improbable, and all after it."""

    async def decode(run: ToyRun) -> None:
        while not run.done:
            draft = await run.drafter.propose(run.x, 2, stop_below=below)
            last = draft.tokens[-1]
            sure = last.q is not None and run.q_rows[last.q.row][last.id] >= below
            run.commit(await run.target.verify(run.x, draft if sure else draft[: len(draft) - 1]))

    return decode


def test_dropping_a_token_for_its_own_probability_is_found_and_stopping_after_it_is_right():
    p, q = Table(41), Table(42)
    assert distance(joint(dropping(0.3), p, q, ONE, 2), target_joint(p, ONE, 2)) > BIASED
    sure = method("assisted", start=2, confidence=0.3)
    assert distance(joint(sure, p, q, ONE, 2), target_joint(p, ONE, 2)) < EXACT


class AdjacentShare(Enumerated):
    """PEARL's public code: one number for two adjacent tests."""

    def number(self, key: Key) -> Key:
        return key._replace(position=key.position - key.position % 2) if key.purpose == "accept" else key


class ResidualShares(Enumerated):
    """One number for an acceptance test and the draw after it."""

    def number(self, key: Key) -> Key:
        return key._replace(purpose="accept") if key.purpose == "residual" else key


class SiblingsShare(Enumerated):
    """One number for the tests of all siblings."""

    def number(self, key: Key) -> Key:
        return key._replace(node=0) if key.purpose == "accept" else key


class SiblingsDrawnAlike(Enumerated):
    """One number for drawing all nodes of a level."""

    def number(self, key: Key) -> Key:
        return key._replace(node=0) if key.purpose == "draft" else key


class DraftDecides(Enumerated):
    """One number for drafting a token and testing it."""

    def number(self, key: Key) -> Key:
        return key._replace(purpose="draft") if key.purpose == "accept" else key


ERRORS = {
    "adjacent tests, speculative": (AdjacentShare, method("speculative", gamma=2), 3),
    "accept and residual": (ResidualShares, method("speculative", gamma=1), 1),
    "siblings": (SiblingsShare, sampled_tree(3), 1),
    "siblings of the method": (SiblingsShare, method("tree", width=3, depth=1), 1),
    "siblings drawn alike": (SiblingsDrawnAlike, method("tree", width=3, depth=1), 1),
    "draft and accept": (DraftDecides, method("speculative", gamma=1), 1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_shared_random_numbers_are_found(name):
    draws, decode, tokens = ERRORS[name]
    p, q = Table(41), Table(42, banned=0 if tokens == 1 else 2)
    assert distance(joint(decode, p, q, ONE, tokens, draws), target_joint(p, ONE, tokens)) > BIASED
    assert distance(joint(decode, p, q, ONE, tokens), target_joint(p, ONE, tokens)) < EXACT


def test_a_number_shared_by_adjacent_tests_of_pearl_is_found_by_the_joint_distribution_only():
    p, q = Table(41), Table(42, banned=2)
    texts = joint(method("pearl", gamma=2), p, q, ONE, 3, AdjacentShare)
    assert distance(texts, target_joint(p, ONE)) > BIASED
    assert distance(first_token(texts), target_joint(p, ONE, 1)) < EXACT


def test_children_dropped_because_of_their_own_probability_are_found():
    async def decode(run: ToyRun) -> None:
        while not run.done:
            draft = await run.drafter.grow(run.x, Wide(3, 1))
            kept = tuple(t for t in draft.tokens if run.q_rows[t.q.row][t.id] > 0.2)
            run.commit(await run.target.verify(run.x, Draft(kept)))

    p, q = Table(41), Table(42)
    assert distance(joint(decode, p, q, ONE, 1), target_joint(p, ONE, 1)) > BIASED


def test_the_ratio_rule_on_most_probable_children_is_found():
    p, q = Table(52), Table(53)
    assert distance(joint(top_tree(2, as_sampled=True), p, q, ONE, 1), target_joint(p, ONE, 1)) > BIASED


def text(decode: Method, seed: int, sampling: Sampling) -> tuple[int, ...]:
    run = ToyRun(Table(61, 8), Table(62, 8), Draws(seed, 0), sampling, 40)

    async def finished() -> None:
        await decode(run)

    asyncio.run(finished())
    return run.text


@pytest.mark.parametrize("sampling", [Sampling(0.3), Sampling(1.0), Sampling(2.0, top_k=5, top_p=0.9)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_method_of_rule_2_gives_the_very_text_of_autoregressive(seed, sampling):
    plain = text(method("autoregressive"), seed, sampling)
    drafted = [method("speculative", gamma=g, drafts="greedy") for g in (1, 2, 5)]
    copied = [
        method("llma", match=m, copy=k, reference=text) for m, k, text in ((1, 7, ""), (2, 3, "0123456701"))
    ]
    copied += [method("prompt_lookup", ngram=n, which=which) for n, which in ((1, "first"), (3, "latest"))]
    ahead = [
        method("lookahead", level=n, window=w, guesses=g) for n, w, g in ((2, 8, 2), (3, 4, 4), (4, 3, 7))
    ]
    ahead += [
        method("ouroboros", gamma=g, level=n, window=5, phrases=k) for g, n, k in ((1, 2, 0), (4, 3, 3))
    ]
    trees = [method("tree", width=w, depth=d, drafts="greedy") for w, d in ((1, 4), (4, 3), (8, 2))]
    for decode in [*drafted, *copied, *ahead, *trees, top_tree(3), top_tree(2, 2, 2)]:
        assert text(decode, seed, sampling) == plain


def test_another_seed_gives_another_text():
    assert text(method("autoregressive"), 0, ONE) != text(method("autoregressive"), 1, ONE)


def test_the_text_of_sampled_drafts_is_a_function_of_the_seed():
    for decode in (
        method("speculative", gamma=3), method("pearl", gamma=3), method("tree", width=3, depth=3)
    ):  # fmt: skip
        assert text(decode, 5, ONE) == text(decode, 5, ONE)


def test_the_enumeration_asks_every_part_of_an_interval_once():
    seen = list[float]()

    async def decode(run: ToyRun) -> None:
        key = Key(2, "accept")
        inside = run.draws.below(key, 0.5) and not run.draws.below(key, 0.2)
        seen.append(run.draws.probability)
        run.x = run.x + Draft((DraftToken(int(inside)),))

    texts = joint(decode, Table(1), Table(2), ONE, 1)
    assert texts == {(0,): pytest.approx(0.7), (1,): pytest.approx(0.3)}
    assert sorted(seen) == pytest.approx([0.2, 0.3, 0.5])
