"""The choice of a draft: the fastest of all trees, by brute force."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean

import pytest

from specscope.engine.cluster.probing import ROWS
from specscope.engine.drafting.pace import Probe
from specscope.engine.drafting.planner import (
    LONGEST,
    best_dynamic,
    best_parallel,
    best_tree,
    best_wide,
)
from specscope.engine.drafting.static import MOST_NODES, spelled, tree
from specscope.engine.drafting.tree import Ranks
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile
from specscope.traces.facts.closed_forms import best_gamma, pearl_speedup
from specscope.traces.facts.metrics import measure
from specscope.traces.lab.sweep import ScriptedRunner, SweepRun


def all_trees(most: int, width: int, depth: int) -> list[frozenset[Ranks]]:
    """Return all trees of 1 to `most` nodes, `width` children per node and `depth` levels."""
    nodes = [path for level in range(1, depth + 1) for path in product(range(width), repeat=level)]
    found, grown = set[frozenset[Ranks]](), {frozenset[Ranks]()}
    for _ in range(most):
        grown = {old | {node} for old in grown for node in nodes if fits(old, node)}
        found |= grown
    return list(found)


def fits(nodes: frozenset[Ranks], node: Ranks) -> bool:
    """Return whether a tree stays a tree with this further node."""
    *above, rank = node
    elder = rank == 0 or (*above, rank - 1) in nodes
    return node not in nodes and elder and (not above or tuple(above) in nodes)


def tokens(nodes: frozenset[Ranks], rates: list[list[float]]) -> float:
    total = 1.0
    for node in nodes:
        chance = 1.0
        for level, rank in enumerate(node):
            chance *= rates[level][rank]
        total += chance
    return total


def falling(seed: int, levels: int, width: int) -> list[list[float]]:
    numbers = random.Random(seed)
    return [sorted((numbers.random() / 2 for _ in range(width)), reverse=True) for _ in range(levels)]


def probe(rates: list[list[float]] | None = None, **facts: object) -> Probe:
    """Return a measurement in which rows of the target are nearly free up to 4."""
    usual: dict[str, object] = {
        "verify": ((1, 0.1), (4, 0.101), (8, 0.15), (65, 1.0)),
        "first": ((1, 0.02),),
        "later": ((1, 0.015), (4, 0.03)),
        "outside": 0.001,
        "rates": tuple(map(tuple, rates or [[0.6, 0.2], [0.5, 0.1]])),
        "orders": (),
        "rounds": 20,
    }
    return Probe(**{**usual, **facts})  # type: ignore[arg-type]


def line(points: tuple[tuple[int, float], ...], x: int) -> float:
    """Interpolate, as a second opinion on numpy's function."""
    if x <= points[0][0] or len(points) == 1:
        return points[0][1]
    for (a, low), (b, high) in pairwise(points):
        if x <= b:
            return low + (high - low) * (x - a) / (b - a)
    return points[-1][1]


@pytest.mark.parametrize("seed", range(5))
def test_the_planned_tree_is_the_fastest_of_all_trees(seed):
    rates = falling(seed, 3, 2)
    facts = probe(rates, verify=((1, 0.1), (3, 0.11), (6, 0.16)))

    def speed(nodes: frozenset[Ranks]) -> float:
        parents = Counter(len(path) for path in {node[:-1] for node in nodes})
        draft = facts.first[0][1] + sum(line(facts.later, parents[i]) for i in range(1, len(parents)))
        seconds = draft + line(facts.verify, len(nodes) + 1) + facts.outside
        return tokens(nodes, rates) * (0.1 + facts.outside / 2) / seconds

    best = max(map(speed, all_trees(5, 2, 3)))
    plan = best_tree(facts)
    assert plan.speedup == pytest.approx(best)
    assert speed(frozenset(plan.paths)) == pytest.approx(best)
    assert (plan.nodes, plan.levels) == (len(plan.paths), max(map(len, plan.paths)))


