"""The joint distribution of consecutive tokens equals the target's, by exact enumeration."""

from __future__ import annotations

import asyncio

import pytest

from specscope.engine.drafting import schedule
from specscope.engine.drafting.admission import Costs
from specscope.engine.drafting.schedule import Ask
from specscope.engine.drafting.suffix import Finished
from specscope.engine.methods import METHODS as REGISTERED
from specscope.engine.run.lengths import RoundLengths
from specscope.engine.run.policies import LENGTHS
from specscope.engine.run.run import Racing
from specscope.engine.sampling.draws import Draws
from specscope.engine.types import Draft, Prefix, Sampling, Verdict
from tests.engine.toy import Blurred, Logits, Method, Parallel, Scores, Table, ToyRun, ToyTarget, always_wrong
from tests.engine.toy_joint import distance, joint, target_joint
from tests.engine.toy_methods import METHODS, configured, method, sampled_tree, top_tree

EXACT = 1e-9
ONE = Sampling(1.0)
PARALLEL = ("medusa", "parallelspec_medusa", "parallelspec_eagle", "dflash")
"""Methods whose drafters draft all levels at once, independent of the tokens between."""
HEADS = (*PARALLEL, "eagle", "eagle2", "hydra", "mtp")
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


def assert_exact(decode: Method, p: Logits, q: Logits, sampling: Sampling, tokens: int = 3, **more) -> None:
    texts = joint(decode, p, q, sampling, tokens, **more)
    assert distance(texts, target_joint(p, sampling, tokens)) < EXACT


def cases() -> list[tuple[str, str]]:
    """Return (config, pair): all pairs for a method's first config, three for each further one.

    Every config has the pairs with zeros, which show an error of the residual.
    """
    zeros = [pair for pair in PAIRS if pair.endswith("-zeros")]
    others = [pair for pair in PAIRS if pair not in zeros]
    methods, chosen = set[str](), list[tuple[str, str]]()
    for i, config in enumerate(METHODS):
        key = config.split()[1]
        pairs = [*zeros, others[i % len(others)]] if key in methods else PAIRS
        chosen += [(config, pair) for pair in pairs]
        methods.add(key)
    return chosen


@pytest.mark.parametrize(("config", "pair"), cases())
def test_every_method_has_the_targets_distribution(config, pair):
    size, words = config.split(" ", 1)
    p, q = (PAIRS if size == "4" else PAIRS_OF_3_TOKENS)[pair]
    sampling = SAMPLINGS[(METHODS.index(config) + list(PAIRS).index(pair)) % len(SAMPLINGS)]
    outcomes = set[str]()
    assert_exact(configured(words), p, q, sampling, outcomes=outcomes)
    if pair == "q-zeros" and words != "autoregressive":
        assert outcomes >= {"accepted", "rejected", "corrected"}


def of(methods: tuple[str, ...]) -> list[str]:
    """Return the configs of some methods."""
    return [words for words in (config.split(" ", 1)[1] for config in METHODS) if words.split()[0] in methods]


@pytest.mark.parametrize(
    ("size", "banned", "tokens", "sampling"),
    [(3, 0, 2, ONE), (3, 1, 3, ONE), (4, 1, 2, Sampling(0.8, top_k=3)), (4, 2, 2, Sampling(1.3, top_p=0.9))],
    ids=str,
)
@pytest.mark.parametrize("words", of(PARALLEL))
def test_levels_drafted_at_once_have_the_targets_distribution(words, size, banned, tokens, sampling):
    p, q = Table(71 + banned, size, banned=min(banned, 1)), Parallel(74 + banned, size, banned=banned)
    assert_exact(configured(words), p, q, sampling, tokens)


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("words", of(HEADS))
def test_a_shortened_vocabulary_has_the_targets_distribution(words, turn):
    """Every config has all vocabularies and samplings; all pairs of these are met."""
    tokens, banned = [((1, 3), 0), ((2,), 0), ((0, 1, 3), 1)][turn]
    sampling = [ONE, Sampling(0.7, top_p=0.8), Sampling()][(turn + of(HEADS).index(words)) % 3]
    table = Parallel if words.split()[0] in PARALLEL else Table
    p, q = Table(81, banned=banned), table(82, len(tokens), tokens=tokens)
    assert_exact(configured(words), p, q, sampling, 2)


@pytest.mark.parametrize(("lookahead", "sampling"), [(1, ONE), (2, Sampling(0.7, top_p=0.8))], ids=str)
def test_several_drafters_have_the_targets_distribution(lookahead, sampling):
    decode = method("dsi", lookahead=lookahead, sp=1, drafters=3)
    for p, q in PAIRS.values():
        assert_exact(decode, p, q, sampling, further=[Blurred(8), always_wrong(p)])


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
    assert_exact(decode, p, q, ONE, tokens)
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

    class Watched(Racing):
        def stop(self, task: asyncio.Task[object] | None) -> None:
            nonlocal stopped
            stopped += task in self._running
            super().stop(task)

    async def watched(run: ToyRun) -> None:
        run.race = Watched
        await decode(run)

    p, first, *further = (Table(seed, size) for seed in seeds)
    assert_exact(watched, p, first, ONE, tokens, further=further)
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


