"""Acceptance by place in the draft: virtual drafters, closed forms, answers, recorded runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.traces.advise.acceptance import acceptance_of, moved, parse_rates, single
from specscope.traces.advise.answer import BY_PLACE, REPLAYED, Answer, advise, estimates
from specscope.traces.advise.changes import changes
from specscope.traces.advise.places import PLAIN, Estimate, Seating, entrants
from specscope.traces.advise.question import Question
from specscope.traces.advise.runs import run, speed
from specscope.traces.advise.words import facts, headline, notes
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from specscope.traces.lab.sweep import ScriptedRunner, SweepRun
from tests.app.commands import IMPORTED

SMALL = Question(2, "H100", "qwen3-8b", "qwen3-0.6b", rates=(0.6, 0.8), context=64, tokens=64)
FALLING = (0.95, 0.6, 0.3)


def with_places(*places: float, **more) -> Question:
    expected = parse_rates(",".join(map(str, places)))
    return replace(SMALL, **expected._asdict(), **more)


@cache
def answered(question: Question) -> Answer:
    return advise(question)


def trace_of(method: str, rate, tokens: int = 512, **config):
    runner = ScriptedRunner("ratios", "c5", tokens, prompt=8)
    return runner(SweepRun(method, config, 3, rate, ""))


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("speculative", {"gamma": 5}),
        ("ssd", {"gamma": 5}),
        ("ssd", {"gamma": 5, "forks": 1}),
        ("easyspec", {"gamma": 5, "devices": 2}),
        ("tree", {"width": 1, "depth": 5}),
    ],
)
def test_a_scripted_drafter_has_the_rate_of_each_place(method: str, config: dict):
    levels = measure(trace_of(method, FALLING, **config)).per_level
    for level in levels:
        rate = FALLING[min(level.level, 3) - 1]
        assert level.rate == pytest.approx(rate, abs=3 * (rate * (1 - rate) / level.reached) ** 0.5)
    assert levels[0].reached > 100


def test_drafts_of_speculative_decoding_and_ssd_are_the_same_also_by_place():
    """A hit's branch is the draft that a miss makes: places begin anew after SSD's guesses, too."""
    found = [
        [(d.position, d.token, d.outcome) for d in trace_of(method, FALLING, gamma=4).decisions]
        for method in ("speculative", "ssd")
    ]
    assert found[0] == found[1]


def test_a_tree_has_the_rate_of_a_place_below_any_sibling():
    runner = ScriptedRunner("ratios", "c5", 256, doubt=0.5)
    first, second = measure(runner(SweepRun("tree", {"width": 4, "depth": 2}, 3, (0.5, 1.0), ""))).per_level
    assert 0.7 < first.rate < 0.9  # of siblings
    assert second.rate == 1


@pytest.mark.parametrize("method", ["pearl", "dsi"])
def test_a_draft_goes_on_where_nothing_is_verified_yet(method: str):
    """With a last rate of 0, a turn has at most as many accepted tokens as places before it."""
    config = {"gamma": 4} if method == "pearl" else {"lookahead": 2, "sp": 3}
    trace = trace_of(method, (1.0, 1.0, 1.0, 0.0), tokens=80, **config)
    own = sorted(c.position for c in trace.commits if c.origin != "accepted")
    assert {later - first for first, later in pairwise(own)} == {4}


@pytest.mark.parametrize("method", ["speculative", "pearl", "ssd", "dsi", "specbranch", "easyspec"])
def test_places_of_one_rate_run_as_that_rate(method: str):
    one, places = (trace_of(method, rate, 96) for rate in (0.7, (0.7, 0.7, 0.7)))
    assert one.decisions == places.decisions
    assert one.spans == places.spans


# -- answers


def test_places_of_one_rate_have_its_answer():
    one, places = (answered(replace(SMALL, rates=(0.7, 0.7), places=p)) for p in ((), (0.7,) * 4))
    for first, second in zip(one.at(1), places.at(1), strict=True):
        assert first.way == second.way
        assert first.config == pytest.approx(dict(second.config))
        assert tuple(first.speed) == pytest.approx(tuple(second.speed))


def test_falling_rates_have_shorter_drafts_and_lower_speed_ups_than_their_first_place():
    falling, first = answered(with_places(*FALLING)), answered(replace(SMALL, rates=(0.95, 0.95)))
    middle = answered(replace(SMALL, rates=(falling.question.rate,) * 2))
    lengths = {}
    for answer in (falling, middle, first):
        for option in reversed(answer.at(1)):
            if option.key in ("speculative", "easyspec"):
                lengths[option.key, id(answer)] = option.config["gamma"]
    for key in ("speculative", "easyspec"):
        assert lengths[key, id(falling)] <= 2 <= lengths[key, id(middle)] < lengths[key, id(first)]
    for option in falling.at(1)[:-1]:
        same = [o for o in first.at(1) if o.way == option.way]
        assert all(option.speed.mid < other.speed.mid for other in same if other.parts)


@pytest.mark.parametrize("key", ["speculative", "pearl", "ssd", "dsi", "easyspec"])
def test_the_closed_form_by_place_is_near_its_runs(key: str):
    answer = answered(with_places(*FALLING, methods=(key,), tokens=256))
    for option in answer.at(1):
        one = Estimate(answer.question, option.way, 1)
        least = 0.8 if option.key == "dsi" else 0.93
        assert least < option.tokens_per_second / one.tokens_per_second < 1.06


rates = st.floats(0.02, 0.98)


@settings(max_examples=12, deadline=None)
@given(st.lists(rates, min_size=2, max_size=6), st.integers(0, 5), rates)
def test_a_larger_rate_at_any_place_never_makes_the_closed_forms_slower(places, at, more):
    larger = [*places]
    larger[at % len(places)] = max(more, places[at % len(places)])
    best = []
    for found in (places, larger):
        question = replace(SMALL, rates=(0.5, 0.5), places=tuple(found))
        best.append(max(one.tokens_per_second for one in estimates(question, 1)))
    assert best[1] >= best[0] * (1 - 1e-9)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_larger_rate_at_a_place_makes_runs_slower_by_no_more_than_their_seeds(at: int):
    larger = [*FALLING]
    larger[at] = min(0.98, larger[at] + 0.2)
    usual, better = answered(with_places(*FALLING)), answered(with_places(*larger))
    for option in usual.at(1):
        same = [o for o in better.at(1) if o.way == option.way and o.parts]
        assert all(other.speed.mid >= option.parts["drafts"].low for other in same)


def test_places_move_with_their_single_rate():
    rate = single(FALLING)
    assert parse_rates("0.95,0.6,0.3").rates == pytest.approx((rate, rate), abs=1e-4)
    assert single(moved(FALLING, 0.5)) == pytest.approx(0.5, abs=1e-3)
    assert moved(FALLING, rate) == pytest.approx(FALLING)
    question = with_places(*FALLING)
    assert question.with_rate(0.4).rate == 0.4
    assert question.with_rate(0.4).places == pytest.approx(moved(FALLING, 0.4), abs=1e-3)
    found = [change for change in changes(answered(question), 1) if change.name == "acceptance"]
    assert found


def test_notes_say_that_places_count():
    answer = answered(with_places(*FALLING))
    told = [*notes(answer, 1)]
    assert "Drafts are drawn at rates by place." in told
    assert "The places of a draft have the rates 0.95, 0.60, 0.30; all later ones have the last." in told
    assert {o.drafts for o in answer.at(1) if o.parts} == {BY_PLACE}


# -- a recorded run


def recorded(tokens: int = 96):
    way = Seating(next(e for e in entrants(SMALL) if e.key == "speculative"), 1, 1, 1)
    one = Estimate(replace(SMALL, tokens=tokens), way, 1)
    return run(one, 7)


def test_the_drafts_of_a_recorded_run_are_replayed():
    trace = recorded()
    question = replace(SMALL, **acceptance_of(trace)._asdict(), context=300)
    answer = advise(question)
    drawn = [o for o in answer.at(1) if o.parts]
    assert {o.drafts for o in drawn} == {REPLAYED}
    assert f"The drafts of run {trace.header.run_id} are replayed." in [*notes(answer, 1)]
    own = {d.position - 64: d.outcome for d in trace.decisions if d.outcome in ("accepted", "rejected")}
    for option in drawn:
        (replay,) = option.traces
        assert replay.header.environment["whatif"]["run"] == trace.header.run_id
        assert len(replay.commits) == len(trace.commits)
        assert min(span.context for span in replay.spans if span.kind == "verify") >= 299
        if option.key in ("speculative", "easyspec", "pearl"):  # same tests, same outcomes
            tests = {d.position - 64: d.outcome for d in replay.decisions if d.node >= 0}
            both = [at for at in tests if at in own and tests[at] in ("accepted", "rejected")]
            assert len(both) > 20
            assert all(tests[at] == own[at] for at in both)
        plain = run(Estimate(question, Seating(PLAIN, 2, 0, 2), 1), 0)
        assert option.speed.mid == pytest.approx(speed(replay) / speed(plain), rel=0.02)


def test_a_batch_or_a_short_run_has_rates_by_place_and_says_why():
    trace = recorded()
    batch = advise(replace(SMALL, **acceptance_of(trace)._asdict(), batches=(2,), methods=("speculative",)))
    short = recorded(16)
    little = advise(replace(SMALL, **acceptance_of(short)._asdict(), methods=("speculative",)))
    for answer, reason in (
        (batch, "is replayed alone, and here are several sequences"),
        (little, "has 16 tokens, at least 48 tell a pattern"),
    ):
        (told,) = (line for line in notes(answer, *answer.question.batches) if "drawn" in line)
        assert told.startswith("Drafts are drawn at ")
        assert reason in told


def test_methods_that_an_imported_log_cannot_drive_have_its_rates(tmp_path):
    text = (IMPORTED / "speculation_profile.json").read_text(encoding="utf-8")
    log = tmp_path / "speculation_profile.json"
    log.write_text(text.replace('": 2', '": 50'), encoding="utf-8")
    (trace,) = read_traces(log).traces
    assert acceptance_of(trace).places == (0.75, 0.667, 0.5)
    answer = advise(replace(SMALL, **acceptance_of(trace)._asdict(), methods=("speculative", "ssd")))
    kinds = {o.key: o.drafts for o in answer.at(1) if o.parts}
    assert kinds["speculative"] == REPLAYED
    assert "SSD guesses the target's own tokens" in kinds["ssd"]
    told = " ".join(notes(answer, 1))
    assert f"The drafts of run {trace.header.run_id} are replayed for Speculative decoding." in told
    assert headline(answer, 1)
    assert facts(answer)["batches"]
