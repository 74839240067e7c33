"""The map of the fastest methods: races at a place, closed forms beside runs, winners, its JSON."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.types import Limits
from specscope.traces.lab.winners import (
    FORMS,
    Plan,
    Result,
    default,
    draw,
    facts,
    given_back,
    rate_of,
    results,
    winner,
)


def small(**changes) -> Plan:
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


def test_a_draft_has_the_length_that_is_best_by_the_closed_form():
    (one,) = results(small(tokens=8, methods=default().methods[2:3]), 5, 0.8)
    assert dict(one.config) == {"gamma": 4}
    from specscope.traces.closed_forms import ssd_speedup

    assert one.form == max(ssd_speedup(0.8, gamma, 5) for gamma in range(1, 25))


def result(key: str, devices: int, speedup: float, form: float = 1.0) -> Result:
    return Result(key, 5, 0.8, devices, {}, speedup, form)


def test_a_winner_leads_over_the_best_other_method_on_so_many_devices():
    found = [result("a", 1, 2.0), result("b", 2, 3.0), result("b", 4, 6.0, 0.5), result("c", 8, 9.0)]
    on_two, on_four = winner(found, 5, 0.8, 2), winner(found, 5, 0.8, 4)
    assert (on_two.best.key, on_two.second.key, on_two.lead) == ("b", "a", 0.5)
    assert (on_four.best.devices, on_four.second.key, on_four.lead) == (4, "a", 2.0)
    assert winner(found, 5, 0.8, 8, "per device").best.key == "a"
    assert winner(found, 5, 0.8, 4, "closed forms").best.form == 1.0


def test_a_map_is_its_json():
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
    with specscope.open("bundled", runtime="virtual", profile="8xA100") as cluster:
        trace = cluster.run("speculative", "Why is the sky blue?", config={"gamma": 5}, limits=Limits(48))
    (found,) = draw(small(devices=(2,), methods=default().methods[1:4]), [trace, trace])
    assert {one.rate for one in found} == {rate_of(trace)}
    assert 0.4 < rate_of(trace) < 0.99
    assert {tuple(run.token_ids()) for one in found for run in one.traces} == {tuple(trace.token_ids())}


def test_a_recorded_run_of_few_tokens_is_refused():
    with specscope.open("bundled", runtime="local-thread") as cluster:
        trace = cluster.run("speculative", "The sea", limits=Limits(12))
    with pytest.raises(UsageError, match=f"run {trace.header.run_id} has 12 tokens; record at least 48"):
        next(draw(small(), [trace]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ratios": (6,)}, "c is 6; the profile ratios has drafters for c = 2, 3, 5, 8, 12, 20"),
        ({"rates": (1.0,)}, "acceptance rate is 1; it must be at least 0.01 and at most 0.99"),
        ({"devices": (9,)}, "devices is 9; it must be at least 2 and at most 8"),
        ({"doubt": 2.0}, "doubt is 2"),
        ({"seeds": 0}, "seeds is 0"),
        ({"rates": ()}, "the number of rates is 0"),
    ],
)
def test_wrong_places_are_refused(changes, message: str):
    with pytest.raises(UsageError, match=message):
        list(draw(small(**changes)))


def test_every_method_of_the_map_has_a_form():
    assert {entrant.form for entrant in default().methods} == FORMS.keys()
