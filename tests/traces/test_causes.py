"""Why a run is slow, or cannot be as fast as it seems; and what the page says beside it."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from specscope.engine.trace.events import OTHERS, Device, Occupancy
from specscope.traces.imported import CACHED, origin
from specscope.traces.metrics import measure
from specscope.traces.rates import rates_of
from specscope.traces.view.document import view_model
from tests.traces.samples import recorded_loop

GOOD, BAD = [(2, 2)] * 10, [(2, 0)] * 20


@pytest.fixture
def page(tmp_path):
    """Return a function that draws plain decoding and a loop: the document and the loop's run."""

    def draw(rounds, plain=6.0, sequences=1, **given):
        token = [(0, 0)] * 30
        traces = [
            recorded_loop(tmp_path / "a.jsonl", token, verify=plain, sequences=sequences, title="plain"),
            recorded_loop(tmp_path / "b.jsonl", rounds, sequences=sequences, **given),
        ]
        document = view_model([with_load(trace, 0.0) for trace in traces])
        return document, document["runs"][1], traces

    return draw


def with_load(trace, share):
    """Return a run during which other programs used a share of two cores."""
    trace.header.environment["cores"] = 2
    trace.occupancy[:] = [Occupancy(OTHERS, 0, share, 0)]
    return trace


def parts_of(reason):
    """Return the time of a target forward, and its parts."""
    time, parts = re.match(r"A target forward takes the time of (\S+) plain \w+: (.*?)\. ", reason).groups()
    return float(time), {
        what: float(n) for n, what in re.findall(r"([\d.]+) ((?:for|waiting|in) [^,]+)", parts)
    }


def test_other_work_is_not_the_width_of_a_forward(page):
    _, run, traces = page(BAD, verify=7.0, draft=0.5, other=40.0)
    time, parts = parts_of(run["verdict"]["reason"])
    assert parts["for its 3.0 rows"] == pytest.approx(7 / 6, rel=0.06)
    assert parts["waiting for drafts"] == pytest.approx(1 / 6, rel=0.06)
    assert parts["for work of the kind other"] == pytest.approx(40 / 6, rel=0.06)
    assert sum(parts.values()) == pytest.approx(time, abs=0.02)
    assert "Most of the loss is work of the kind other." in run["verdict"]["reason"]
    assert CACHED not in origin(traces[1].header).unknown, "other work has no cache"


def test_a_wide_forward_is_still_the_cause_and_a_slow_drafter_is(page):
    _, run, _ = page(BAD, verify=20.0)
    assert (
        "Most of the loss is the width of the target's forwards, 3.0 rows instead of 1.0."
        in run["verdict"]["reason"]
    )
    _, run, _ = page(BAD, draft=10.0)
    assert "Most of the loss is waiting for the drafter" in run["verdict"]["reason"]


def test_the_rows_of_a_batch_are_compared_with_those_of_plain_batches(page):
    _, run, _ = page(BAD, verify=20.0, sequences=4)
    reason = run["verdict"]["reason"]
    assert "12.0 rows instead of 4.0" in reason
    time, parts = parts_of(reason)
    assert time == pytest.approx(22 / 6, abs=0.01), (
        "in plain forwards: a forward has a token of each sequence"
    )
    assert parts["for its 12.0 rows"] == pytest.approx(20 / 6, abs=0.01)
    assert "plain forwards" in reason


@pytest.mark.parametrize(("verify", "doubted"), [(3.0, True), (5.5, False)])
def test_target_forwards_faster_than_plain_ones_are_no_effect_of_a_method(page, verify, doubted):
    document, run, _ = page(GOOD, verify=verify, draft=0.1)
    reason = run["verdict"]["reason"]
    assert run["fastest"] is not doubted
    assert ("No winner: the target forwards of loop were faster" in document["race"]) is doubted
    assert ("This cannot be an effect of the method" in reason) is doubted
    if doubted:
        assert run["verdict"]["advice"] == ""
        assert "a target forward of 3.0 rows took 3.00 ms, a plain one of 1.0 rows 6.00 ms" in reason


def test_only_a_clear_winner_is_bold(page):
    document, run, traces = page(GOOD)
    assert document["race"].startswith("Fastest: loop")
    assert [r["fastest"] for r in document["runs"]] == [False, True]
    loaded = view_model([with_load(trace, 0.9) for trace in traces])
    assert loaded["race"].startswith("No winner")
    assert not any(r["fastest"] for r in loaded["runs"])
    document, run, _ = page(BAD)
    assert run["figures"]["speedup"] == "0.75×"
    assert not any(r["fastest"] for r in document["runs"]), "a loss is not bold"


def test_a_range_says_where_it_is_from(page):
    document, run, _ = page(GOOD)
    assert "one pass, each speed ± 6 %)" in run["verdict"]["summary"]
    assert "one pass, each speed ± 6 %)" in document["race"]


@pytest.mark.parametrize("sequences", [1, 3])
def test_a_recorded_loop_is_told_the_best_draft_length_by_its_own_times(page, sequences):
    """Seven drafts of 1.5 ms; a further row of the target takes 3/7 ms."""
    rates, draws = (0.55, 0.45, 0.4, 0.3, 0.3, 0.3, 0.3), random.Random(3)

    def rounds(length):
        kept = ([draws.random() < rate for rate in rates[:length]] + [False] for _ in range(300))
        return [(length, tests.index(False)) for tests in kept]

    def speed(length):
        given = {"verify": 6 + 3 / 7 * length, "draft": 1.5, "sequences": sequences}
        document, run, _ = page(rounds(length), **given)
        return run["metrics"]["tokens_per_second"] / document["runs"][0]["metrics"]["tokens_per_second"], run

    slow, run = speed(7)
    assert slow < 0.7
    if sequences > 1:
        assert run["verdict"]["advice"] == "", "batches are not predicted"
        return
    found = re.match(r"Try drafts of 1 token: predicted (\S+)× instead of", run["verdict"]["advice"])
    assert float(found[1]) == pytest.approx(speed(1)[0], rel=0.06)
    assert run["verdict"]["run"] is None, "SpecScope cannot run it"


def test_nothing_is_predicted_for_loops_that_overlap_or_draft_trees(tmp_path):
    loop = recorded_loop(tmp_path / "b.jsonl", [(7, 1)] * 20, verify=9.0, draft=1.5)
    plain = recorded_loop(tmp_path / "a.jsonl", [(0, 0)] * 20)

    def rates(trace):
        return rates_of(trace, measure(trace), plain)

    assert rates(loop) is not None
    beside = [
        replace(s, device="b") if s.kind == "draft" else replace(s, start=s.start - 9_000_000)
        for s in loop.spans
    ]
    devices = (*loop.header.devices, Device("b", "drafter", "b", "cpu"))
    assert rates(replace(loop, spans=beside, header=replace(loop.header, devices=devices))) is None
    siblings = [replace(d, parent=-1, position=3) if d.node >= 0 else d for d in loop.decisions]
    assert rates(replace(loop, decisions=siblings)) is None
    mixed = recorded_loop(tmp_path / "c.jsonl", [(7, 1), (2, 1), (4, 1)] * 8)
    assert rates(mixed) is None, "lengths that adapt"
