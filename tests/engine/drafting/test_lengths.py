"""The lengths of drafts: by verdicts, and under load. `test_joint.py` proves them exact."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.admission import (
    PRIOR,
    START,
    Costs,
    PlaceRates,
    Prospect,
    by_batch,
    by_survival,
    offered,
    speed,
)
from specscope.engine.drafting.schedule import MOST, WINDOW, Ask, Average, Schedule, fixed, heuristic, ladder
from specscope.engine.run.lengths import RoundLengths
from specscope.engine.run.policies import LENGTHS, SURVIVAL
from specscope.engine.types import Draft, DraftToken, Verdict

# By verdicts.


gammas = st.integers(1, MOST)
rules = st.sampled_from([lambda _: fixed, lambda _: heuristic, Average])


def drafted(*probabilities: float) -> Draft:
    return Draft(tuple(DraftToken(0, i - 1, probability=p) for i, p in enumerate(probabilities)))


def verdict(accepted: int, drafted_tokens: int) -> Verdict:
    draft = drafted(*[1.0] * drafted_tokens)
    return Verdict((0,) * accepted, 0, "plain", (), tuple(range(accepted)), sequence=0, draft=draft)


@given(gammas, rules, st.lists(st.tuples(st.integers(0, MOST), st.integers(0, MOST)), max_size=60))
def test_a_length_depends_on_the_tested_tokens_only(gamma, rule, tests):
    """Discarded tokens, which follow a rejected one, change nothing."""
    short, long = (Schedule(gamma, rule(gamma), off_below=0.5) for _ in range(2))
    for accepted, discarded in tests:
        rejected = discarded % 2
        short.learn(verdict(accepted, accepted + rejected))
        long.learn(verdict(accepted, accepted + rejected * discarded))
        assert short.next() == long.next()


@given(gammas, st.lists(st.tuples(st.integers(0, MOST), st.integers(0, 3), st.booleans()), max_size=60))
def test_longer_accepted_runs_never_lead_to_a_shorter_average(gamma, tests):
    one, other = Average(gamma), Average(gamma)
    assert (min(one.lengths), max(one.lengths)) == (1, min(MOST, 2 * gamma))
    assert gamma in one.lengths
    for accepted, more, rejected in tests:
        shorter, longer = one(gamma, accepted, rejected), other(gamma, accepted + more, rejected)
        assert one.lengths[0] <= shorter <= longer <= one.lengths[-1]
        assert {shorter, longer} <= set(one.lengths)


def test_the_lengths_of_gamma_7_are_those_of_sglang_and_14():
    assert ladder(7) == (1, 3, 7, 14)
    assert ladder(1) == (1, 2)
    assert ladder(5) == (1, 2, 5, 10)
    assert ladder(32) == (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(("runs", "lengths"), [(0, 1), (2, 2), (4, 5), (9, 10), (90, 10)])
def test_a_steady_run_of_accepted_tokens_leads_to_the_length_that_holds_it(runs, lengths):
    adaptive = Schedule(5, Average(5))
    for _ in range(60):  # of drafts of any length
        left = runs
        while left >= (asked := adaptive.next().tokens):
            adaptive.learn(verdict(asked, asked))
            left -= asked
        adaptive.learn(verdict(left, adaptive.next().tokens))
    assert adaptive.next().tokens == lengths


@given(gammas, st.floats(0, 1), st.lists(st.booleans(), max_size=3 * WINDOW))
def test_drafting_ends_for_good_when_the_rate_of_a_whole_window_is_low(gamma, bound, accepts):
    lengths, off = Schedule(gamma, fixed, off_below=bound), False
    for i, accepted in enumerate(accepts, 1):
        assert lengths.next() == Ask(0 if off else gamma)
        lengths.learn(verdict(int(accepted), 1))
        off |= i >= WINDOW and sum(accepts[i - WINDOW : i]) / WINDOW < bound
    assert lengths.next().tokens == (0 if off else gamma)


def test_the_rate_that_ends_drafting_is_of_tested_tokens_not_of_verdicts():
    lengths = Schedule(3, fixed, off_below=0.6)
    for _ in range(WINDOW):
        lengths.learn(verdict(1, 2))
    assert lengths.next() == Ask(0)


def test_a_verdict_without_a_draft_says_nothing():
    lengths = Schedule(3, heuristic)
    lengths.learn(verdict(0, 0))
    assert lengths.next() == Ask(3)


@pytest.mark.parametrize(
    ("ask", "probabilities", "room", "allowed", "stop"),
    [
        (Ask(2, 0.5), (0.9, 0.1), 9, 9, "full"),
        (Ask(3, 0.5), (0.9, 0.1), 9, 9, "uncertain"),
        (Ask(3, 0.5), (0.9, 0.1), 2, 9, "uncertain"),
        (Ask(3, 0.5), (0.9, 0.5), 2, 9, "end"),
        (Ask(3), (), 0, 9, "end"),
        (Ask(3), (0.9,), 2, 9, "cancelled"),
        (Ask(3), (), 2, 9, "cancelled"),
        (Ask(0), (), 9, 9, "off"),
        (Ask(3), (0.9,), 2, 1, "load"),
        (Ask(3), (), 2, 0, "load"),
        (Ask(3, 0.5), (0.1,), 9, 1, "uncertain"),
    ],
    ids=str,
)
def test_a_draft_has_the_reason_of_its_end(ask, probabilities, room, allowed, stop):
    assert ask.stop(drafted(*probabilities), room, allowed) == stop


# Under load.


FLAT = ((1, 1.0), (4, 1.0), (8, 5.0))
"""Up to 4 rows take 1 s; each further row takes 1 s more."""


def forecast(*survivals: list[float], nodes: list[float] | None = None, others: int = 0) -> Prospect:
    levels = len(survivals[0])
    return Prospect(np.array(survivals), np.array(nodes or [1.0] * levels), others)


# By hand.

FREE = Costs(((1, 1.0), (64, 1.0)))
TREE_DRAFTS = Costs(((1, 1.0), (64, 1.0)), ((1, 0.01), (2, 0.02)))
TWO = forecast([0.9], [0.9])


@pytest.mark.parametrize(
    ("rule", "known", "costs", "places", "speed"),
    [
        pytest.param(by_survival, TWO, Costs(FREE.target, judging=1.0), [0, 0], 2.0, id="judging costs"),
        pytest.param(by_batch, forecast([0.9, 0.8, 0.1], [0.9, 0.0, 0.0]), FREE, [3, 1], 4.7, id="as far as drafted"),
        pytest.param(by_batch, forecast(*[[0.5, 0.2, 0.1]] * 2), Costs(FLAT), [1, 1], 3.0, id="one length"),
        pytest.param(by_survival, forecast([0.9, 0.8]), Costs(FLAT), [2], 2.7, id="room of four rows"),
        pytest.param(by_survival, forecast([0.9, 0.8], others=2), Costs(FLAT), [1], 1.9, id="rows of prompts"),
        pytest.param(by_survival, forecast([0.9, 0.8], nodes=[2.0, 4.0]), Costs(FLAT), [1], 1.9, id="rows of nodes"),
        # level 1 is one row, level 2 the two nodes above: 2.7 tokens in 1 + 0.01 + 0.02 s
        pytest.param(by_survival, forecast([0.9, 0.8], nodes=[2.0, 4.0]), TREE_DRAFTS, [2], 2.7 / 1.03, id="levels"),
    ],
)  # fmt: skip
def test_places_are_admitted_as_long_as_tokens_per_second_rise(rule, known, costs, places, speed) -> None:
    found = rule(known, costs)
    assert found.places.tolist() == places
    assert found.speed == pytest.approx(speed)


def test_a_curve_goes_on_beyond_its_last_number() -> None:
    assert Costs(FLAT).verify(np.array([6, 8, 10])).tolist() == [3.0, 5.0, 7.0]


def test_rates_of_few_observations_lie_between() -> None:
    everyone = PlaceRates()
    assert everyone.survivals(2).tolist() == pytest.approx([START, START**2])
    own = PlaceRates(everyone)
    for _ in range(4):
        everyone.observe(1, 3)
    own.observe(0, 3)
    first = (4 + PRIOR * START) / (4 + PRIOR)
    second = (0 + PRIOR * first) / (4 + PRIOR)
    assert everyone.survivals(3).tolist() == pytest.approx([first, first * second, first * second * second])
    assert own.survivals(1).tolist() == pytest.approx([PRIOR * first / (1 + PRIOR)])


def _verdict(parents: Iterable[int], accepted: int = 0, sequence: int = 0) -> SimpleNamespace:
    """Return a verdict's fields that the lengths learn from."""
    draft = Draft(tuple(DraftToken(1, parent) for parent in parents))
    return SimpleNamespace(draft=draft, accepted=(0,) * accepted, sequence=sequence)


