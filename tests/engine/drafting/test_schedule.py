"""The lengths of drafts as a function of verdicts; `test_joint.py` proves them exact."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.schedule import MOST, WINDOW, Ask, Average, Schedule, fixed, heuristic, ladder
from specscope.engine.types import Draft, DraftToken, Verdict

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


def test_the_heuristic_is_two_longer_after_a_full_draft_and_one_shorter_else():
    lengths, found = Schedule(2, heuristic), list[int]()
    for accepted, n in ((2, 2), (4, 4), (1, 6), (0, 5), (0, 4)):
        lengths.learn(verdict(accepted, n))
        found.append(lengths.next().tokens)
    assert found == [4, 6, 5, 4, 3]
    for _ in range(9):
        lengths.learn(verdict(0, 1))
    assert lengths.next().tokens == 1


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
