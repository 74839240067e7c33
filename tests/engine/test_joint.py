"""The joint distribution of consecutive tokens equals the target's, by exact enumeration."""

from __future__ import annotations

import asyncio

import pytest

from specscope.engine.drafting.suffix import Finished
from specscope.engine.run.run import Race
from specscope.engine.sampling.draws import Draws
from specscope.engine.types import Draft, Prefix, Sampling, Verdict
from tests.engine.toy import Blurred, Method, Parallel, Scores, Table, ToyRun, ToyTarget, always_wrong
from tests.engine.toy_joint import distance, joint, target_joint
from tests.engine.toy_methods import METHODS, method, sampled_tree, top_tree

EXACT = 1e-9
ONE = Sampling(1.0)
PARALLEL = ("medusa", "parallelspec_medusa", "parallelspec_eagle")
"""Methods whose drafters draft all levels at once, independent of the tokens between."""
HEADS = (*PARALLEL, "eagle", "eagle2", "hydra")
"""Methods with drafting heads."""
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
"""Target and drafter, over 4 tokens."""
MIXED_3 = Table(11, 3, banned=1)
PAIRS_OF_3_TOKENS = {
    "random": (Table(1, 3), Blurred(2, 3, banned=1)),
    "same": (Table(3, 3), Table(3, 3)),
    "wrong": (MIXED_3, always_wrong(MIXED_3)),
    "q-zeros": (Table(4, 3), Blurred(5, 3, banned=2)),
    "p-zeros": (Table(6, 3, banned=1), Table(7, 3, banned=1)),
}
"""The same for configs with many outcomes.

Smaller chains of the same methods have 4 tokens, trees with more siblings are in `TREES`.
"""
LARGE = (
    *("tree-2x2", "tree-2x3", "ems-tree-2x2", "ems-tree-3x2", "easyspec-2x2", "eagle", "parallelspec_eagle"),
    *("speculative-3", "pearl-3", "pearl-3-guesses", "pearl-3-pipeline", "pearl-2-no-pre", "dsi-rejection"),
    *("easyspec-3", "easyspec-3-no-calibration", "tree-1x3", "dsi-sampled", "specbranch-3"),
    *("ssd-2", "ssd-2-geometric", "ssd-2-average", "ssd-2-threshold", "ssd-2-threshold-saguaro"),
)


def cases() -> list[tuple[str, str]]:
    """Return (config, pair): all pairs for a method's first config, three for each further one.

    Every config has the pairs with zeros, which show an error of the residual.
    """
    zeros = [pair for pair in PAIRS if pair.endswith("-zeros")]
    others = [pair for pair in PAIRS if pair not in zeros]
    methods, chosen = set[str](), list[tuple[str, str]]()
    for i, (name, (key, _)) in enumerate(METHODS.items()):
        pairs = [*zeros, others[i % len(others)]] if key in methods else PAIRS
        chosen += [(name, pair) for pair in pairs]
        methods.add(key)
    return chosen


@pytest.mark.parametrize(("name", "pair"), cases())
def test_every_method_has_the_targets_distribution(name, pair):
    key, config = METHODS[name]
    p, q = (PAIRS_OF_3_TOKENS if name in LARGE else PAIRS)[pair]
    sampling = SAMPLINGS[(list(METHODS).index(name) + list(PAIRS).index(pair)) % len(SAMPLINGS)]
    outcomes = set[str]()
    texts = joint(method(key, **config), p, q, sampling, outcomes=outcomes)
    assert distance(texts, target_joint(p, sampling)) < EXACT
    if pair == "q-zeros" and name != "autoregressive":
        assert outcomes >= {"accepted", "rejected", "corrected"}


@pytest.mark.parametrize(
    ("size", "banned", "tokens", "sampling"),
    [(3, 0, 2, ONE), (3, 1, 3, ONE), (4, 1, 2, Sampling(0.8, top_k=3)), (4, 2, 2, Sampling(1.3, top_p=0.9))],
    ids=str,
)
@pytest.mark.parametrize("name", [name for name, (key, _) in METHODS.items() if key in PARALLEL])
def test_levels_drafted_at_once_have_the_targets_distribution(name, size, banned, tokens, sampling):
    key, config = METHODS[name]
    p, q = Table(71 + banned, size, banned=min(banned, 1)), Parallel(74 + banned, size, banned=banned)
    texts = joint(method(key, **config), p, q, sampling, tokens)
    assert distance(texts, target_joint(p, sampling, tokens)) < EXACT


