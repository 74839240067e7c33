"""The best draft length from a run's own counts and times, beside measured runs of every length."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import levels_of
from specscope.traces.imports.logs.windows import Printed, trace_of, window
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.advice import advise
from specscope.traces.lengths.basis import GivenTimes
from specscope.traces.lengths.best import best_length
from specscope.traces.lengths.spread import LengthSpread
from specscope.traces.view.document import view_model
from tests.traces.samples import sample_trace
from tests.traces.test_whatif_times import loop, plain

PRINTED = Path(__file__).parent / "imported" / "printed"
TASK = """\
0.06.895.998 I slot print_timing: id  0 | task 0 |        eval time =    2640.00 ms /   211 tokens ({})
0.06.896.015 I slot print_timing: id  0 | task 0 | draft acceptance = 0.44444 (  120 accepted /   270 generated), \
mean acceptance length =  2.33, acceptance rate per position = (0.711, 0.422, 0.200)
0.06.896.057 I statistics        draft-mtp: #calls(b,g,a) =    1     90     90, #gen drafts =     90, \
#acc drafts =    64, #gen tokens =    270, #acc tokens =   120, dur(b,g,a) = 0.004, 810.000, 0.120 ms
"""
"""A request of llama.cpp: 90 rounds, drafts of 3 tokens in 9.0 ms, and 20.3 ms more a round."""
MOE = ((1, 0.0084), (2, 0.0135), (3, 0.0156), (5, 0.0207), (8, 0.0281))


@pytest.fixture
def logged(tmp_path):
    path = tmp_path / "llama-server.log"
    path.write_text(TASK)
    return read_traces(path).traces[0]


def test_a_log_of_llama_tells_the_speed_of_every_length(logged):
    found = best_length(logged, lengths=range(6))
    values = [one.value for one in found.lengths]
    assert values[1:4] == pytest.approx([73.3, 81.0, 79.5], rel=0.01)
    assert (found.best, found.unit, found.measured) == (2, "tokens/s", pytest.approx(210 / 2.64))
    first = found.lengths[0]
    assert (first.value, first.high) == (None, None), "plain decoding is at least as fast as a wide forward"
    assert first.low == pytest.approx(1 / 0.0203, rel=0.01)
    assert "2 to 3 cannot be told apart" in found.sentence
    assert "if further rows cost no time" in found.sentence
    assert [one.beyond for one in found.lengths] == [False] * 4 + [True] * 2


def test_given_times_replace_what_a_log_does_not_tell(logged):
    rows = best_length(logged, given=GivenTimes(row=0.1))
    first = 20.33 / 1.3
    assert rows.lengths[2].speedup == pytest.approx(2.133 * first / (6 + 1.2 * first), rel=0.02)
    assert rows.lengths[3].tokens_per_second == pytest.approx(210 / 2.64), (
        "the measured length keeps its speed"
    )
    widths = best_length(logged, given=GivenTimes(widths=((1, 0.015), (4, 0.0203))))
    assert widths.lengths[0].tokens_per_second == pytest.approx(1 / 0.015)
    assert widths.lengths[3].tokens_per_second == pytest.approx(2.333 / 0.0293, rel=0.01)
    assert widths.measured is None


def test_counts_without_times_need_c_and_tell_where_drafts_pay():
    (trace,) = read_traces(PRINTED / "05-vllm-metrics-after.prom").traces
    unknown = best_length(trace)
    assert (unknown.best, unknown.unit, {one.value for one in unknown.lengths}) == (None, "", {None})
    assert "--c" in unknown.sentence
    assert unknown.lengths[2].limit == pytest.approx((1.844 + 0.6 - 1) / 2, rel=0.01)
    found = best_length(trace, given=GivenTimes(c=0.1, row=0.02))
    assert found.lengths[2].speedup == pytest.approx(2.444 / 1.24, rel=0.01)
    assert found.lengths[2].tokens_per_second is None
    measured = best_length(trace, given=GivenTimes(c=0.3 / 8.4, widths=MOE))
    expected = [1.844 / 13.8, 2.444 / 16.2, 2.83 / 19.05, 3.1 / 21.9]
    assert [one.speedup for one in measured.lengths[1:5]] == pytest.approx(
        [8.4 * x for x in expected], rel=0.01
    )


def test_advice_and_the_estimate_are_one_computation(tmp_path):
    trace, baseline = loop(tmp_path / "run.jsonl"), plain(tmp_path / "plain.jsonl")
    found, metrics = best_length(trace, baseline), measure(trace)
    speed = metrics.tokens_per_second / measure(baseline).tokens_per_second
    advice = advise(trace, metrics, baseline, speed)
    assert found.measured == pytest.approx(speed)
    assert advice["config"] == {"tokens of a draft": found.best}
    assert advice["speedup"] == pytest.approx(found.lengths[found.best].speedup)
    assert found.lengths[7].speedup == pytest.approx(speed)


@pytest.mark.parametrize(
    ("profile", "pair"), [("pearl-4xA100", None), ("8xA100", "vicuna-7b-alpaca"), ("H100", None)]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_runs_of_every_length_lie_in_the_interval(profile, pair, temperature):
    """A run of gamma 4 estimates the others; one in twenty may lie outside."""
    inside = tried = 0
    with specscope.open("bundled", runtime="virtual", profile=profile, profile_pair=pair) as cluster:
        for prompt in ("Once upon a time", "One day a dog"):
            options = {
                "limits": specscope.Limits(64),
                "sampling": specscope.Sampling(temperature=temperature, seed=1),
            }
            baseline = cluster.run("autoregressive", prompt, **options)
            runs = [cluster.run("speculative", prompt, config={"gamma": k}, **options) for k in range(1, 9)]
            speed = measure(baseline).tokens_per_second
            found = best_length(runs[3], baseline, range(9))
            assert found.lengths[4].speedup == pytest.approx(measure(runs[3]).tokens_per_second / speed)
            for one, run in zip(found.lengths[1:], runs, strict=True):
                inside += one.low <= measure(run).tokens_per_second / speed <= one.high
                tried += 1
    assert inside >= tried - 2


def test_the_interval_is_that_of_simulated_runs():
    """Rates are drawn from the Beta distributions of counts, then rounds at these rates."""

    levels, draws = levels_of((20, 8, 6, 10), 3), random.Random(1)
    found = []
    for _ in range(4000):
        rates = [draws.betavariate(one.accepted + 0.5, one.reached - one.accepted + 0.5) for one in levels]
        total = 0
        for _ in range(30):
            total += 1
            for rate in rates:
                if draws.random() >= rate:
                    break
                total += 1
        found.append(total / 30)
    low, high = LengthSpread(levels, 1.0, 3).interval(3, 2.0, 30)
    assert sum(low <= one <= high for one in found) / len(found) == pytest.approx(0.95, abs=0.015)


def test_a_run_that_is_mostly_its_end_is_refused_and_one_with_an_end_is_not(tmp_path):
    """Drafts become shorter with the rest of the output; all are rejected."""

    def run(tokens, gamma=8):
        path = tmp_path / f"{tokens}.jsonl"
        with specscope.record(path, "my loop", sampling={"temperature": 0}) as rec:
            rec.prompt(ids=[1])
            rec.start(1)
            now = 1
            for out in range(tokens):
                drafts = min(gamma, tokens - out - 1)
                for kind, rows in (*[("draft", 1)] * drafts, ("verify", drafts + 1)):
                    rec.add(kind, now, now + 1000 * (9 + rows), rows=rows)
                    now += 1000 * (9 + rows)
                rec.round([5] * drafts, 0, [6], time=now)
        return read_traces(path).traces[0]

    plain_run = run(20, gamma=0)
    with pytest.raises(UsageError, match="has drafts of different lengths, 53 % of them 8 tokens long"):
        best_length(run(16), plain_run)
    with pytest.raises(UsageError, match="has drafts of different lengths, 78 % of them 8 tokens long"):
        best_length(run(33), plain_run)
    assert best_length(run(40), plain_run).best == 0


@pytest.mark.parametrize(
    ("drafts", "best", "words"),
    [
        ([0] * 12, 0, "gamma 0 is best: no drafts"),
        ([7] * 12, None, "at places that no draft reached"),
    ],
)
def test_rejections_alone_and_acceptances_alone_are_not_certain(tmp_path, monkeypatch, drafts, best, words):
    monkeypatch.setattr("tests.traces.test_whatif_times.TEXT", range(10, 200))
    found = best_length(loop(tmp_path / "run.jsonl", drafts), plain(tmp_path / "plain.jsonl"))
    assert best is None or found.best == best
    assert words in found.sentence
    assert all(one.low < one.high for one in found.lengths[1:])


def run_of(method: str, **config) -> specscope.Trace:
    with specscope.open("bundled", runtime="virtual", profile="pearl-4xA100") as cluster:
        return cluster.run(method, "Once upon a time", config=config, limits=specscope.Limits(24))


@pytest.mark.parametrize(
    ("method", "config", "message"),
    [
        ("pearl", {"gamma": 3}, "pearl: drafter and target work at the same time"),
        ("tree", {"width": 2}, "drafts trees"),
        ("speculative", {"gamma": 4, "confidence": 0.5}, "no fixed length"),
        ("autoregressive", {}, "verified no draft"),
        ("speculative", {"gamma": 16}, "from 8 on their places have rates"),
    ],
)
def test_what_no_formula_describes_is_refused(method, config, message):
    with pytest.raises(UsageError, match=message):
        best_length(run_of(method, **config))


@pytest.mark.parametrize(
    ("given", "message"),
    [({"rows": False}, "times of its target's forwards and their rows"), ({"drafts": [3]}, "has 1 draft;")],
)
def test_a_loop_that_lacks_facts_is_refused(tmp_path, given, message):
    with pytest.raises(UsageError, match=message):
        best_length(loop(tmp_path / "run.jsonl", **given))


def test_rounds_without_a_draft_bring_one_token():
    """Half of 100 steps verified a draft; its 4 places kept 100 tokens: 200 tokens in all."""
    counts = {"steps": 100, "drafts": 50, "drafted": 200, "accepted": 100, "places": (45, 30, 15, 10)}
    trace = trace_of(Printed("an engine", "", [window(0, 10, tokens=200, **counts)]), "a log")
    found = best_length(trace, given=GivenTimes(c=0.1, row=0.0))
    assert [found.lengths[k].tokens for k in (0, 1, 4)] == pytest.approx([1, 1 + 0.5 * 0.9, 2])
    assert "50 % of the rounds verified a draft" in " ".join(found.notes)


def test_drafts_that_were_timed_as_a_whole_need_c(tmp_path):
    """Such a span is one forward, or one for each token: a replay refuses it, too."""
    trace, baseline = loop(tmp_path / "run.jsonl", once=True), plain(tmp_path / "plain.jsonl")
    found = best_length(trace, baseline)
    assert (found.unit, found.best) == ("", None)
    assert "give it with --c" in found.sentence
    assert "Only whole drafts were timed" in found.notes[0]
    assert advise(trace, measure(trace), baseline, 1.0) is None
    told = best_length(trace, baseline, given=GivenTimes(c=0.25))
    each = best_length(loop(tmp_path / "each.jsonl"), baseline)
    assert [one.tokens for one in told.lengths] == [one.tokens for one in each.lengths]
    assert told.best == each.best


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("printed/02-llama-server-response.json", "by place"),
        ("vllm-profile.json", "does not tell the accepted drafts by place"),
        ("printed/11-spec-bench-vanilla.jsonl", "verified no draft"),
    ],
)
def test_counts_that_are_not_told_by_place_are_refused(file, message):
    """The counts of a profile are unknown; those of plain decoding are 0."""
    (trace,) = read_traces(PRINTED.parent / file).traces
    with pytest.raises(UsageError, match=message):
        best_length(trace)


def test_the_counts_of_a_stream_are_those_of_its_rounds():
    """Its steps are not divided, so that only counts are known."""
    (trace,) = read_traces(PRINTED.parent / "servers" / "vllm-pair-completion-t0.jsonl").traces
    found = best_length(trace, given=GivenTimes(c=0.1, row=0.02))
    rates = [one.rate for one in measure(trace).per_level]
    share = sum(r.drafted > 0 for r in trace.rounds) / len(trace.rounds)
    assert found.lengths[2].tokens == pytest.approx(1 + share * (rates[0] + rates[0] * rates[1]))


def test_a_document_has_the_estimate_of_ended_runs_with_times(logged, tmp_path):
    runs = view_model([plain(tmp_path / "plain.jsonl"), loop(tmp_path / "run.jsonl")])["runs"]
    assert runs[0]["best"] is None
    assert (runs[1]["best"]["unit"], runs[1]["best"]["best"]) == ("×", 2)
    assert view_model([logged])["runs"][0]["best"]["unit"] == "tokens/s"
    assert view_model([sample_trace("pearl")])["runs"][0]["best"] is None