def test_a_plan_is_no_larger_than_the_measured_verifications():
    facts = probe([[0.9, 0.9, 0.9, 0.9]] * 3, verify=((1, 0.1), (2, 0.1), (4, 0.1)))
    assert best_tree(facts).nodes == 3
    alone = probe([[0.9]], verify=((1, 0.1),))
    assert best_tree(alone).nodes == 1, "without a measured draft the smallest one is planned"
    slow = probe([[0.05, 0.0001], [0.05, 0.0001]])
    plan = best_tree(slow)
    assert plan.paths == ((0,),), "autoregressive decoding is faster"
    assert plan.speedup == pytest.approx(1.05 * 0.1005 / (0.02 + 0.1 + 0.001 / 3 + 0.001))


def test_a_draft_of_one_forward_costs_what_its_levels_cost():
    for seconds, levels in ((0.5, 1), (0.011, 3)):
        facts = probe([[0.9]] * 3, first=((1, 0.01), (3, seconds)), later=())
        assert best_tree(facts).levels == levels


def test_a_dynamic_tree_keeps_the_nodes_that_pay():
    orders = ((0.6, 0.2, 0.0, 0.0), (0.6, 0.4, 0.2, 0.0, 0.0, 0.0))
    facts = probe(orders=orders, verify=((1, 0.1), (64, 0.1)), later=((4, 0.001),), outside=0.0)
    plan = best_dynamic(facts, top=4)
    assert (plan.levels, plan.nodes, plan.paths) == (2, 3, ())
    assert plan.tokens == pytest.approx(2.2)
    assert best_dynamic(facts, top=4, levels=1).nodes == 2
    assert best_dynamic(facts, top=4, nodes=1).levels == 1
    dear = probe(orders=orders, verify=((1, 0.1), (64, 0.1)), later=((4, 1.0),), outside=0.0)
    assert best_dynamic(dear, top=4).levels == 1


def test_a_wide_tree_has_the_width_and_the_levels_that_pay():
    rates = [[0.5, 0.25], [0.5, 0.25], [0.5, 0.25]]
    costs = {"verify": ((1, 0.1), (64, 0.1)), "first": ((1, 0.0),), "later": ((1, 0.0),), "outside": 0.0}
    free = probe(rates, **costs)
    plan = best_wide(free)
    assert (plan.width, plan.levels, plan.nodes) == (2, 3, 6)
    assert plan.tokens == pytest.approx(1 + 0.75 + (0.25 + 0.125) + (0.125 + 0.0625)), "2 paths per level"
    assert plan.speedup == pytest.approx(plan.tokens)
    chain = best_wide(free, width=1)
    assert (chain.width, chain.levels, chain.nodes) == (1, 3, 3)
    assert chain.tokens == pytest.approx(best_tree(probe([[0.5]] * 3, **costs)).tokens)
    assert best_wide(free, levels=2).levels == 2
    assert best_wide(free, levels=9).levels == 3, "no more levels than were measured"
    dear = probe(rates, verify=((1, 0.1), (2, 0.1), (3, 0.5)), first=((1, 0.01),), later=((1, 0.2),))
    assert (best_wide(dear).width, best_wide(dear).levels) == (1, 1)


def test_a_planned_tree_is_spelled_as_the_setting_reads_it():
    paths = best_tree(probe()).paths
    assert tree(spelled(paths)).paths == paths
    assert tree("[[1], [0], [0, 0]]").paths == ((0,), (1,), (0, 0))
    chain = [[0] * n for n in range(1, 40)]
    assert tree(spelled(chain)).depth == 39


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[0],[2]]", r"\[2\] has no elder sibling; add \[1\]"),
        ("[[0],[1,0]]", r"\[1, 0\] has no parent; add \[1\]"),
        ("[[0],[0,0],[0]]", r"\[0\] is named twice"),
        ("[[0],", "is wrong"),
        ("[" * 300 + "]" * 300, "is wrong"),
        ("[]", "list of nodes"),
        ("[0]", "list of nodes"),
        ("[[true]]", "list of nodes"),
        ("[[0],[-1]]", "list of nodes"),
        (spelled([(i,) for i in range(MOST_NODES + 1)]), "it has 65 nodes; .* at most 64"),
        ("auto", "choose one of eagle, medusa"),
    ],
)
def test_wrong_trees_are_refused_in_one_line(text, words):
    with pytest.raises(UsageError, match=words) as error:
        tree(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("rate", "c"), [(0.3, 7), (0.6, 3.4), (0.8, 5), (0.9, 5.4)])
