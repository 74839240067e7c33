"""The health of a run and the calibration of its drafter: by hand and of real runs."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from math import log, prod
from pathlib import Path

import pytest

from specscope.engine.trace.events import Commit, Copied, Decision
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.export.report import render_report
from specscope.traces.facts.calibration import Trial, calibration, calibrations, chance_of, trials, wilson
from specscope.traces.facts.metrics import measure
from specscope.traces.judge.health import ALPHA, LevelTest, health, level_tests, loop, stretch
from specscope.traces.view.calibration import calibration_views
from tests.traces.samples import PROMPT, bundled, read_file, sample_trace, shown, with_header

ASSETS = Path(__file__).parents[2] / "assets"
GAMMA = 4
BENCH = json.loads((ASSETS / "prompts" / "bench.json").read_text(encoding="utf-8"))["prompts"]
LOOPING = BENCH[1]


def run_of(*sequences: str, copied: bool = False) -> Trace:
    """Return a run whose sequences test drafts of four tokens: `a` accepted, `r` rejected.

    The texts have no token twice.
    """
    size = len(sequences)
    facts = {"prompts": ("Hi",) * size, "prompt_ids": (PROMPT,) * size}
    trace = Trace(with_header(sample_trace("speculative"), **facts).header)
    for sequence, outcomes in enumerate(sequences):
        position, step, node = len(PROMPT), 1, 0
        for outcome in outcomes:
            word = "accepted" if outcome == "a" else "rejected"
            where = (step, sequence, node, node - 1, position, position)
            trace.add(Decision(*where, None, 0.5, 0.5, "ratio", word, 0, 1))
            trace.add(Commit(step, sequence, position, 1000 * sequence + position, "accepted", "x", 0))
            if copied and not node:
                trace.add(Copied(step, sequence, 0, 0, 1, GAMMA))
            position, node = position + 1, node + 1
            if outcome == "r" or node == GAMMA:
                step, node = step + 1, 0
    trace.footer = trace.new_footer("done", reasons=("length",) * size)
    return trace


def mixed(length: int, rate: float, seed: int = 0) -> str:
    draws = random.Random(seed)
    return "".join("a" if draws.random() < rate else "r" for _ in range(length))


def rows_of(outcomes: str) -> list[LevelTest]:
    return [LevelTest(i, i, outcome == "a") for i, outcome in enumerate(outcomes, 1)]


IN_A_ROW = "drafts tested in a row"
FELL, ROSE = (f"The acceptance of tested drafts {word}" for word in ("fell", "rose"))
FALLING, LOW = mixed(200, 0.9, 1), mixed(200, 0.2, 2)
NOTES = {
    "a stretch of rejections": (
        ("ar" * 30 + "a" + "r" * 40 + "ar" * 30,),
        r"All 40 drafts tested in a row at tokens 62 to 101 \(steps .* were rejected; of the other tests, 50 % were\.$",
    ),
    "acceptances among rejections": (("ar" * 20 + "a" * 60 + "ra" * 20,), f".*{IN_A_ROW}"),
    "a drafter that is always right": (("a" * 300,), "$"),
    "a drafter that is nearly always right": (("a" * 150 + "r" + "a" * 150,), "$"),
    # n * 0.8^n is below 1e-4 from n = 60 on
    "59 rejections": (("r" * 59,), "$"),
    "60 rejections": (
        ("r" * 60,),
        r"All 60 drafts tested in a row at tokens 1 to 60 \(steps 1 to 60\) were rejected\.$",
    ),
    # 90 % of 200 tests, then 20 % of 200: stretches of either side are no news
    "a fall": ((FALLING + LOW,), rf"{FELL} from 9((?!in a row).)*$"),
    "a rise": ((LOW + FALLING,), rf"{ROSE}((?!in a row).)*$"),
    "a fall from acceptances only": (
        ("a" * 200 + mixed(200, 0.4, 1),),
        rf"{FELL} from 100 %((?!in a row).)*$",
    ),
    "a rise to acceptances only": (
        (mixed(200, 0.4, 1) + "a" * 200,),
        rf"{ROSE} from .* to 100 %((?!in a row).)*$",
    ),
    "a change at its sharpest split": (("aaaaaaaaar" * 8 + "raarr" * 16,), f"{FELL} from 9"),
    "a small change": (("aaaaaaaaar" * 8 + "aaaar" * 16,), "$"),
    "a change of few tests": (("aaaaaaaaar" * 3 + "raarr" * 6,), "$"),
    "a stretch beside a change": (
        (mixed(150, 0.9) + "r" * 40 + mixed(150, 0.9, 1) + mixed(300, 0.35, 2),),
        rf"All 4\d {IN_A_ROW} at .* were rejected; of the other tests, .*{FELL}",
    ),
    "rejections that are the change": ((mixed(150, 0.9) + "r" * 60,), "All 6((?!fell).)*$"),
    "a sequence of a batch": ((mixed(120, 0.7), "ar" * 30 + "r" * 40), "Sequence 2: All 4"),
    "several of a batch": (("ar" * 30 + "r" * 40,) * 2, r".* Also in 1 other sequence\.$"),
}


@pytest.mark.parametrize(("sequences", "note"), NOTES.values(), ids=NOTES)
def test_a_fault_has_a_note_with_its_place_and_the_rate_of_the_rest(sequences, note):
    assert re.match(note, health(run_of(*sequences))), health(run_of(*sequences))


def test_the_bound_of_a_stretch_is_size_times_its_probability_after_the_other_tests():
    """20 rejections after 20 other tests with 9: 10 / 22 for the first, 11 / 23 for the second."""
    rows = rows_of("ar" * 9 + "aa" + "r" * 20)
    chance = prod((10 + i) / (22 + i) for i in range(20))
    found = stretch(rows, 1)
    assert (found.start, found.end, found.rest) == (20, 40, 9 / 20)
    assert found.chance == pytest.approx(log(chance))
    assert stretch(rows, int(ALPHA / chance)) is not None
    assert stretch(rows, int(ALPHA / chance) + 1) is None


def test_sound_runs_of_one_rate_have_no_note():
    """The bound is 1e-4 per kind of note: not one of 240 runs has one."""
    rates = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
    assert [note for seed in range(240) if (note := health(run_of(mixed(200, rates[seed % 6], seed))))] == []


def test_copied_drafts_are_not_tested_one_by_one():
    run = run_of("ar" * 20 + "a" * 60 + "ra" * 20, copied=True)
    assert (level_tests(run), health(run)) == ({}, "")


@pytest.mark.parametrize(("period", "times"), [(1, 48), (5, 10), (12, 4), (100, 4)])
def test_a_loop_is_found_with_its_place(period: int, times: int):
    found = loop([*range(1000, 1030), *[*range(period)] * times, *range(2000, 2020)])
    assert found == (period, 31, 30 + period * times)
    assert found.times == times


SHORT = {"few": [7] * 47, "rare": [*range(40)] * 3, "longer than the longest period": [*range(200)] * 4}


@pytest.mark.parametrize("ids", [*SHORT.values(), [-1] * 500, []], ids=[*SHORT, "unknown ids", "none"])
def test_short_or_rare_repetitions_are_no_loop(ids):
    assert loop(ids) is None


def test_a_loop_explains_acceptances():
    trace = run_of("ar" * 20 + "a" * 80)
    trace.commits = [replace(c, token=c.position % 4 if c.position > 45 else c.token) for c in trace.commits]
    note = health(trace)
    assert (note[:24], "tested" in note) == ("The text repeats 4 token", False)


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "pearl"])
def test_a_looping_greedy_run_of_the_bundled_pair_has_a_note(method):
    run = bundled().run(method, LOOPING, limits=Limits(320))
    ids, note = run.token_ids(), health(run)
    assert note.startswith("The text repeats 15 tokens 17 times, tokens 36 to 304")
    assert ids[35:304] == (ids[35:50] * 18)[:269]
    assert ("easy to draft" in note) == (method != "autoregressive")


def test_sampled_runs_of_the_bundled_pair_and_the_bundled_runs_are_sound():
    for seed, prompt in enumerate(BENCH[:4]):
        run = bundled().run("speculative", prompt, sampling=Sampling(1.0, seed=seed), limits=Limits(150))
        assert health(run) == "", prompt
    files = sorted((ASSETS / "demo").glob("*.jsonl.gz"))
    assert len(files) > 2
    assert [health(read_file(file)) for file in files] == [""] * len(files)


def test_the_note_is_in_verdict_and_report_also_without_a_baseline():
    trace = run_of("r" * 70)
    verdict = shown(trace)["verdict"]
    assert verdict["health"] == health(trace) != ""
    assert verdict["summary"] == ""
    assert f'<th scope="row">health</th><td>{health(trace)}</td>' in render_report([trace])
    trace.footer = replace(trace.footer, status="cancelled")
    assert shown(trace)["verdict"]["health"] == ""


# Calibration: bins, errors and expected acceptance.


def decided(place, q, outcome, *, p=0.5, rule="ratio", step=1, node=None) -> Decision:
    node = place - 1 if node is None else node
    return Decision(step, 0, node, place - 2, 10 + place, 7, p, q, 0.5, rule, outcome, 0, 1)


def test_the_error_is_that_computed_by_hand():
    """Bins 0.2 (q 0.25, 1 of 2), 0.9 (q 0.95, 1 of 2) and 1.0, which belongs to the last bin."""
    rows = [(1, 0.2, False), (1, 0.29, True), (1, 0.9, True), (2, 1.0, False)]
    tested = [Trial(place, q, None, accepted) for place, q, accepted in rows]
    found = calibration(tested)
    assert [(b.low, b.tested, b.accepted) for b in found.bins] == [(0.2, 2, 1), (0.9, 2, 1)]
    assert [b.q for b in found.bins] == pytest.approx([0.245, 0.95])
    assert found.error == pytest.approx(2 / 4 * 0.255 + 2 / 4 * 0.45)
    first, second = (calibration(tested, place) for place in (1, 2))
    assert first.error == pytest.approx(2 / 3 * 0.255 + 1 / 3 * 0.1)
    assert (second.tested, second.accepted, second.error) == (1, 0, 1.0)
    assert [c.place for c in calibrations(tested)] == [0, 1, 2]
    assert (calibration(tested, 3), calibrations([])) == (None, [])


def test_only_tested_tokens_with_a_q_count_and_one_without_p_leaves_the_expectation_unknown():
    trace = replace(
        sample_trace("speculative"),
        decisions=[
            *(decided(1, 0.8, "accepted"), decided(2, 0.6, "rejected"), decided(3, 0.4, "discarded")),
            decided(2, 0.6, "corrected", node=-1),
            *(decided(1, None, "accepted", step=2), decided(2, float("nan"), "rejected", step=2)),
        ],
    )
    assert [(one.place, one.q, one.accepted) for one in trials(trace)] == [(1, 0.8, True), (2, 0.6, False)]
    known, unknown = Trial(1, 0.5, 0.4, True), Trial(1, 0.5, None, True)
    assert calibration([known, known._replace(chance=0.8)]).expected == pytest.approx(0.6)
    assert calibration([known, unknown]).expected is None


@pytest.mark.parametrize(
    ("decision", "greedy", "chance"),
    [
        (decided(1, 0.8, "accepted", p=0.2), False, 0.25),
        (decided(1, 0.2, "accepted", p=0.8), False, 1.0),
        (decided(1, 0.8, "rejected", p=0.2, rule="match"), False, 0.2),
        (decided(1, 0.8, "accepted", p=None), False, None),
        (decided(1, 0.8, "accepted", rule="typical"), False, None),
        (decided(1, 0.8, "corrected", node=-1), False, None),
        (decided(1, 0.8, "accepted"), True, None),
    ],
)
def test_a_sampled_draft_is_accepted_with_p_over_q_and_a_determined_one_with_p(decision, greedy, chance):
    found = chance_of(decision, greedy=greedy)
    assert found is chance is None or found == pytest.approx(chance)


def test_the_interval_of_a_share_is_wilsons():
    """8 of 10: (0.8 + z / 20) / (1 + z / 10) with z = 1.96², and its half width."""
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=5e-5)
    assert wilson(0, 3) == pytest.approx((0.0, 0.5615), abs=5e-5)
    assert wilson(3, 3)[1] == 1.0


@pytest.mark.parametrize("method", ["speculative", "tree"])
def test_real_draws_agree_with_the_expected_acceptance(method):
    run = bundled().run(method, "Tell me a story.", sampling=Sampling(0.8, seed=3), limits=Limits(150))
    everything, *places = calibrations(trials(run))
    tested = sum(d.outcome in ("accepted", "rejected") for d in run.decisions)
    assert everything.tested == sum(c.tested for c in places) == tested
    assert everything.accepted == sum(r.accepted for r in run.rounds)
    slots = {slot.slot: slot.tested for slot in measure(run).per_position if slot.tested}
    assert {c.place: c.tested for c in places} == slots
    deviation = (everything.expected * (1 - everything.expected) / everything.tested) ** 0.5
    assert abs(everything.accepted / everything.tested - everything.expected) < 4 * deviation


def test_figures_and_view_have_the_same_numbers():
    greedy = bundled().run("speculative", "Tell me a story.", limits=Limits(40))
    (view, *others), metrics = calibration_views(greedy), measure(greedy)
    assert view["error"] == pytest.approx(metrics.calibration_error, rel=1e-3)
    assert (view["expected"], metrics.expected_acceptance) == (None, None)
    assert view["tested"] == sum(view["bins"]["tested"])
    run = shown(greedy, redact_prompt=True)
    assert run["calibration"] == [view, *others]
    assert run["figures"]["calibration_error"] == f"{metrics.calibration_error:.3f}"