@pytest.mark.parametrize(("tokens", "banned"), [((1, 3), 0), ((2,), 0), ((0, 1, 3), 1)], ids=str)
@pytest.mark.parametrize("sampling", [ONE, Sampling(0.7, top_p=0.8), Sampling()], ids=str)
@pytest.mark.parametrize("name", [name for name, (key, _) in METHODS.items() if key in HEADS])
def test_a_shortened_vocabulary_has_the_targets_distribution(name, sampling, tokens, banned):
    key, config = METHODS[name]
    table = Parallel if key in PARALLEL else Table
    p, q = Table(81, banned=banned), table(82, len(tokens), tokens=tokens)
    assert distance(joint(method(key, **config), p, q, sampling, 2), target_joint(p, sampling, 2)) < EXACT


@pytest.mark.parametrize(("name", "seed"), [("speculative-2", 21), ("pearl-2", 22)])
def test_at_temperature_1_without_a_warp_the_distribution_is_the_targets(name, seed):
    key, config = METHODS[name]
    p, q = Table(seed, sharpness=1.5), Table(seed + 100, banned=2)
    assert distance(joint(method(key, **config), p, q, ONE), target_joint(p, ONE)) < EXACT


@pytest.mark.parametrize(("lookahead", "sampling"), [(1, ONE), (2, Sampling(0.7, top_p=0.8))], ids=str)
def test_several_drafters_have_the_targets_distribution(lookahead, sampling):
    decode = method("dsi", lookahead=lookahead, sp=1, drafters=3)
    for p, q in PAIRS.values():
        texts = joint(decode, p, q, sampling, further=[Blurred(8), always_wrong(p)])
        assert distance(texts, target_joint(p, sampling)) < EXACT


ORDERS = {
    "drafts first": (0, (9, 9, 9), 0),
    "forwards first": (9, (0, 0, 0), 0),
    "later servers first": (1, (12, 5, 0), 0),
    "verdicts last": (0, (2, 4, 1), 8),
}
"""Turns of the event loop for a draft, for a forward of each of three servers, for a judgement."""


def in_order(decode: Method, order: str, busy: list[int]) -> Method:
    """Return DSI on three servers with an order of results; `busy` gets the working servers."""
    drafting, scoring, judging = ORDERS[order]

    async def ordered(run: ToyRun) -> None:
        class Watched(ToyTarget):
            def score(self, prefix: Prefix, draft: Draft) -> Scores:
                busy.append(1 + sum(server.busy for server in run.targets if server is not self))
                return super().score(prefix, draft)

        for number, drafter in enumerate(run.drafters):
            drafter.ticks = drafting + 3 * number
        run.targets = [Watched(run, run.target.logits, ticks, judging) for ticks in scoring]
        await decode(run)

    return ordered


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("config", [{}, {"drafts": "sampled"}, {"acceptance": "rejection"}], ids=str)
def test_dsi_has_the_targets_distribution_in_any_order_of_results(order, config):
    busy = list[int]()
    decode = in_order(method("dsi", **{"lookahead": 1, "sp": 3, **config}), order, busy)
    size, tokens = (2, 3) if config else (3, 4)  # a sampled draft is one draw more
    p, q = Table(1, size, sharpness=2.0), Table(3, size)
    assert distance(joint(decode, p, q, ONE, tokens), target_joint(p, ONE, tokens)) < EXACT
    if order != "forwards first":
        assert max(busy) > 1, "several servers worked at once"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("lookahead", "size", "tokens", "seeds"), [(1, 3, 4, (1, 3, 5, 8)), (2, 2, 6, (2, 4, 6, 9))]
)
def test_lines_that_contradict_each_other_have_the_targets_distribution_in_any_order(
    order, lookahead, size, tokens, seeds
):
    """Three drafters and three servers: a verdict stops verifications and drafts under way."""
    busy, stopped = list[int](), 0
    decode = in_order(method("dsi", lookahead=lookahead, sp=3, drafters=3), order, busy)

    class Watched(Race):
        def stop(self, task: asyncio.Task[object] | None) -> None:
            nonlocal stopped
            stopped += task in self._running
            super().stop(task)

    async def watched(run: ToyRun) -> None:
        run.race = Watched
        await decode(run)

    p, first, *further = (Table(seed, size) for seed in seeds)
    texts = joint(watched, p, first, ONE, tokens, further=further)
    assert distance(texts, target_joint(p, ONE, tokens)) < EXACT
    if order in ("drafts first", "later servers first"):
        assert max(busy) > 1
        assert stopped > 50, "verdicts contradict work under way"