def test_nodes_are_counted_by_level() -> None:
    assert offered(_verdict((-1, -1, 0, 1, 1, 3))) == [2, 3, 1]
    assert offered(_verdict(())) == []


def test_by_survival_the_requests_differ_and_by_batch_they_do_not() -> None:
    costs = Costs(((1, 1.0), (64, 2.0)), ((1, 0.1), (64, 0.1)))
    for policy in LENGTHS:
        lengths = RoundLengths(policy, costs)
        for _ in range(40):
            lengths.learn([_verdict(range(-1, 3), 4, 0), _verdict(range(-1, 3), 0, 1)])
        found = lengths.choose({0: 4, 1: 4}, 0)
        assert (found[0] > found[1]) == (policy == SURVIVAL)
        assert lengths.choose({0: 0, 1: 0}, 0) == {0: 0, 1: 0}
        assert lengths.choose({}, 3) == {}


# Properties.

survivals = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3).map(np.cumprod)
curves = st.lists(st.floats(0.0, 1.0), min_size=24, max_size=24).map(
    lambda steps: tuple(enumerate((0.5 + np.cumsum(steps)).tolist(), 1))
)


@given(st.lists(survivals, min_size=1, max_size=5), curves, st.floats(0.0, 2.0))
def test_the_vector_form_is_the_papers_loop(rows: list[np.ndarray], curve, drafting: float) -> None:
    """Compare with algorithm 1 place by place, for each depth, and the best depth of all."""
    known, costs = Prospect(np.array(rows), np.ones(3), 0), Costs(curve, ((1, drafting), (64, drafting)))
    candidates = [[0] * len(rows)]
    for depth in (1, 2, 3):
        lengths, tokens, verified = [0] * len(rows), float(len(rows)), len(rows)
        best = tokens / (depth * drafting + costs.verify(np.array(verified)))
        order = sorted((-p, s, i) for s, row in enumerate(rows) for i, p in enumerate(row[:depth]))
        for negative, request, _ in order:
            tokens, verified = tokens - negative, verified + 1
            now = tokens / (depth * drafting + costs.verify(np.array(verified)))
            if now < best:
                break
            best, lengths[request] = now, lengths[request] + 1
        candidates.append(lengths)
    speeds = [speed(known, np.array(lengths), costs) for lengths in candidates]
    assert by_survival(known, costs).speed == pytest.approx(max(speeds))


@given(st.lists(survivals, min_size=1, max_size=5), curves, st.floats(0.0, 2.0), st.integers(0, 9))
def test_no_choice_is_slower_than_plain_decoding(rows, curve, drafting, others) -> None:
    known, costs = Prospect(np.array(rows), np.ones(3), others), Costs(curve, ((1, drafting), (64, drafting)))
    plain = len(rows) / float(costs.verify(np.array(len(rows) + others)))
    for rule in (by_batch, by_survival):
        found = rule(known, costs)
        assert found.speed >= plain * (1 - 1e-9)
        assert found.speed == pytest.approx(speed(known, found.places, costs))
        assert ((found.places >= 0) & (found.places <= 3)).all()
