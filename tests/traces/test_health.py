"""The health of a run: constructed faults, their places and bounds, sound and looping runs."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from math import log, prod
from pathlib import Path

import pytest

import specscope
from specscope.engine.trace.events import Commit, Copied, Decision
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.traces.export.report import render_report
from specscope.traces.health import ALPHA, LevelTest, change, health, level_tests, loop, stretch
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from tests.traces.samples import PROMPT, sample_trace

ASSETS = Path(__file__).parents[2] / "assets"
GAMMA = 4
BENCH = json.loads((ASSETS / "prompts" / "bench.json").read_text(encoding="utf-8"))["prompts"]
LOOPING = BENCH[1]


def run_of(*sequences: str, copied: bool = False) -> Trace:
    """Return a run whose sequences test drafts of four tokens: `a` accepted, `r` rejected.

    The texts have no token twice.
    """
    header = replace(
        sample_trace("speculative").header,
        prompts=("Hi",) * len(sequences),
        prompt_ids=(PROMPT,) * len(sequences),
    )
    trace = Trace(header)
    for sequence, outcomes in enumerate(sequences):
        position, step, node = len(PROMPT), 1, 0
        for outcome in outcomes:
            row = ("accepted", position) if outcome == "a" else ("rejected", position)
            decision = Decision(
                step, sequence, node, node - 1, row[1], row[1], None, 0.5, 0.5, "ratio", row[0], 0, 1
            )
            trace.add(decision)
            trace.add(Commit(step, sequence, position, 1000 * sequence + position, "accepted", "x", 0))
            if copied and not node:
                trace.add(Copied(step, sequence, 0, 0, 1, GAMMA))
            position, node = position + 1, node + 1
            if outcome == "r" or node == GAMMA:
                step, node = step + 1, 0
    trace.footer = trace.new_footer("done", reasons=("length",) * len(sequences))
    return trace


def mixed(length: int, rate: float, seed: int = 0) -> str:
    draws = random.Random(seed)
    return "".join("a" if draws.random() < rate else "r" for _ in range(length))


def rows_of(outcomes: str) -> list[LevelTest]:
    return [LevelTest(i, i, outcome == "a") for i, outcome in enumerate(outcomes, 1)]


def test_a_stretch_of_rejections_is_named_with_its_place_and_the_rate_of_the_rest() -> None:
    """The stretch begins at the 61st test, and so at token 61 of the output."""
    note = health(run_of("ar" * 30 + "a" + "r" * 40 + "ar" * 30))
    assert note.startswith("All 40 drafts tested in a row at tokens 62 to 101 (steps ")
    assert note.endswith(" were rejected; of the other tests, 50 % were.")


def test_acceptances_are_suspect_only_where_the_rest_has_rejections() -> None:
    assert "drafts tested in a row" in health(run_of("ar" * 20 + "a" * 60 + "ra" * 20))
    assert health(run_of("a" * 300)) == "", "a drafter may be always right"
    assert health(run_of("a" * 150 + "r" + "a" * 150)) == "", "the rest is nearly always right, too"


def test_the_bound_of_a_stretch_is_size_times_its_probability_after_the_other_tests() -> None:
    """20 rejections after 20 other tests with 9: 10 / 22 for the first, 11 / 23 for the second."""
    rows = rows_of("ar" * 9 + "aa" + "r" * 20)
    chance = prod((10 + i) / (22 + i) for i in range(20))
    found = stretch(rows, 1)
    assert found is not None
    assert (found.start, found.end, found.rest) == (20, 40, 9 / 20)
    assert found.chance == pytest.approx(log(chance))
    assert stretch(rows, int(ALPHA / chance)) is not None
    assert stretch(rows, int(ALPHA / chance) + 1) is None


def test_rejections_only_are_judged_as_those_of_a_drafter_that_is_right_in_a_fifth() -> None:
    """n * 0.8^n is below 1e-4 from n = 60 on."""
    assert next(n for n in range(50, 70) if n * 0.8**n < ALPHA) == 60
    assert health(run_of("r" * 59)) == ""
    assert health(run_of("r" * 60)) == (
        "All 60 drafts tested in a row at tokens 1 to 60 (steps 1 to 60) were rejected."
    )


def test_a_fall_is_named_though_it_makes_lucky_stretches_likely() -> None:
    """90 % of 200 tests, then 20 % of 200: stretches of either side are no news."""
    before, after = mixed(200, 0.9, seed=1), mixed(200, 0.2, seed=2)
    assert stretch(rows_of(before + after), 400) is not None
    note = health(run_of(before + after))
    assert note.startswith("The acceptance of tested drafts fell from 9")
    assert "in a row" not in note
    rise = health(run_of(after + before))
    assert rise.startswith("The acceptance of tested drafts rose")
    assert "in a row" not in rise


def test_a_stretch_that_is_improbable_on_its_side_is_named_beside_a_change() -> None:
    both = health(run_of(mixed(150, 0.9) + "r" * 40 + mixed(150, 0.9, 1) + mixed(300, 0.35, 2)))
    assert re.match(r"All 4\d drafts tested in a row at .* were rejected; of the other tests, ", both)
    assert "The acceptance of tested drafts fell" in both
    alone = health(run_of(mixed(150, 0.9) + "r" * 60))
    assert alone.startswith("All 6"), "the rejections are the change"
    assert "fell" not in alone


@pytest.mark.parametrize(("rule", "temperature"), [("ratio", 0.7), ("match", 0.7), ("ratio", 0)])
def test_acceptance_that_contradicts_p_and_q_has_a_note(rule: str, temperature: float) -> None:
    """Of 99 tests with p 0.33 and q 0.6, 54 are expected by p/q, and 33 by p alone."""

    def judged(accepted: str, p: float) -> str:
        trace = run_of(accepted)
        trace.decisions = [replace(d, p=p, q=0.6, rule=rule) for d in trace.decisions]
        trace.header = replace(trace.header, sampling={"temperature": temperature})
        return health(trace)

    few, right = (
        "r" * 6 + "ra" * 7 + "r" * 20 + "ra" + "r" * 57,
        mixed(99, 0.33 if rule == "match" else 0.55, 5),
    )
    expected = 33 if rule == "match" else 54
    note = judged(few, 0.33)
    assert (f"{expected} are expected to be accepted by the recorded p and q, and 8 were (z = -" in note) is (
        temperature > 0
    )
    assert "expected" not in judged(right, 0.33)
    if rule == "ratio" and temperature:
        certain = judged("a" * 90 + "r" * 9, 0.6)
        assert "99 are expected to be accepted by the recorded p and q, and 90 were:" in certain


def test_a_change_of_the_rate_is_named_at_its_sharpest_split() -> None:
    """90 % of 80 tests, then 40 % of 80: z = -0.5 / sqrt(0.65 * 0.35 * (1/80 + 1/80)) = -6.63."""
    rows = rows_of("aaaaaaaaar" * 8 + "raarr" * 16)
    found = change(rows, len(rows))
    assert found is not None
    assert found.at in range(79, 82)
    assert found.before == pytest.approx(0.9, abs=0.02)
    assert found.after == pytest.approx(0.4, abs=0.02)
    assert found.z == pytest.approx(-6.63, abs=0.3), "the best split is at least as sharp"
    assert change(rows_of("aaaaaaaaar" * 8 + "aaaar" * 16), 160) is None, "a small change"
    assert change(rows_of("aaaaaaaaar" * 3 + "raarr" * 6), 60) is None, "few tests"
    note = health(run_of("aaaaaaaaar" * 8 + "raarr" * 16))
    assert note.startswith("The acceptance of tested drafts fell from 9")


def test_sound_runs_of_one_rate_have_no_note() -> None:
    """The bound is 1e-4 per kind of note: not one of 240 runs has one."""
    rates = (0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
    assert [note for seed in range(240) if (note := health(run_of(mixed(200, rates[seed % 6], seed))))] == []


def test_copied_drafts_are_not_tested_one_by_one() -> None:
    outcomes = "ar" * 20 + "a" * 60 + "ra" * 20
    assert level_tests(run_of(outcomes, copied=True)) == {}
    assert health(run_of(outcomes, copied=True)) == ""


def test_a_sequence_of_a_batch_is_named() -> None:
    sound, ill = mixed(120, 0.7), "ar" * 30 + "r" * 40
    assert health(run_of(sound, ill)).startswith("Sequence 2: All 4")
    assert health(run_of(ill, ill)).endswith(" Also in 1 other sequence.")


@pytest.mark.parametrize(("period", "times"), [(1, 48), (5, 10), (12, 4), (100, 4)])
def test_a_loop_is_found_with_its_place(period: int, times: int) -> None:
    before, after = list(range(1000, 1030)), list(range(2000, 2020))
    found = loop(before + list(range(period)) * times + after)
    assert found == (period, 31, 30 + period * times)
    assert found.times == times


def test_short_or_rare_repetitions_are_no_loop() -> None:
    assert loop([7] * 47) is None
    assert loop(list(range(40)) * 3) is None
    assert loop(list(range(200)) * 4) is None, "longer than the longest period"
    assert loop([-1] * 500) is None, "an imported run without ids"
    assert loop([]) is None


def test_a_loop_explains_acceptances() -> None:
    trace = run_of("ar" * 20 + "a" * 80)
    trace.commits = [replace(c, token=c.position % 4 if c.position > 45 else c.token) for c in trace.commits]
    note = health(trace)
    assert note.startswith("The text repeats 4 tokens ")
    assert "tested" not in note


@pytest.fixture(scope="module")
def cluster():
    with specscope.open("bundled", runtime="virtual", profile="pearl-4xA100") as opened:
        yield opened


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "pearl"])
def test_a_looping_greedy_run_of_the_bundled_pair_has_a_note(cluster, method) -> None:
    run = cluster.run(method, LOOPING, limits=Limits(320))
    ids, note = run.token_ids(), health(run)
    assert note.startswith("The text repeats 15 tokens 17 times, tokens 36 to 304")
    assert ids[35:304] == (ids[35:50] * 18)[:269]
    assert ("easy to draft" in note) == (method != "autoregressive")


def test_sampled_runs_of_the_bundled_pair_are_sound(cluster) -> None:
    for seed, prompt in enumerate(BENCH[:4]):
        run = cluster.run("speculative", prompt, sampling=Sampling(1.0, seed=seed), limits=Limits(150))
        assert health(run) == "", prompt


def test_the_bundled_runs_are_sound() -> None:
    files = sorted((ASSETS / "demo").glob("*.jsonl.gz"))
    assert len(files) > 2
    for file in files:
        (trace,) = read_traces(file).traces
        assert health(trace) == "", file.name


def test_the_note_is_in_verdict_and_report_also_without_a_baseline() -> None:
    trace = run_of("r" * 70)
    (run,) = view_model([trace])["runs"]
    assert run["verdict"]["health"] == health(trace) != ""
    assert run["verdict"]["summary"] == ""
    assert f'<th scope="row">health</th><td>{health(trace)}</td>' in render_report([trace])
    trace.footer = replace(trace.footer, status="cancelled")
    assert view_model([trace])["runs"][0]["verdict"]["health"] == ""