@pytest.mark.parametrize("sampling", SAMPLINGS[:3], ids=str)
@pytest.mark.parametrize(
    "words",
    [
        "suffix depth=6 copy=3 factor=2.0",
        "hybrid depth=4 copy=3 gamma=1",
        "hybrid depth=4 gamma=2 weigh=seconds c=1.5",
    ],
)
def test_drafts_from_finished_texts_have_the_targets_distribution(words, sampling):
    decode, accepted = configured(words), set[int]()

    async def with_finished_texts(run: ToyRun) -> None:
        run.finished = Finished([(0, 1, 1, 0, 1, 3, 3), (1, 0, 0, 2, 0, 3), (0, 1, 1, 1)])
        await decode(run)
        copies = [v for v in run.verdicts if v.draft.source is not None and v.accepted]
        accepted.update(v.draft.source.document for v in copies if v.draft.source)

    assert_exact(with_finished_texts, *PAIRS["random"], sampling)
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

    assert_exact(watched, Table(91, 2), Table(92, 2), ONE, 5)
    assert survivors >= {"accepted", "rejected", "corrected"}


@pytest.mark.parametrize("sampling", [ONE, Sampling(0.7, top_p=0.95)], ids=str)
@pytest.mark.parametrize("drafts", ["sampled", "greedy"])
@pytest.mark.parametrize(("width", "most", "tokens"), [(1, 1, 3), (4, 2, 3), (6, 3, 2)])
def test_one_two_and_three_siblings_have_the_targets_distribution(width, most, tokens, drafts, sampling):
    decode = method("specbranch", gamma=1, length=2, threshold=0.5, branches=width, drafts=drafts)
    counts, winners = set[int](), set[int]()

    async def watched(run: ToyRun) -> None:
        await decode(run)
        for verdict in run.verdicts:
            depth = verdict.draft.depth - 1
            counts.add(len(verdict.draft) - depth)
            winners.update(node - depth for node in verdict.nodes[depth:])

    assert_exact(watched, Table(101, 3), Table(102, 3, sharpness=0.5), sampling, tokens)
    assert max(counts) == most
    assert max(winners) == most - 1, "the last sibling wins, too"


@pytest.mark.parametrize("cut", [0, 1, 2])
@pytest.mark.parametrize(
    "words", ["saguaro=0.3 forks=1", "backup=none forks=1", "backup=none saguaro=0.3 fanout=[1,2,1]"]
)
def test_branches_cut_short_have_the_targets_distribution(words, cut):
    decode, hits = configured(f"ssd gamma=2 {words}"), set[bool]()

    async def cutting(run: ToyRun) -> None:
        run.drafter.cut = cut
        await decode(run)
        hits.update(run.hits)

    assert_exact(cutting, Table(31, 3), Table(32, 3), Sampling(1.2))
    assert hits == {True, False}


OFF = ["pearl", "pearl pre_verify=False", "pearl post_verify=False", "pearl guesses=1"]
OFF += ["speculative schedule=average", "speculative schedule=average drafts=greedy"]


@pytest.mark.parametrize("sampling", [ONE, Sampling(1.5, top_k=3), Sampling()], ids=str)
@pytest.mark.parametrize("words", OFF)
def test_drafting_that_ends_for_good_has_the_targets_distribution(words, sampling, monkeypatch):
    monkeypatch.setattr(schedule, "WINDOW", 1)  # off after the first verdict with a rejection
    decode, off = configured(f"{words} gamma=2 off_below=1.0"), set[bool]()

    async def watched(run: ToyRun) -> None:
        propose = run.drafter.propose

        async def watch(prefix: Prefix, ask: Ask, **options: object) -> Draft:
            off.add(not ask.tokens)
            return await propose(prefix, ask, **options)

        run.drafter.propose = watch
        await decode(run)

    p = Table(41, 3)
    assert_exact(watched, p, lambda context: p(context).roll(1), sampling, 12 if sampling.greedy else 4)
    assert off == {False, True}


