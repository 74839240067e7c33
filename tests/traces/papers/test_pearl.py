"""PEARL's tables from the rates of its Table 7."""

import numpy as np
import pytest

from specscope.traces.papers import pearl_speeds as pearl
from specscope.traces.papers.pearl import Step, followed
from specscope.traces.papers.rows import numbers


def test_the_rate_of_codellama_7_70_is_table_7s():
    assert pearl.pair_of("codellama-7-70").rate == pytest.approx(0.964, abs=0.0005)
    assert pearl.speculative(pearl.pair_of("codellama-7-70"), 10) == pytest.approx(3.19, abs=0.005)


def test_table_9_is_computed_from_the_drafts_of_its_steps():
    words = [draft.split() for draft in numbers("pearl")["Table 9"]["drafts"]]
    words[3][0] = "wrong"
    steps = followed(words, numbers("pearl")["Table 9"]["text"].split())
    assert steps[3] == Step(1, post=False)


@pytest.mark.parametrize(("gamma", "gain"), [(5, 1.13), (7, 1.15)])
def test_a_rate_that_varies_along_the_text_makes_pearl_faster(gamma, gain):
    """The reason given for PEARL's misses: harmonic means of two halves against one rate."""
    pair = pearl.pair_of("llama-2-7-70")
    halves = [pair._replace(rate=rate) for rate in (0.98, 0.50)]
    mixed = max(2 / sum(1 / pearl.speculative(half, g) for half in halves) for g in range(1, 33))
    uniform = pearl.pair_of("llama-2-7-70", mixed)
    faster = 2 / sum(1 / pearl.pearl(half, gamma) for half in halves)
    assert faster / pearl.pearl(uniform, gamma) == pytest.approx(gain, abs=0.005)


@pytest.mark.parametrize("rate", [0.6, 0.9])
def test_runs_of_independent_tokens_give_the_closed_forms(rate):
    pair = pearl.Pair(50.0, 12.0, 1.9, rate)
    lengths = np.random.default_rng(0).geometric(1 - rate, 200_000) - 1
    assert pearl.speculative_varying(pair, lengths, 5) == pytest.approx(pearl.speculative(pair, 5), rel=0.01)
    assert pearl.pearl_varying(pair, lengths) == pytest.approx(pearl.pearl(pair), rel=0.01)


def test_runs_of_a_recorded_text_vary_more_than_independent_ones():
    """And PEARL gains from it where speculative decoding is as fast; the bound holds for all."""
    pair = pearl.pair_of("llama-2-7-70", 2.0)
    lengths = pearl.runs_of_speed(pair, 2.0)
    best = max(pearl.speculative_varying(pair, lengths, gamma) for gamma in range(1, 33))
    assert best == pytest.approx(pearl.best_speculative(pair), rel=0.01)
    mean = lengths.mean()
    assert lengths.std() > 1.2 * (mean * (mean + 1)) ** 0.5
    assert pearl.pearl_varying(pair, lengths) > 1.03 * pearl.pearl(pair)
    assert pearl.pearl_varying(pair, lengths) < pearl.most_varying(pair, mean)
    for mean in (8.0, 25.0):
        assert pearl.runs_of_mean(mean).mean() == pytest.approx(mean, rel=0.08)
