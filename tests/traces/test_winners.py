"""The map of the fastest methods: races at a place, closed forms beside runs, winners, its JSON."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from specscope.engine.errors import UsageError
from specscope.engine.simulate.oracle import bernoulli_models
from specscope.engine.types import Limits
from specscope.traces.facts.closed_forms import block_speedup, ssd_speedup
from specscope.traces.lab.forms import FORMS, MapPlace
from specscope.traces.lab.plan import MapPlan, assumptions, default, whole
from specscope.traces.lab.winners import (
    Result,
    draw,
    facts,
    given_back,
    rate_of,
    results,
    winner,
    with_target,
)
from tests.traces.samples import bundled


def small(**changes) -> MapPlan:
    return replace(default(), **{"ratios": (5,), "rates": (0.8,), "devices": (2, 4), "seeds": 1, **changes})


def test_at_a_place_all_methods_decode_the_same_text_near_their_closed_forms():
    found = list(results(small(tokens=96), 5, 0.8))
    assert [(one.key, one.devices) for one in found] == [
        ("speculative", 1),
        *(("pearl", 2), ("ssd", 2), ("specbranch", 2)),
        *(("dsi", 2), ("dsi", 4)),
        *(("easyspec", 2), ("easyspec", 4)),
    ]
    texts = {tuple(trace.token_ids()) for one in found for trace in one.traces}
    assert len(texts) == 1
    for one in found:
        used = {span.device for span in one.traces[0].spans}
        assert len(used) == max(2, one.devices), one.key  # speculative decoding could take turns on one
        assert one.form == pytest.approx(one.speedup, rel=0.25), one.key
    order = sorted(found, key=lambda one: one.form)
    assert order[0].key == "speculative"
    assert winner(found, 5, 0.8, 2).best.key == "ssd"


def test_a_block_drafter_is_raced_where_it_is_named_and_drafts_a_block_in_one_forward():
    (block,) = (entrant for entrant in whole().methods if entrant not in default().methods)
    (one,) = results(small(tokens=256, methods=(block,)), 5, 0.8)
    assert one.form == block_speedup((0.8, 0.8 * default().later), 15, 5)
    assert one.form == pytest.approx(one.speedup, rel=0.1)
    trace, _ = one.traces
    drafts = [span for span in trace.spans if span.kind == "draft"]
    assert {span.end - span.start for span in drafts} == {20_000_000}, "a fifth of 100 ms, for any length"
    assert len(drafts) == len({span.step for span in drafts}), "one forward for a round"
    rows = {span.rows for span in drafts[: len(drafts) // 2]}
    assert rows == {16}, "the last token and fifteen masks"


def test_a_draft_has_the_length_that_is_best_by_the_closed_form():
    (one,) = results(small(tokens=8, methods=default().methods[2:3]), 5, 0.8)
    assert dict(one.config) == {"forks": 3, "gamma": 4}
    assert one.form == max(ssd_speedup(0.8, gamma, 5) for gamma in range(1, 25))


@pytest.mark.parametrize(
    ("c", "rate", "others"),
    [
        (5, 0.8, [(4, 4, 4), (5, 5, 1), (2, 8, 8)]),  # the old map's, and better ones
        (12, 0.9, [(12, 12, 4), (6, 12, 5)]),
    ],
)
def test_specbranch_has_the_length_of_a_branch_and_the_forks_that_are_best(c, rate, others):
    """By form and by run no other setting is faster, but for the spread of few runs."""
    plan = small(ratios=(c,), rates=(rate,), tokens=128, seeds=2, methods=default().methods[3:4])
    (best,) = results(plan, c, rate)
    at, form = MapPlace(plan.profile, c, rate, plan.doubt, plan.misses), FORMS["branches"]
    assert best.config["branches"] * best.config["length"] <= 64
    for gamma, length, branches in others:
        given = {"gamma": gamma, "length": length, "branches": branches, "threshold": rate}
        assert form(at, **given) <= best.form
        fixed = plan.methods[0]._replace(given=given, search={})
        (other,) = results(replace(plan, methods=(fixed,)), c, rate)
        assert other.speedup < 1.02 * best.speedup, given


def result(key: str, devices: int, speedup: float, form: float = 1.0, **more) -> Result:
    return Result(key, 5, 0.8, devices, {}, speedup, form, **more)


def test_a_winner_leads_over_the_best_other_method_on_so_many_devices():
    found = [result("a", 1, 2.0), result("b", 2, 3.0), result("b", 4, 6.0, 0.5), result("c", 8, 9.0)]
    on_two, on_four = winner(found, 5, 0.8, 2), winner(found, 5, 0.8, 4)
    assert (on_two.best.key, on_two.second.key, on_two.lead) == ("b", "a", 0.5)
    assert (on_four.best.devices, on_four.second.key, on_four.lead) == (4, "a", 2.0)
    assert winner(found, 5, 0.8, 8, "per device").best.key == "a"
    assert winner(found, 5, 0.8, 4, "closed forms").best.form == 1.0
    assert winner(found[3:], 5, 0.8, 2) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "clear"),
    [
        ((2.0, 2.2), (1.9, 1.8), True),
        ((2.0, 2.2), (2.1, 1.5), False),  # the other is faster for one seed
        ((2.0, 2.02), (1.99, 1.98), False),  # always faster, but hardly
    ],
)
def test_a_lead_is_clear_if_it_is_there_for_every_seed(mine, theirs, clear: bool):
    found = [result(key, 2, sum(x) / 2, speedups=x) for key, x in (("a", mine), ("b", theirs))]
    one = winner(found, 5, 0.8, 2)
    assert (one.best.key, one.clear) == ("a", clear)
    assert one.leads == pytest.approx([a / b - 1 for a, b in zip(mine, theirs, strict=True)])
    per_device = winner([found[0], replace(found[1], devices=1)], 5, 0.8, 2, "per device")
    assert per_device.best.key == "b"
    assert per_device.leads == pytest.approx([2 * b / a - 1 for a, b in zip(mine, theirs, strict=True)])
    assert winner(found, 5, 0.8, 2, "closed forms").leads == ()


KEYS = ("speculative", "pearl", "ssd", "specbranch", "dsi", "easyspec")


@pytest.mark.parametrize(
    ("target", "devices", "used"),
    [
        (1, (2, 4), ([1], [2], [2], [2], [2, 4], [2, 4])),
        (2, (2, 3, 8), ([2], [3], [3], [3], [3, 7], [2, 3, 4])),
        (4, (4, 9), ([4], [5], [5], [5], [9], [4])),
        (8, (8,), ([8], [], [], [], [], [8])),
    ],
)
def test_a_target_takes_several_devices(target: int, devices: tuple[int, ...], used: list[list[int]]):
    """`used`: the numbers of devices at which each of `KEYS` runs."""
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    for entrant, shares in small(target_devices=target, devices=devices).races:
        found[entrant.key].append(entrant.devices(shares, target))
    assert tuple(found.values()) == used


def test_a_map_of_a_larger_target_has_the_same_times_and_more_devices():
    keys = ("speculative", "ssd", "dsi", "easyspec")
    plan = small(tokens=8, methods=tuple(e for e in default().methods if e.key in keys))
    found = [*results(plan, 5, 0.8)]
    more, moved = with_target(plan, found, 2)
    again = [*results(more, 5, 0.8)]
    assert more.devices == (4, 8)
    assert [one.facts() for one in again] == [one.facts() for one in moved]
    assert [one.devices for one in moved] == [2, 3, 3, 7, 2, 4]


def test_the_assumptions_are_those_of_the_plan():
    text = " ".join(assumptions(small(seeds=3, misses=0.4, doubt=0.2, target_devices=2)))
    numbers = ("in 3 runs", "(1 + F)^-0.4", "1 - 0.8 a of its errors", "target takes 2 devices")
    for words in (*numbers, "SSD has forks 3"):
        assert words in text
    recorded = " ".join(assumptions(small(recorded=("a",))))
    assert "of the recorded runs" in recorded
    assert "independently" not in recorded


@pytest.mark.parametrize("doubt", [0.2, 0.5, 0.8])
def test_the_drafter_doubts_at_as_many_of_its_errors_as_the_map_says(doubt: float):
    """An error at a place that is not easy is one that it doubts."""
    rate, path = 0.7, list(range(1, 33))
    target, drafter = bernoulli_models((rate,), 64, 32, doubt=doubt)
    wrong = doubted = 0
    for i in range(4000):
        tokens = np.asarray([*path, *[1] * i])
        if drafter._next_token(tokens, 0) != target._next_token(tokens, 0):
            wrong += 1
            doubted += drafter._certainty(tokens, 0) < rate
    assert doubted / wrong == pytest.approx(1 - (1 - doubt) * rate, abs=0.04)
    assert f"1 - {1 - doubt:g} a" in " ".join(assumptions(small(doubt=doubt)))


def test_a_map_is_its_json_and_every_method_has_a_form():
    assert {entrant.form for entrant in whole().methods} == FORMS.keys()
    plan = small(tokens=8, methods=default().methods[:2])
    found = [one for place in draw(plan) for one in place]
    again, known = given_back(json.loads(json.dumps(facts(plan, found))))
    assert again == plan
    assert [one.facts() for one in known] == [one.facts() for one in found]


def test_a_stop_ends_the_map():
    stop = threading.Event()
    places = draw(small(tokens=4, rates=(0.5, 0.9), methods=default().methods[:1]), cancel=stop)
    next(places)
    stop.set()
    assert list(places) == []


def test_a_recorded_run_drives_all_methods():
    limits = Limits(48)
    trace = bundled("8xA100").run("speculative", "Why is the sky blue?", config={"gamma": 5}, limits=limits)
    (found,) = draw(small(devices=(2,), methods=default().methods[1:4]), [trace, trace])
    assert [len(one.speedups) for one in found] == [2, 2, 2]
    assert found[2].config["threshold"] == 0.3, "the recorded drafter's doubts do not follow the rate"
    assert {one.rate for one in found} == {rate_of(trace)}
    assert 0.4 < rate_of(trace) < 0.99
    assert {tuple(run.token_ids()) for one in found for run in one.traces} == {tuple(trace.token_ids())}


def test_a_recorded_run_of_few_tokens_is_refused():
    trace = bundled("8xA100").run("speculative", "The sea", limits=Limits(12))
    with pytest.raises(UsageError, match=f"run {trace.header.run_id} has 12 tokens; record at least 48"):
        next(draw(small(), [trace]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratios": (6,)}, "c is 6; the profile ratios has drafters for c = 2, 3, 5, 8, 12, 20"),
        ({"rates": (1.0,)}, "acceptance rate is 1; it must be at least 0.01 and at most 0.99"),
        ({"devices": (9,)}, "devices is 9; it must be at least 2 and at most 8"),
        ({"devices": (17,), "target_devices": 2}, "devices is 17; it must be at least 2 and at most 16"),
        ({"devices": (2,), "target_devices": 4}, "devices is 2; it must be at least 4"),
        ({"target_devices": 9}, "the target's devices is 9; it must be at least 1 and at most 8"),
        ({"doubt": 2.0}, "doubt is 2"),
        ({"misses": 0.0}, "misses is 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"rates": ()}, "the number of rates is 0"),
    ],
)
def test_wrong_places_are_refused(changes, message: str):
    with pytest.raises(UsageError, match=message):
        list(draw(small(**changes)))
