"""Engines side by side, copies of the drafter, drafting heads and copied n-grams."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from specscope.engine.cluster.capacity import spread
from specscope.engine.errors import UsageError
from specscope.engine.methods import BASELINE
from specscope.engine.simulate.profile import profile_of
from specscope.traces.advise.answer import Answer, advise, estimates, plain_estimate
from specscope.traces.advise.others import KINDS, Other
from specscope.traces.advise.places import PLAIN, Estimate, Seating, entrants, plain_ways, ways
from specscope.traces.advise.question import Question
from specscope.traces.advise.runs import run, speed, total_speed
from specscope.traces.advise.words import facts, headline, notes
from specscope.traces.facts.closed_forms import speculative_tokens

SMALL = Question(4, "H100", "qwen3-8b", "qwen3-0.6b", rates=(0.6, 0.8), context=64, tokens=64)
OTHERS = replace(SMALL, count=2, others=(Other("head", (0.8, 0.8)), Other("ngrams", (0.4, 0.4))))


@cache
def answered(question: Question) -> Answer:
    return advise(question)


def entrant(short: str, question: Question = SMALL):
    return next(e for e in entrants(question) if e.short == short)


# -- engines side by side


def test_engines_take_cards_and_sequences_apart():
    found = {(w.engines, w.target, w.total) for w in plain_ways(SMALL, 4)}
    assert found == {(1, 1, 1), (1, 2, 2), (1, 4, 4), (2, 1, 2), (2, 2, 4), (4, 1, 4)}
    assert {w.engines for w in plain_ways(SMALL)} == {1}
    assert {w.engines for w in plain_ways(SMALL, 3)} == {1, 2}
    places = {(w.engines, w.target, w.cards, w.total) for w in ways(SMALL, entrant("SSD"), 2)}
    assert places == {(1, 1, 2, 2), (1, 2, 3, 3), (1, 2, 4, 4), (2, 1, 2, 4)}


def test_an_engine_has_its_share_of_the_sequences_and_all_engines_have_the_speed_of_all():
    two = Estimate(SMALL, Seating(PLAIN, 1, 0, 1, engines=2), 8)
    one = Estimate(SMALL, Seating(PLAIN, 1, 0, 1), 4)
    assert two.each == 4
    assert two.plain_us == one.plain_us
    assert two.tokens_per_second == pytest.approx(2 * one.tokens_per_second)
    assert total_speed(two, run(two, 0)) == pytest.approx(2 * speed(run(one, 0)))
    assert Estimate(SMALL, two.way, 7).each == 4  # the one with the most is as slow as all
    assert two.kept == one.kept


def test_a_method_that_cannot_go_in_lockstep_has_an_engine_for_each_sequence():
    two = answered(replace(SMALL, batches=(2, 4), methods=("ssd",)))
    (option,) = [o for o in two.at(2) if o.key == "ssd"]
    assert (option.way.engines, option.way.total) == (2, 4)
    single = Estimate(two.question, option.way._replace(engines=1), 1)
    speeds = [speed(run(single, seed)) for seed in (0, 1)]
    assert option.tokens_per_second == pytest.approx(sum(speeds))
    assert [key for key in two.left_out if key[1] == 4] == [("SSD", 4)]
    assert option.way.words().startswith("2 engines, each with the target on one card, the drafter on one")
    memory = option.facts()["memory"]
    assert {*memory} == {"gpu0", "gpu1", "gpu2", "gpu3"}
    assert memory["gpu0"] == memory["gpu2"]


def test_plain_decoding_has_engines_side_by_side_too():
    """Two engines each read all weights, but launch as much at once, and wait for no all-reduce."""
    question = replace(SMALL, count=2, card="RTX-4090", target="qwen3-0.6b", batches=(64,))
    found = [Estimate(question, way, 64) for way in plain_ways(question, 64)]
    best = plain_estimate(question, 64)
    assert best.tokens_per_second == max(one.tokens_per_second for one in found)
    assert best.way.engines == 2


# -- copies of the drafter


def test_copies_draft_for_a_share_of_the_sequences_with_all_weights_on_each_card():
    way = Seating(entrant("SD"), 2, 2, 2)
    split, copies = (Estimate(SMALL, w, 8) for w in (way, way._replace(copies=True)))
    alone = Estimate(SMALL, Seating(entrant("SD"), 1, 1, 1), 4)
    assert copies.draft_us == alone.draft_us
    assert copies.verify_us(4) == split.verify_us(4)
    (_, part), (_, whole) = split.kept["gpu0"], copies.kept["gpu0"]
    drafter = alone.latency.drafter
    assert whole.weights == spread(drafter, 1)[0].weights > part.weights
    assert whole.cache == pytest.approx(alone.kept["gpu0"][1].cache, rel=0.01)
    assert copies.way.words() == "the target on 2 cards, copies of the drafter on the same"


def test_a_single_sequence_has_no_use_for_copies():
    for batch, kinds in ((1, {False}), (2, {False, True})):
        found = {way.copies for way in ways(SMALL, entrant("SD"), batch) if way.engines == 1}
        assert found == kinds
    assert not any(w.copies for w in ways(SMALL, entrant("SD"), 4) if w.engines == 4)


def test_a_target_is_not_split_in_copies():
    fields = {"layers": 2, "dim": 64, "ffn": 64, "kv_heads": 1, "head_dim": 64, "vocab": 100}
    model = {"title": "m", "source": "typed", "dtype": "bfloat16", "gpus": 2, "split": "copies", **fields}
    table = {
        "name": "mine",
        "title": "mine",
        "source": "typed",
        "default": "p",
        "gpus": 2,
        "hardware": {"card": "H100"},
        "step": {"communicate_ms": 0.1, "sample_ms": 0.1, "source": "typed"},
        "models": {"m": model},
        "pairs": {"p": {"title": "p", "target": "m", "drafter": "m", "source": "typed"}},
    }
    with pytest.raises(UsageError, match=r"pairs\.p\.target is m, split in copies; only a drafter may be"):
        profile_of("mine", table)


# -- heads and n-grams


def test_a_head_has_the_bytes_and_the_time_of_one_layer():
    head = Estimate(OTHERS, Seating(KINDS["head"].entrant, 1, 1, 1), 1)
    target, drafter = head.latency.target, head.latency.drafter
    assert (drafter.layers, drafter.dim, drafter.vocab) == (1, target.dim, target.vocab)
    hardware = head.latency.hardware
    read = 2 * (target.layer_weights + target.vocab * target.dim)
    least = hardware.stream_us(read) + hardware.layer_us + hardware.host_us
    assert least < head.draft_us < 1.05 * least
    layer = 2 * target.layer_weights
    assert layer < head.kept["gpu0"][1].weights < layer + 2.1 * target.vocab * target.dim
    assert head.question.rates == (0.8, 0.8)


def test_n_grams_take_neither_time_nor_memory():
    one = Estimate(OTHERS, Seating(KINDS["ngrams"].entrant, 1, 1, 1), 1)
    gamma = one.config["gamma"]
    speedup = speculative_tokens(0.4, gamma) * one.plain_us / one.verify_us(1 + gamma)
    assert one.speedup() == pytest.approx(speedup, rel=0.02)
    assert one.kept["gpu0"][1].weights < 1e6


def test_they_are_compared_with_the_drafter_and_the_answer_says_what_it_assumes():
    answer = answered(OTHERS)
    titles = {o.title for o in answer.at(1)}
    assert {"Drafting head", "Copying n-grams", "Speculative decoding", "SSD"} <= titles
    assert answer.best(1).title == "Drafting head"
    assert headline(answer, 1).startswith("With one sequence, Drafting head is the fastest: ")
    told = [*notes(answer, 1)]
    assert all(kind.assumed in told for kind in KINDS.values())
    assert facts(answer)["others"] == {"head": [0.8, 0.8], "ngrams": [0.4, 0.4]}
    for option in answer.at(1):
        if option.title in ("Drafting head", "Copying n-grams"):
            one = Estimate(OTHERS, option.way, 1)
            assert option.tokens_per_second == pytest.approx(one.tokens_per_second, rel=0.08)
    without = answered(replace(OTHERS, others=()))
    assert [o.title for o in without.at(1)] == [
        o.title for o in answer.at(1) if o.title not in ("Drafting head", "Copying n-grams")
    ]


def test_they_lie_with_the_target_only():
    for kind, drafters in (("head", {1, 2}), ("ngrams", {1})):
        found = [*ways(OTHERS, KINDS[kind].entrant)]
        assert {way.drafter for way in found} == drafters
        assert all(way.cards == way.target for way in found)
    assert Seating(KINDS["head"].entrant, 2, 2, 2).words() == (
        "the target on 2 cards, a head of one layer on the same"
    )
    assert estimates(OTHERS, 1)[-1].way.words() == "the target on one card, drafts copied from the text"


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((Other("heads", (0.5, 0.5)),), "the kind of drafts is 'heads'; choose one of head, ngrams"),
        ((Other("head", (0.5, 1.5)),), "the acceptance rate is 1.5; it must be at least 0.01"),
        ((Other("head", (0.7, 0.6)),), "the acceptance rate is 0.7:0.6; the lowest one comes first"),
        ((Other("head", (0.5, 0.5), (2.0,)),), "the acceptance rate of a place is 2"),
    ],
)
def test_a_wrong_kind_or_rate_is_refused(others, words):
    with pytest.raises(UsageError) as caught:
        replace(SMALL, others=others)
    assert words in str(caught.value)


def test_baseline_is_in_every_answer():
    assert [o.key for o in answered(OTHERS).at(1)].count(BASELINE) == 1
