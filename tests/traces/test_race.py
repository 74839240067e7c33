"""Races: speed-ups with their range, the fastest run, and no cause for noise."""

from dataclasses import replace

import pytest

from specscope.engine.trace.events import OTHERS, Occupancy
from specscope.traces.metrics import measure
from specscope.traces.race import (
    ONE_PASS,
    Speed,
    grouped,
    median_first,
    race_line,
    racers_of,
    speed_of,
    speedup_of,
    spread,
)
from specscope.traces.view.document import view_model
from tests.traces.samples import sample_trace, slowed


def measured(kind: str, factor: float = 1, name: str = ""):
    """Return a run with measured times, slowed down by a factor."""
    trace = slowed(sample_trace(kind), factor)
    trace.header = replace(
        trace.header, run_id=name or kind, runtime="local-thread", profile="", environment={"cores": 2}
    )
    return trace


def field(*traces):
    return racers_of(traces, [measure(trace) for trace in traces])


def speed(*passes) -> Speed:
    found = speed_of(passes, measure(passes[0]))
    assert found is not None
    return found


def busy(trace):
    """Return a run during which other programs used a core of two."""
    trace.occupancy.append(Occupancy(OTHERS, 0, 0.5, 0))
    return trace


def verdict_of(*traces, passes=()):
    return view_model(traces, passes)["runs"][-1]["verdict"]


@pytest.mark.parametrize("factor", [0.9, 0.95, 1, 1.05, 1.1])
def test_plain_decoding_against_itself_has_no_cause_and_no_advice(factor) -> None:
    found = verdict_of(measured("autoregressive"), measured("autoregressive", factor, "again"))
    assert "no difference from plain decoding that these passes can show" in found["summary"]
    assert (found["reason"], found["advice"], found["run"]) == ("", "", None)
    assert "drafted" not in found["summary"]


def test_a_loss_within_the_range_of_the_passes_has_no_cause() -> None:
    passes = [measured("speculative", factor, f"s{factor}") for factor in (1.1, 1.18, 1.5)]
    plain = measured("autoregressive")
    group = median_first(passes)
    found = verdict_of(plain, group[0], passes=[[plain], group])
    assert found["reason"] == ""
    assert "no difference" in found["summary"]


def test_a_loss_beyond_the_range_has_its_cause() -> None:
    found = verdict_of(measured("autoregressive"), measured("speculative", 3))
    assert "Most of the loss is" in found["reason"]


def test_under_load_there_is_no_sentence_about_causes() -> None:
    for pair in (
        (measured("autoregressive"), busy(measured("speculative", 3))),
        (busy(measured("autoregressive")), measured("speculative", 3)),
    ):
        found = verdict_of(*pair)
        assert found["summary"].endswith("× under the load of other programs.")
        assert (found["reason"], found["advice"], found["run"]) == ("", "", None)


def test_one_pass_has_the_range_of_passes_of_this_project() -> None:
    plain, fast = field(measured("autoregressive"), measured("pearl"))
    found = speedup_of(fast, [plain, fast])
    assert found.low == pytest.approx(found.value * (1 - ONE_PASS) / (1 + ONE_PASS))
    assert found.high == pytest.approx(found.value * (1 + ONE_PASS) / (1 - ONE_PASS))


def test_virtual_times_have_no_range() -> None:
    found = speed(sample_trace("pearl"))
    assert found.low == found.value == found.high


def test_two_passes_have_their_mean() -> None:
    plain = measured("autoregressive")
    group = median_first([measured("pearl", 1, "p0"), measured("pearl", 2, "p1")])
    slow, fast = sorted(speed(trace).value for trace in group)
    run = view_model([plain, group[0]], [[plain], group])["runs"][1]
    assert run["metrics"]["tokens_per_second"] == pytest.approx((slow + fast) / 2)
    assert run["figures"]["tokens_per_second"].endswith(f"(mean of {slow:.1f} and {fast:.1f})")
    faster = speed(*group).over(speed(plain))
    assert faster.text in run["verdict"]["summary"]