def test_pearls_planned_draft_is_the_closed_forms_best_gamma(rate, c):
    """With free rows and one rate at all levels (PEARL, section 4.4.1)."""
    draft = ((1, 1 / c),)
    facts = probe([[rate]] * 8, verify=((1, 1.0), (64, 1.0)), first=draft, later=draft, outside=0.0)
    plan = best_parallel(facts)
    assert plan.levels == best_gamma(pearl_speedup, rate, c, limit=LONGEST)
    assert plan.speedup == pytest.approx(pearl_speedup(rate, plan.levels, c))
    for extreme, speedup in ((0.0, 1), (1.0, 16)):
        facts = probe([[extreme]], verify=((1, 1.0), (64, 1.0)), first=((1, 0.25),), later=(), outside=0.0)
        assert best_parallel(facts).speedup == pytest.approx(speedup, rel=0.01)


@pytest.mark.parametrize("c", [2, 8, 20])
def test_on_one_gpu_a_plan_for_pearl_counts_both_times_and_promises_no_more_than_turns(c):
    draft = {"first": ((1, 1 / c),), "later": ((1, 1 / c),), "outside": 0.0}
    facts = probe([[0.8]] * 16, verify=((1, 1.0), (64, 1.0)), **draft)
    apart, shared = best_parallel(facts), best_parallel(replace(facts, shared=True))
    assert shared.shared
    assert not apart.shared
    assert shared.levels <= apart.levels
    assert shared.speedup <= min(best_tree(facts).speedup, apart.speedup)


def test_pearls_planned_draft_is_shorter_where_rows_cost_more_than_they_bring():
    draft = {"first": ((1, 0.1),), "later": ((1, 0.1),), "outside": 0.0}
    free = best_parallel(probe([[0.4]] * 8, verify=((1, 1.0), (64, 1.0)), **draft))
    dear = best_parallel(probe([[0.4]] * 8, verify=((1, 1.0), (8, 1.4), (64, 4.0)), **draft))
    assert 1 < dear.levels < free.levels
    assert dear.speedup < free.speedup


MIXTURE = """
name = "mixture"
title = "One H100 for each model"
source = "test"
default = "pair"
gpus = 2
[hardware]
card = "H100"
[step]
communicate_ms = 0
sample_ms = 0
source = "test"
[models.target]
shape = "{shape}"
dtype = "bfloat16"
[models.drafter]
shape = "qwen3-0.6b"
dtype = "bfloat16"
[pairs.pair]
title = "Qwen3"
target = "target"
drafter = "drafter"
drafter_speed = {speed}
source = "test"
"""


def with_c(path: Path, shape: str, c: float) -> Profile:
    """Return a profile whose drafter is c times as fast as a target of this shape."""
    speed = 1.0
    for _ in range(2):
        path.write_text(MIXTURE.format(shape=shape, speed=speed), encoding="utf-8")
        profile = Profile.load(str(path))
        speed = c * profile.latency().target.speed
    return profile


def test_a_mixtures_planned_draft_is_the_best_and_shorter_than_a_dense_models_of_equal_c(tmp_path):
    """Each further row reads more experts: 4 rows take 1.5 plain steps, a dense model's 1.01."""
    rate, planned, speeds = 0.8, list[int](), list[list[float]]()
    for shape in ("qwen3-30b-a3b", "qwen3-14b"):
        profile = with_c(tmp_path / "mixture.toml", shape, 4.0)
        latency, run = profile.latency(), ScriptedRunner(profile, tokens=256)
        verify = tuple((rows, latency("target", rows, 32) / 1e6) for rows in ROWS)
        draft = ((1, latency("drafter", 1, 32) / 1e6),)
        facts = probe([[rate]] * 8, verify=verify, first=draft, later=draft, outside=0.0)
        planned.append(best_tree(facts).levels)
        runs = [
            [run(SweepRun("speculative", {"gamma": gamma}, seed, rate, "")) for seed in range(3)]
            for gamma in range(1, 7)
        ]
        speeds.append([fmean(measure(one).tokens_per_second or 0.0 for one in found) for found in runs])
        assert speeds[-1][planned[-1] - 1] > 0.97 * max(speeds[-1]), "runs of 3 seeds differ by 2 %"
    mixture, dense = planned
    assert mixture < dense
    assert speeds[0][mixture - 1] == max(speeds[0]) > speeds[0][dense - 1]
