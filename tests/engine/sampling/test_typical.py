"""Typical acceptance equals a slow reference, and is lossy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from specscope.engine.methods import METHODS
from specscope.engine.sampling.accept import judge
from specscope.engine.sampling.draws import Draws
from specscope.engine.types import Draft, DraftToken, Sampling, Typical
from tests.engine.toy import Parallel, Table, rows, warp_plainly
from tests.engine.toy_draws import Fixed
from tests.engine.toy_joint import joint, target_joint
from tests.engine.toy_methods import SMALL, method

ONE, PAPER = Sampling(1.0), Typical(0.09, 0.3)
EXACT = 1e-9
SAMPLINGS = [ONE, Sampling(0.7), Sampling(1.6, top_k=3), Sampling(1.3, top_p=0.8)]
RULES = [PAPER, Typical(0.3, 0.9), Typical(0.0, 0.0), Typical(1.0, 1.0), Typical(0.25, 0.5)]


def decide(logits, draft, typical=PAPER, draws=None, sampling=ONE, **more):
    more |= {"position": 10, "sampling": sampling, "draws": draws or Fixed(), "typical": typical}
    return judge(logits, draft, lambda _: None, **more)


def tree(*nodes: tuple[int, int]) -> Draft:
    return Draft(tuple(DraftToken(*node) for node in nodes))


# the slow reference compares all paths of the tree, as the paper compares its candidates


def enough(p: np.ndarray, token: int, typical: Typical) -> bool:
    entropy = -sum(float(x) * math.log(x) for x in p if x > 0)
    return p[token] > min(typical.epsilon, typical.delta * math.exp(-entropy))


@dataclass
class Reference:
    ps: list[np.ndarray]
    """p after the prefix, and after each node."""
    tokens: list[tuple[int, int]]
    typical: Typical

    def paths(self) -> list[list[int]]:
        paths = list[list[int]]()
        for node, (_, parent) in enumerate(self.tokens):
            paths.append([*(paths[parent] if parent >= 0 else []), node])
        return paths

    def accepted(self, path: list[int]) -> list[int]:
        """Return the part of a candidate before its first improbable token."""
        kept = list[int]()
        for node in path:
            token, parent = self.tokens[node]
            if not enough(self.ps[parent + 1], token, self.typical):
                break
            kept.append(node)
        return kept

    def best(self) -> list[int]:
        """Return the longest accepted part; among equals the likeliest, then the first."""
        candidates = [self.accepted(path) for path in self.paths()] + [[]]
        length = max(map(len, candidates))
        longest = [path for path in candidates if len(path) == length]
        return max(longest, key=self.likelihood)

    def likelihood(self, path: list[int]) -> float:
        return sum(math.log(self.ps[self.tokens[n][1] + 1][self.tokens[n][0]]) for n in path)


def random_tree(rng: np.random.Generator, vocabulary: int) -> list[tuple[int, int]]:
    tokens, taken = list[tuple[int, int]](), set[tuple[int, int]]()
    for _ in range(int(rng.integers(0, 14))):
        node = (int(rng.integers(vocabulary)), int(rng.integers(-1, len(tokens))))
        if node not in taken:
            taken.add(node)
            tokens.append(node)
    return tokens


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("typical", RULES, ids=str)
def test_the_accepted_path_equals_the_reference(typical, sampling):
    rng, lengths = np.random.default_rng(7), set[int]()
    for seed in range(75):
        tokens = random_tree(rng, 6)
        logits = torch.from_numpy(rng.normal(size=(len(tokens) + 1, 6)) * rng.choice([0.5, 1.5, 3.0]))
        ps = [warp_plainly(row, sampling) for row in logits]
        best = Reference(ps, tokens, typical).best()
        draws = Draws(seed, 0)
        verdict = decide(logits, tree(*tokens), typical, draws, sampling)
        assert list(verdict.nodes) == best
        assert verdict.accepted == tuple(tokens[n][0] for n in best)
        plain = decide(
            logits[[best[-1] + 1 if best else 0]], Draft.empty(), None, _Later(seed, len(best)), sampling
        )
        assert verdict.own == plain.own, "the target draws the next token as it always does"
        lengths.add(len(best))
    assert len(lengths) > 1


class _Later(Draws):
    """Draws some positions further on."""

    def __init__(self, seed: int, further: int) -> None:
        super().__init__(seed, 0)
        self._further = further

    def value(self, key) -> float:
        return super().value(key._replace(position=key.position + self._further))


# the outcome of each node


def test_a_token_is_accepted_if_p_is_above_the_bound():
    p = [0.5, 0.25, 0.125, 0.125]  # exp(-H) = 0.2973
    chain = [tree((t, -1)) for t in range(4)]
    for typical, standing in [
        (Typical(0.25, 1.0), [0]),
        (Typical(0.2499, 1.0), [0, 1]),
        (Typical(0.124, 1.0), [0, 1, 2, 3]),
        (Typical(1.0, 0.84), [0, 1]),
        (Typical(1.0, 0.85), [0]),
        (Typical(0.0, 1.0), [0, 1, 2, 3]),
    ]:
        verdicts = [decide(rows(p, p), c, typical, Fixed(target_10=0.1, target_11=0.1)) for c in chain]
        assert [t for t, v in enumerate(verdicts) if v.accepted] == standing, typical


def test_among_equally_long_paths_the_likeliest_wins_then_the_first():
    half = [0.5, 0.5]
    nodes = [(0, -1), (1, -1), (0, 0), (1, 0), (0, 1)]
    for first, later, kept, best in [
        ([0.5, 0.5], [half, half], 2, (0,)),
        ([0.4, 0.6], [half, half], 2, (1,)),
        # a path of two tokens beats a likelier one of one; of two, the larger product wins
        ([0.2, 0.8], [[0.7, 0.3], [0.15, 0.85], half, half, half], 4, (0, 2)),
        ([0.2, 0.8], [[0.7, 0.3], [0.15, 0.85], half, half, half], 5, (0, 2)),  # 0.2 * 0.7 > 0.8 * 0.15
        ([0.2, 0.8], [[0.7, 0.3], [0.2, 0.8], half, half, half], 5, (1, 4)),  # 0.2 * 0.7 < 0.8 * 0.2
    ]:
        verdict = decide(rows(first, *later), tree(*nodes[:kept]), draws=Fixed(target_11=0.9, target_12=0.9))
        assert verdict.nodes == best


def test_every_node_has_one_decision_with_its_rule():
    #        0 (0) - 2 (0)        4 (2) is ruled out
    # prefix 1 (1) - 3 (1)        is enough, but its path is less likely
    nodes = [(0, -1), (1, -1), (0, 0), (1, 1), (2, -1), (0, 4)]
    p = [0.6, 0.39, 0.01]
    verdict = decide(rows(*[p] * 7), tree(*nodes), draws=Fixed(target_12=0.3))
    assert (verdict.nodes, verdict.own, verdict.origin) == ((0, 2), 0, "bonus")
    decisions = [(d.node, d.rule, d.outcome, d.p, d.position) for d in verdict.judged]
    nan = pytest.approx(math.nan, nan_ok=True)
    assert decisions == [
        (1, "typical", "discarded", pytest.approx(0.39), 10),
        (4, "typical", "rejected", pytest.approx(0.01), 10),
        (0, "typical", "accepted", pytest.approx(0.6), 10),
        (2, "typical", "accepted", pytest.approx(0.6), 11),
        (-1, "target", "bonus", pytest.approx(0.6), 12),
        (3, "typical", "discarded", nan, 11),
        (5, "typical", "discarded", nan, 11),
    ]
    assert [math.isnan(d.u) for d in verdict.judged] == [True] * 4 + [False, True, True]


def test_an_empty_draft_is_a_plain_step_and_without_bonus_nothing_is_drawn():
    p = [0.6, 0.4]
    verdict = decide(rows(p), Draft.empty(), draws=Fixed(target_10=0.7))
    assert [(d.token, d.rule, d.outcome) for d in verdict.judged] == [(1, "target", "plain")]
    verdict = decide(rows(p), tree((0, -1)), bonus=False)
    assert (verdict.accepted, verdict.own) == ((0,), None)


def test_at_temperature_0_typical_acceptance_is_rule_2():
    rng = np.random.default_rng(3)
    for _ in range(60):
        tokens = random_tree(rng, 4)
        logits = torch.from_numpy(rng.normal(size=(len(tokens) + 1, 4)))
        exact, typical = (decide(logits, tree(*tokens), t, sampling=Sampling()) for t in (None, PAPER))
        assert repr(exact) == repr(typical)


# the rule is lossy


def test_a_drafted_token_of_probability_one_half_is_always_emitted():
    """p = (1/2, 3/10, 1/5), and all drafts are token 0: the first token is always 0."""
    row, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log(), Parallel(1, 3)
    q.level = lambda context, level: torch.tensor([9.0, 0, 0], dtype=torch.float64)
    p = lambda context: row  # noqa: E731
    exact = joint(method("medusa", heads=4, tree="[[0]]"), p, q, ONE, 2)
    assert exact == pytest.approx(target_joint(p, ONE, 2), abs=EXACT)
    lossy = joint(method("medusa", heads=4, tree="[[0]]", acceptance="typical"), p, q, ONE, 2)
    assert lossy == pytest.approx({(0, 0): 0.5, (0, 1): 0.3, (0, 2): 0.2}, abs=EXACT)


def test_on_random_tables_the_distribution_differs_and_exact_is_the_default():
    p, q = Table(71), Parallel(74)
    theirs = target_joint(p, ONE)
    for config, lossy in [({}, False), ({"acceptance": "exact"}, False), ({"acceptance": "typical"}, True)]:
        mine = joint(method("medusa", heads=4, tree=SMALL, **config), p, q, ONE)
        distance = sum(abs(mine.get(t, 0) - theirs.get(t, 0)) for t in {*mine, *theirs}) / 2
        assert (distance > 0.1) == lossy
        assert lossy or distance < EXACT


# settings


def test_the_registry_knows_which_configs_are_lossy():
    medusa = METHODS["medusa"]
    assert medusa.lossless(medusa.Config())
    assert not medusa.lossless(medusa.configure({"acceptance": "typical", "epsilon": 1}))
    assert all(m.lossless(m.Config()) for m in METHODS.values()), "lossy only on request"
