"""Races: speed-ups with their range, the fastest run, and why a run is slow."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from specscope.engine.trace.events import OTHERS, Device, Occupancy
from specscope.traces.facts.comparable import comparisons
from specscope.traces.facts.imported import CACHED, origin
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.rates import rates_of
from specscope.traces.judge.race import (
    ONE_PASS,
    grouped,
    median_first,
    race_line,
    racers_of,
    speed_of,
    speedup_of,
    spread,
)
from specscope.traces.view.document import view_model
from tests.traces.samples import recorded_loop, sample_trace, slowed, with_header

NO_CAUSE = {"reason": "", "advice": "", "run": None}


def measured(kind: str, factor: float = 1, name: str = ""):
    """Return a run with measured times, slowed down by a factor."""
    facts = {"runtime": "local-thread", "profile": "", "environment": {"cores": 2}}
    return with_header(slowed(sample_trace(kind), factor), run_id=name or kind, **facts)


def field(*traces):
    return racers_of(traces, [measure(trace) for trace in traces])


def with_load(trace, share=0.5):
    """Return a run during which other programs used a share of two cores."""
    environment = {**trace.header.environment, "cores": 2}
    return with_header(replace(trace, occupancy=[Occupancy(OTHERS, 0, share, 0)]), environment=environment)


def verdict_of(*traces, passes=()):
    return view_model(traces, passes)["runs"][-1]["verdict"]


@pytest.mark.parametrize("factor", [0.9, 0.95, 1, 1.05, 1.1])
def test_plain_decoding_against_itself_has_no_cause_and_no_advice(factor):
    found = verdict_of(measured("autoregressive"), measured("autoregressive", factor, "again"))
    assert "no difference from plain decoding that these passes can show" in found["summary"]
    assert found.items() >= NO_CAUSE.items()
    assert "drafted" not in found["summary"]


def test_a_loss_has_its_cause_only_beyond_the_range_of_the_passes():
    plain = measured("autoregressive")
    group = median_first([measured("speculative", factor, f"s{factor}") for factor in (1.1, 1.18, 1.5)])
    found = verdict_of(plain, group[0], passes=[[plain], group])
    assert (found["reason"], "no difference" in found["summary"]) == ("", True)
    assert "Most of the loss is" in verdict_of(plain, measured("speculative", 3))["reason"]


def test_under_load_there_is_no_sentence_about_causes_and_no_winner():
    plain, slow = measured("autoregressive"), measured("speculative", 3)
    for pair in ((plain, with_load(slow)), (with_load(plain), slow)):
        found = verdict_of(*pair)
        assert found["summary"].endswith("× under the load of other programs.")
        assert found.items() >= NO_CAUSE.items()
    line = "No winner: other programs used this machine during the race. Run it again when they have ended."
    assert race_line(field(plain, with_load(measured("pearl")))) == line


def of_server(factor, *, address="http://127.0.0.1:1", untold=(), **facts):
    """Return a run of a server, plain without a factor."""
    trace = measured("autoregressive" if factor is None else "pearl", factor or 1)
    server = {"address": address, "unknown": [*untold], "notes": []}
    return with_header(trace, environment={"recorded": {"start_ns": 0}, "server": server}, **facts)


TURNS = {"abbaab": "Fastest: PEARL", "aaabbb": "No winner", "ab": "No winner", "abba": "No winner"}


@pytest.mark.parametrize("order", TURNS)
def test_passes_in_turns_decide_a_race_whose_load_no_client_can_know(order):
    passes = {
        name: [of_server(f, created=f"2026-01-01T{i:02}") for i, one in enumerate(order) if one == name]
        for name, f in (("a", None), ("b", 1))
    }
    document = view_model([group[0] for group in passes.values()], [*passes.values()])
    assert document["race"].startswith(TURNS[order])
    assert ("3 passes of each in turns" in document["race"]) == (TURNS[order] == "No winner")
    assert ("not recorded" in document["runs"][1]["verdict"]["summary"]) == (TURNS[order] == "No winner")


def test_a_failed_pass_is_no_turn():
    passes = [[of_server(f, created=f"{i}") for i in range(3)] for f in (None, 1)]
    passes[1][2] = replace(passes[1][2], footer=replace(passes[1][2].footer, status="failed"))
    assert view_model([group[0] for group in passes], passes)["race"].startswith("No winner")


REASONS = {
    "another machine": (of_server(None, address="http://10.0.0.1:1"), "different machine"),
    "no counts": (
        of_server(None, untold=["accepted and rejected drafts"]),
        "no plain decoding among these runs",
    ),
    "another port": (of_server(None, address="http://10.0.0.2:99"), ""),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_baseline_is_a_server_of_the_same_machine_that_tells_that_it_drafts_nothing(name):
    plain, reason = REASONS[name]
    assert comparisons([[of_server(1, address="http://10.0.0.2:1")], [plain]])[0].reason == reason


def test_one_pass_has_the_range_of_passes_of_this_project_and_virtual_times_have_none():
    plain, fast = field(measured("autoregressive"), measured("pearl"))
    found = speedup_of(fast, [plain, fast])
    assert found.low == pytest.approx(found.value * (1 - ONE_PASS) / (1 + ONE_PASS))
    assert found.high == pytest.approx(found.value * (1 + ONE_PASS) / (1 - ONE_PASS))
    trace = sample_trace("pearl")
    speed = speed_of([trace], measure(trace))
    assert speed.low == speed.value == speed.high


def test_two_passes_have_their_mean():
    plain = measured("autoregressive")
    group = median_first([measured("pearl", 1, "p0"), measured("pearl", 2, "p1")])
    slow, fast = sorted(measure(trace).tokens_per_second for trace in group)
    run = view_model([plain, group[0]], [[plain], group])["runs"][1]
    assert run["metrics"]["tokens_per_second"] == pytest.approx((slow + fast) / 2)
    assert run["figures"]["tokens_per_second"].endswith(f"(mean of {slow:.1f} and {fast:.1f})")
    faster = speed_of(group, measure(group[0])).over(speed_of([plain], measure(plain)))
    assert faster.text in run["verdict"]["summary"]


def test_the_fastest_run_is_named_with_its_range_unless_runs_are_too_close():
    line = race_line(field(measured("autoregressive"), measured("pearl"), measured("speculative", 3)))
    assert line == "Fastest: PEARL, 1.36× (1.20 to 1.53, one pass, each speed ± 6 %). Next: Autoregressive."
    close = [measured("autoregressive", 1.2), measured("pearl"), measured("pearl", 1.05, "again")]
    line = race_line(field(*close))
    assert line.startswith("No clear winner: PEARL · ")
    assert "Autoregressive" not in line
    assert race_line(field(measured("pearl"))) == ""


def test_the_advice_is_no_setting_of_the_race_and_faster_than_each_run():
    plain, run = sample_trace("autoregressive"), sample_trace("speculative")
    advised = view_model([plain, run])["runs"][1]["verdict"]["run"]
    rival = with_header(slowed(sample_trace("pearl"), 3), config=advised["config"], run_id="rival")
    other = view_model([plain, run, rival])["runs"][1]["verdict"]["run"]
    assert other is None or other["config"] != advised["config"]
    fast = slowed(sample_trace("pearl"), 0.1)
    assert view_model([plain, run, fast])["runs"][1]["verdict"]["run"] is None


def passes(kind: str, *factors: int):
    return [with_header(slowed(sample_trace(kind), n), run_id=f"{kind}{i}") for i, n in enumerate(factors)]


def ids(traces):
    return [trace.header.run_id for trace in traces]


def test_the_median_pass_is_first_and_the_slower_of_two():
    three = passes("pearl", 3, 1, 2)
    assert ids(median_first(three)) == ["pearl2", "pearl0", "pearl1"]
    assert ids(median_first(three[:2]))[0] == "pearl0"
    three[2].footer = replace(three[2].footer, status="cancelled")
    assert ids(median_first(three)) == ["pearl0", "pearl1", "pearl2"]
    assert median_first([]) == []


def test_figures_show_the_median_with_the_spread_which_needs_two_passes():
    plain, three = sample_trace("autoregressive"), median_first(passes("pearl", 1, 2, 4))
    first, second = view_model([plain, three[0]], [[plain], three])["runs"]
    speed = measure(three[0]).tokens_per_second
    assert (first["passes"], second["passes"]["count"]) == (None, 3)
    text = f"{speed:.1f} ({speed / 2:.1f} to {2 * speed:.1f} in 3 passes)"
    assert second["figures"]["tokens_per_second"] == text
    assert spread(three) == {"count": 3, "low": pytest.approx(speed / 2), "high": pytest.approx(2 * speed)}
    assert spread(three[:1]) is None


def test_passes_have_equal_method_settings_and_prompt():
    (a, b), (c, d) = passes("pearl", 1, 2), passes("speculative", 1, 2)
    other = with_header(a, config={"gamma": 9})
    found = grouped([t.header for t in (a, c, d, b, other)])
    assert [[h.run_id for h in group] for group in found] == [ids((a, b)), ids((c, d)), ids((a,))]


# Why a run is slow, or cannot be as fast as it seems.

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


def parts_of(reason):
    """Return the time of a target forward, and its parts."""
    time, parts = re.match(r"A target forward takes the time of (\S+) plain \w+: (.*?)\. ", reason).groups()
    found = re.findall(r"([\d.]+) ((?:for|waiting|in) [^,]+)", parts)
    return float(time), {what: float(n) for n, what in found}


def test_other_work_is_not_the_width_of_a_forward(page):
    _, run, traces = page(BAD, verify=7.0, draft=0.5, other=40.0)
    time, parts = parts_of(run["verdict"]["reason"])
    assert parts["for its 3.0 rows"] == pytest.approx(7 / 6, rel=0.06)
    assert parts["waiting for drafts"] == pytest.approx(1 / 6, rel=0.06)
    assert parts["for work of the kind other"] == pytest.approx(40 / 6, rel=0.06)
    assert sum(parts.values()) == pytest.approx(time, abs=0.02)
    assert "Most of the loss is work of the kind other." in run["verdict"]["reason"]
    assert CACHED not in origin(traces[1].header).unknown, "other work has no cache"


def test_a_wide_forward_or_a_slow_drafter_is_the_cause(page):
    wide = "Most of the loss is the width of the target's forwards, 3.0 rows instead of 1.0."
    assert wide in page(BAD, verify=20.0)[1]["verdict"]["reason"]
    slow = page(BAD, draft=10.0)[1]["verdict"]["reason"]
    assert "Most of the loss is waiting for the drafter" in slow


def test_the_rows_of_a_batch_are_compared_with_those_of_plain_batches(page):
    reason = page(BAD, verify=20.0, sequences=4)[1]["verdict"]["reason"]
    assert "12.0 rows instead of 4.0" in reason
    time, parts = parts_of(reason)
    assert time == pytest.approx(22 / 6, abs=0.01), "plain forwards have a token of each sequence"
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


def test_only_a_clear_winner_is_bold_and_a_range_says_where_it_is_from(page):
    document, run, traces = page(GOOD)
    assert document["race"].startswith("Fastest: loop")
    for text in (document["race"], run["verdict"]["summary"]):
        assert "one pass, each speed ± 6 %)" in text
    assert [r["fastest"] for r in document["runs"]] == [False, True]
    loaded = view_model([with_load(trace, 0.9) for trace in traces])
    lost, run, _ = page(BAD)
    assert run["figures"]["speedup"] == "0.75×"
    for race in (loaded, lost):
        assert not any(r["fastest"] for r in race["runs"])


@pytest.mark.parametrize("sequences", [1, 3])
def test_a_recorded_loop_is_told_the_best_draft_length_by_its_own_times(page, sequences):
    """Seven drafts of 1.5 ms; a further row of the target takes 3/7 ms."""
    rates, draws = (0.55, 0.45, 0.4, 0.3, 0.3, 0.3, 0.3), random.Random(3)

    def rounds(length):
        kept = ([draws.random() < rate for rate in rates[:length]] + [False] for _ in range(300))
        return [(length, tests.index(False)) for tests in kept]

    def speed(length):
        given = {"verify": 6 + 3 / 7 * length, "draft": 1.5, "sequences": sequences}
        first, run = page(rounds(length), **given)[0]["runs"]
        return run["metrics"]["tokens_per_second"] / first["metrics"]["tokens_per_second"], run

    slow, run = speed(7)
    assert slow < 0.7
    if sequences > 1:
        assert run["verdict"]["advice"] == "", "batches are not predicted"
        return
    found = re.match(r"Try drafts of 1 token: predicted (\S+)× instead of", run["verdict"]["advice"])
    assert float(found[1]) == pytest.approx(speed(1)[0], rel=0.06)
    assert run["verdict"]["run"] is None, "SpecScope cannot run it"


def test_nothing_is_predicted_for_loops_that_overlap_adapt_or_draft_trees(tmp_path):
    loop = recorded_loop(tmp_path / "b.jsonl", [(7, 1)] * 20, verify=9.0, draft=1.5)
    plain = recorded_loop(tmp_path / "a.jsonl", [(0, 0)] * 20)
    before = 9_000_000
    beside = [
        replace(s, device="b") if s.kind == "draft" else replace(s, start=s.start - before)
        for s in loop.spans
    ]
    devices = (*loop.header.devices, Device("b", "drafter", "b", "cpu"))
    siblings = [replace(d, parent=-1, position=3) if d.node >= 0 else d for d in loop.decisions]
    mixed = recorded_loop(tmp_path / "c.jsonl", [(7, 1), (2, 1), (4, 1)] * 8)
    overlapping = with_header(replace(loop, spans=beside), devices=devices)
    runs = (loop, overlapping, replace(loop, decisions=siblings), mixed)
    assert [rates_of(run, measure(run), plain) is None for run in runs] == [False, True, True, True]