def test_the_fastest_run_is_named_with_its_range() -> None:
    line = race_line(field(measured("autoregressive"), measured("pearl"), measured("speculative", 3)))
    assert line == "Fastest: PEARL, 1.36× (1.20 to 1.53, one pass, each speed ± 6 %). Next: Autoregressive."


def test_runs_that_are_too_close_have_no_winner() -> None:
    line = race_line(
        field(measured("autoregressive", 1.2), measured("pearl"), measured("pearl", 1.05, "again"))
    )
    assert line.startswith("No clear winner: PEARL · ")
    assert "Autoregressive" not in line
    assert race_line(field(measured("pearl"))) == ""


def test_a_loaded_race_names_no_winner() -> None:
    line = race_line(field(measured("autoregressive"), busy(measured("pearl"))))
    assert line == (
        "No winner: other programs used this machine during the race. Run it again when they have ended."
    )


def test_the_advice_is_no_setting_of_the_race_and_faster_than_each_run() -> None:
    plain, run = sample_trace("autoregressive"), sample_trace("speculative")
    advised = view_model([plain, run])["runs"][1]["verdict"]["run"]
    rival = slowed(sample_trace("pearl"), 3)
    rival.header = replace(rival.header, config=advised["config"], run_id="rival")
    other = view_model([plain, run, rival])["runs"][1]["verdict"]["run"]
    assert other is None or other["config"] != advised["config"]
    fast = slowed(sample_trace("pearl"), 0.1)
    assert view_model([plain, run, fast])["runs"][1]["verdict"]["run"] is None


def passes(kind: str, *factors: int):
    traces = [slowed(sample_trace(kind), factor) for factor in factors]
    for i, trace in enumerate(traces):
        trace.header = replace(trace.header, run_id=f"{kind}{i}")
    return traces


def test_the_median_pass_is_first_and_the_slower_of_two() -> None:
    three = passes("pearl", 3, 1, 2)
    assert [t.header.run_id for t in median_first(three)] == ["pearl2", "pearl0", "pearl1"]
    assert median_first(three[:2])[0].header.run_id == "pearl0"
    three[2].footer = replace(three[2].footer, status="cancelled")
    assert [t.header.run_id for t in median_first(three)] == ["pearl0", "pearl1", "pearl2"]
    assert median_first([]) == []


def test_the_spread_needs_two_passes() -> None:
    two = passes("pearl", 1, 2)
    slow, fast = (measure(t).tokens_per_second for t in reversed(two))
    assert spread(two) == {"count": 2, "low": pytest.approx(slow), "high": pytest.approx(fast)}
    assert spread(two[:1]) is None


def test_figures_show_the_median_with_the_spread() -> None:
    plain, three = sample_trace("autoregressive"), median_first(passes("pearl", 1, 2, 4))
    runs = view_model([plain, three[0]], [[plain], three])["runs"]
    assert runs[0]["passes"] is None
    assert runs[1]["passes"]["count"] == 3
    speed = measure(three[0]).tokens_per_second
    assert (
        runs[1]["figures"]["tokens_per_second"]
        == f"{speed:.1f} ({speed / 2:.1f} to {2 * speed:.1f} in 3 passes)"
    )


def test_passes_have_equal_method_settings_and_prompt() -> None:
    one, two = passes("pearl", 1, 2), passes("speculative", 1, 2)
    other = replace(one[0].header, config={"gamma": 9})
    changed = sample_trace("pearl")
    changed.header = other
    found = grouped([t.header for t in (one[0], two[0], two[1], one[1], changed)])
    assert [[h.run_id for h in group] for group in found] == [
        ["pearl0", "pearl1"],
        ["speculative0", "speculative1"],
        ["pearl0"],
    ]