@pytest.mark.parametrize("policy", LENGTHS)
@pytest.mark.parametrize("banned", [0, 1])
def test_lengths_that_follow_earlier_rounds_keep_the_targets_distribution(policy, banned):
    """The lengths of a policy under load; see `tests/engine/drafting/test_lengths.py`."""
    decode, seen = method("speculative", gamma=3), set[int]()
    costs = Costs(((1, 1.0), (2, 1.25), (3, 1.6), (4, 2.2)), ((1, 0.05), (4, 0.05)))

    async def served(run: ToyRun) -> None:
        lengths, propose, commit = RoundLengths(policy, costs), run.drafter.propose, run.commit

        async def limit(prefix: Prefix, ask: Ask, **more: object) -> Draft:
            allowed = lengths.choose({0: min(ask.tokens, run.remaining)}, 0)[0]
            seen.add(allowed)
            return await propose(prefix, ask._replace(tokens=allowed), **more)

        def learn(verdict: Verdict, *more: object) -> None:
            lengths.learn([verdict])
            commit(verdict, *more)

        run.drafter.propose, run.commit = limit, learn
        await decode(run)

    assert_exact(served, Table(6, 3, banned=banned), Table(7, 3, banned=1), ONE, 4)
    assert len(seen) > 1, "the lengths change with the outcomes"


WORLDS = {
    "no warp": (configured("speculative gamma=2"), Table(21, sharpness=1.5), Table(121, banned=2), 3),
    "no warp, PEARL": (configured("pearl gamma=2"), Table(22, sharpness=1.5), Table(122, banned=2), 3),
    "five tokens": (configured("speculative gamma=1"), Table(31, 5), Table(32, 5, banned=3), 3),
    "five tokens, PEARL": (configured("pearl gamma=2"), Table(31, 5), Table(32, 5, banned=3), 2),
    "three wide": (sampled_tree(3), Table(41), Table(42), 1),
    "three wide, five tokens": (sampled_tree(3), Table(43, 5), Table(44, 5), 1),
    "two wide, twice": (sampled_tree(2, 2), Table(45, banned=1), Table(46, banned=2), 2),
    "two wide, then below the first": (sampled_tree(2, 2, wide=False), Table(47), Table(48, banned=1), 2),
    "two wide, three tokens": (sampled_tree(2), Table(49), Table(50, banned=2), 3),
    "drafter is the target": (sampled_tree(3, 1, wide=False), Table(51), Table(51), 2),
    "2 x 2": (method("tree", width=2, depth=2), Table(63, banned=1), Table(64, banned=1), 2),
    "2 x 2, zeros": (method("tree", width=2, depth=2), Table(65, banned=2), Table(66, banned=2), 3),
    "3 x 2": (method("tree", width=3, depth=2), Table(67, banned=1), Table(68, banned=1), 2),
    "3 x 3": (method("tree", width=3, depth=3), Table(69, 3, banned=1), Table(70, 3, banned=1), 3),
    "wider than q": (method("tree", width=5, depth=1), Table(71), Table(72, banned=1), 2),
    "always wrong": (method("tree", width=3, depth=2), MIXED, always_wrong(MIXED), 2),
    "always right": (method("tree", width=2, depth=2), Table(73), Table(73), 2),
    "most probable": (top_tree(2, 2), Table(52), Table(53), 3),
    "most probable, three wide": (top_tree(3, 1), Table(54, 5), Table(55, 5), 3),
}
"""Other vocabularies, and trees of other forms; without logits processors."""


@pytest.mark.parametrize("name", WORLDS)
def test_other_worlds_have_the_targets_distribution(name):
    decode, p, q, tokens = WORLDS[name]
    assert_exact(decode, p, q, ONE, tokens)


ALL = {config: configured(config.split(" ", 1)[1]) for config in METHODS}
ALL |= {"most probable": top_tree(2, 2), "reported as sampled": top_tree(2, 2, as_sampled=True)}


def test_every_method_is_enumerated():
    assert {config.split()[1] for config in METHODS} == {*REGISTERED}, (
        "add the missing ones to toy_methods.py"
    )


@pytest.mark.parametrize("name", ALL)
def test_at_temperature_0_every_method_gives_the_argmax_text(name):
    texts = joint(ALL[name], Table(1), Table(2), Sampling(), tokens=12)
    assert texts == target_joint(Table(1), Sampling(), tokens=12)


@pytest.mark.parametrize("sampling", [Sampling(0.3), Sampling(2.0, top_k=5, top_p=0.9)], ids=str)
def test_a_seed_has_one_text_and_without_draws_of_the_drafter_that_of_autoregressive(sampling):
    loop, unsampled, p, q = asyncio.new_event_loop(), set[str](), Table(61, 8), Table(62, 8)

    def text(decode: Method, seed: int) -> tuple[tuple[int, ...], bool]:
        run = ToyRun(p, q, Draws(seed, 0), sampling, 20)
        loop.run_until_complete(decode(run))
        return run.text, any(j.rule == "ratio" for v in run.verdicts for j in v.judged)

    plain = [text(method("autoregressive"), seed)[0] for seed in (0, 1)]
    assert plain[0] != plain[1]
    for config in METHODS:
        decode = configured(config.split(" ", 1)[1])
        mine, sampled = text(decode, 1)
        assert mine == (text(decode, 1)[0] if sampled else plain[1]), config
        unsampled |= set() if sampled else {config.split()[1]}
    assert unsampled == {config.split()[1] for config in METHODS} - {"pearl"}
    loop.close()