@pytest.mark.parametrize("config", [{}, {"drafts": "sampled"}, {"acceptance": "rejection"}], ids=str)
def test_no_order_of_results_changes_a_text_of_dsi(config):
    drafters = 1 if config else 3
    decode = method("dsi", **{"lookahead": 2, "sp": 3, "drafters": drafters, **config})
    p, first, *further = (Table(seed, 3) for seed in (1, 3, 5, 8))
    loop = asyncio.new_event_loop()
    for seed in range(20):
        texts, ways = set[tuple[int, ...]](), [in_order(decode, order, []) for order in ORDERS]
        if "acceptance" not in config:  # rule 2: the target draws every token
            ways.append(method("autoregressive"))
        for way in ways:
            run = ToyRun(p, first, Draws(seed, 0), ONE, 8, further=further[: drafters - 1])
            loop.run_until_complete(way(run))
            texts.add(run.text)
        assert len(texts) == 1, seed
    loop.close()


@pytest.mark.parametrize(("name", "tokens"), [("speculative-1", 3), ("pearl-2", 2)])
def test_a_vocabulary_of_five_tokens_has_the_targets_distribution(name, tokens):
    key, config = METHODS[name]
    p, q = Table(31, 5), Table(32, 5, banned=3)
    assert distance(joint(method(key, **config), p, q, ONE, tokens), target_joint(p, ONE, tokens)) < EXACT


@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=str)
@pytest.mark.parametrize("name", ["suffix", "hybrid-1", "hybrid-2-seconds"])
def test_drafts_from_finished_texts_have_the_targets_distribution(name, sampling):
    key, config = METHODS[name]
    decode, accepted = method(key, **config), set[int]()

    async def with_finished_texts(run: ToyRun) -> None:
        run.finished = Finished([(0, 1, 1, 0, 1, 3, 3), (1, 0, 0, 2, 0, 3), (0, 1, 1, 1)])
        await decode(run)
        copies = [v for v in run.verdicts if v.draft.source is not None and v.accepted]
        accepted.update(v.draft.source.document for v in copies if v.draft.source)

    p, q = PAIRS["random"]
    texts = joint(with_finished_texts, p, q, sampling)
    assert distance(texts, target_joint(p, sampling)) < EXACT
    assert accepted - {-1}, "an accepted draft is of a finished text"


@pytest.mark.parametrize("gamma", [2, 3])
def test_drafts_that_survive_a_round_of_guesses_have_the_targets_distribution(gamma):
    decode, survivors = method("pearl", gamma=gamma, guesses=1), set[str]()

    async def watched(run: ToyRun) -> None:
        commit = run.commit

        def watch(verdict: Verdict, kept: Draft | None = None, pool: object = None) -> None:
            commit(verdict, kept, pool)
            guessed.append(bool(verdict.draft.source and kept))
            if guessed[-2:-1] == [True]:  # the round after one of guesses judges what they left
                survivors.update(j.outcome for j in verdict.judged)

        guessed: list[bool] = []
        run.commit = watch
        await decode(run)

    p, q = Table(91, 2), Table(92, 2)
    texts = joint(watched, p, q, ONE, tokens=5)
    assert distance(texts, target_joint(p, ONE, 5)) < EXACT
    assert survivors >= {"accepted", "rejected", "corrected"}


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
    "the method, 2 x 2": (method("tree", width=2, depth=2), Table(63, banned=1), Table(64, banned=1), 2),
    "the method, 2 x 2, p and q with zeros": (
        method("tree", width=2, depth=2),
        Table(65, banned=2),
        Table(66, banned=2),
        3,
    ),
    "the method, 3 x 2": (method("tree", width=3, depth=2), Table(67, banned=1), Table(68, banned=1), 2),
    "the method, 3 x 3, of two tokens": (
        method("tree", width=3, depth=3),
        Table(69, 3, banned=1),
        Table(70, 3, banned=1),
        3,
    ),
    "the method, wider than q": (method("tree", width=5, depth=1), Table(71), Table(72, banned=1), 2),
    "the method, always wrong": (method("tree", width=3, depth=2), MIXED, always_wrong(MIXED), 2),
    "the method, drafter is the target": (method("tree", width=2, depth=2), Table(73), Table(73), 2),
    "most probable": (top_tree(2, 2), Table(52), Table(53), 3),
    "most probable, three wide": (top_tree(3, 1), Table(54, 5), Table(55, 5), 3),
}


@pytest.mark.parametrize("name", TREES)
def test_trees_have_the_targets_distribution(name):
    decode, p, q, tokens = TREES[name]
    assert distance(joint(decode, p, q, ONE, tokens), target_joint(p, ONE, tokens)) < EXACT


def test_at_temperature_0_a_tree_gives_the_argmax_text():
    for decode in (top_tree(2, 2), top_tree(2, 2, as_sampled=True)):
        texts = joint(decode, Table(52), Table(53), Sampling(), tokens=12)
        assert texts == target_joint(Table(52), Sampling(), tokens=12)
