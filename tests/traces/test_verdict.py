"""The verdict on a run and the advised setting: facts of the run, and predictions by formulas."""

from __future__ import annotations

import re
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

import pytest

import specscope
from specscope.engine.drafting.pace import Probe
from specscope.engine.layout import Layout, Separate
from specscope.engine.trace.recorder import LAYERS
from specscope.engine.types import Limits
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import first_rate, level_rate
from specscope.traces.facts.rates import RunRates, rates_of
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.advice import kind_of, predicted
from specscope.traces.lengths.best import best_length
from specscope.traces.view.document import view_model
from tests.traces.samples import bundled, sample_trace, shown, slowed, with_header

PLAIN = sample_trace("autoregressive")
DRAFT = ((1, 0.1),)
PROBE = Probe(((1, 1.0), (9, 1.0)), DRAFT, DRAFT, 0.0, ((0.8,),) * 5, (), 1)
RATES = RunRates(PROBE, (1.0,) * 5, 0.8, 1.0, 1.0)


def judged(trace, **options):
    return view_model([PLAIN, trace], **options)["runs"][1]["verdict"]


def test_a_fast_run_has_its_speed_its_overlap_and_its_lost_drafts():
    trace = sample_trace("pearl")
    metrics, found = measure(trace), judged(trace)
    both, lost = round(100 * metrics.waiting["both"]), metrics.drafted - metrics.accepted
    assert (found["summary"], found["reason"]) == (
        f"PEARL 1.36×: drafter and target worked at the same time for {both} % of decoding, and "
        f"{100 * metrics.acceptance_rate_tested:.0f} % of the tested drafts were right; "
        f"{lost} of {metrics.drafted} drafts were thrown away.",
        "",
    )


def test_a_method_that_takes_turns_has_the_tokens_and_the_time_of_a_forward():
    found = judged(sample_trace("speculative"))["summary"]
    brings, time = map(float, re.findall(r"brought (\S+) tokens in the time of (\S+) plain", found)[0])
    assert brings / time == pytest.approx(1.18, abs=0.02)
    assert "copied tokens were thrown away" in judged(sample_trace("llma"))["summary"]
    assert "1.00 tokens of each tree were accepted" in judged(sample_trace("tree"))["summary"]


def test_a_slow_run_says_where_the_time_of_a_forward_goes_and_what_costs_most():
    slow = slowed(sample_trace("speculative"), 5)
    found, metrics = judged(slow), measure(slow)
    parts = re.match(
        r"A target forward takes the time of (\S+) plain tokens: (\S+) for its (\S+) rows, (\S+) waiting for drafts, "
        r"(\S+) in which no model works\. Most of the loss is waiting for the drafter, .* \(c = (\S+)\)\. "
        r"Accepted by place in the draft: (\d+) %",
        found["reason"],
    )
    assert parts, found["reason"]
    time, verify, rows, draft, rest, c, first = map(float, parts.groups())
    assert verify + draft + rest == pytest.approx(time, abs=0.02)
    assert time == pytest.approx(metrics.tokens_per_target_forward / 0.2367, rel=0.01)
    assert (rows, c) == (5, pytest.approx(metrics.c, abs=0.06))
    assert first == round(100 * metrics.per_position[0].conditional)
    assert (found["advice"][:33], found["run"]) == ("No setting is predicted to help: ", None)


def test_a_planned_run_shows_what_was_predicted_beside_what_was_measured():
    def planned(**more):
        plan = {"nodes": 4, "levels": 4, "tokens_per_forward": 2.5, "speedup": 1.31, **more}
        environment = {**PLAIN.header.environment, "planned": plan}
        return with_header(sample_trace("speculative"), environment=environment)

    assert judged(planned())["summary"].endswith(". The plan predicted 1.31×.")
    assert shown(planned(low=1.2, high=1.4, runs=3))["planned"].endswith(
        "1.31× (1.20 to 1.40 by each of the last 3 runs of this method and pair on this machine)"
    )


def test_only_a_finished_run_with_a_baseline_has_a_verdict():
    slow = sample_trace("speculative")
    assert judged(with_header(slow, prompt_ids=((9, 9),)))["summary"] == ""
    assert judged(replace(slow, footer=replace(slow.footer, status="cancelled")))["summary"] == ""
    assert [shown(t)["verdict"]["summary"] for t in (PLAIN, slow)] == ["", ""]


def test_the_advice_is_a_setting_of_the_method_or_another_method_where_both_models_have_a_device():
    found = judged(sample_trace("shared"))
    assert found["advice"] == "Try gamma 2: predicted 1.14× instead of 0.97×."
    assert (found["run"]["method"], found["run"]["config"]) == ("speculative", {"gamma": 2})
    assert judged(sample_trace("shared"), redact_prompt=True)["run"] is None
    advice = judged(sample_trace("speculative"))["run"]
    assert (advice["method"], advice["setting"]) == ("pearl", "gamma 3")


def test_on_one_card_no_method_is_advised_whose_models_work_at_once():
    """Both models are timed alone there, and wait for the same memory when they are not."""
    trace = sample_trace("speculative")
    names = {"gpu0": "cuda:0/drafter", "gpu1": "cuda:0/target"}
    devices = tuple(replace(device, name=names[device.name]) for device in trace.header.devices)
    spans = [replace(span, device=names[span.device]) for span in trace.spans]
    on_one = with_header(replace(trace, spans=spans), devices=devices)
    assert judged(on_one)["run"]["method"] == "speculative"


@pytest.mark.parametrize(
    "trace",
    [
        *({"schedule": "average"}, {"confidence": 0.4}, {"off_below": 0.2}),
        sample_trace("pearl", gamma=1),  # what a second row costs is unknown
    ],
    ids=["schedule", "confidence", "off", "one row"],
)
def test_nothing_is_predicted_for_lengths_that_adapt_or_forwards_of_one_row(trace):
    if isinstance(trace, dict):
        shared = sample_trace("shared")
        trace = with_header(shared, config={**shared.header.config, **trace})
    else:
        assert rates_of(trace, measure(trace), PLAIN) is None
    assert judged(trace)["run"] is None


def test_siblings_that_lose_are_no_rejections_of_a_chain():
    """A tree's first siblings are right as often as the tokens of chains of the same drafter."""

    def run(method, **config):
        limits = Limits(96)
        return bundled("ratios").run(method, "Explain gravity.", config=config, limits=limits)

    tree, chain, plain = run("specbranch", gamma=8, length=8), run("pearl", gamma=2), run("autoregressive")
    tested = measure(chain).acceptance_rate_tested
    assert first_rate(tree) == pytest.approx(tested, abs=0.02)
    assert first_rate(tree) > measure(tree).acceptance_rate_tested + 0.1
    assert rates_of(tree, measure(tree), plain).any == pytest.approx(tested, abs=0.02)
    said = f"and {100 * level_rate(measure(tree).per_level):.0f} % of the tested levels had a right draft"
    assert said in view_model([tree, plain])["runs"][0]["verdict"]["summary"]


def test_a_prediction_for_another_length_is_near_a_run_with_that_length():
    trace, plain = (
        sample_trace("speculative", tokens=400, gamma=6),
        sample_trace("autoregressive", tokens=400),
    )
    rates = rates_of(trace, measure(trace), plain)
    for gamma in (1, 2, 4):
        other = measure(sample_trace("speculative", tokens=400, gamma=gamma))
        faster = other.tokens_per_second / measure(plain).tokens_per_second
        assert predicted("turns", rates, gamma) == pytest.approx(faster, rel=0.1), gamma


def test_turns_are_leviathans_formula_and_the_turns_of_dsi_draft_until_a_token_is_wrong():
    for gamma in (1, 3, 5):
        expected = (1 - 0.8 ** (gamma + 1)) / (0.2 * (gamma * 0.1 + 1))
        assert predicted("turns", RATES, gamma) == pytest.approx(expected)
    blocks = sum(0.8 ** (2 * i) for i in range(200))
    assert predicted("servers", RATES, 2) == pytest.approx(5 / (blocks * 2 * 0.1 + 1))


def test_the_modes_of_pearl_are_counted_as_in_a_long_chain_of_its_steps():
    gamma, a = 4, 0.8
    post, tokens, time = 0.0, 0.0, 0.0
    for _ in range(2000):  # the probability that a step is a post-verify
        tokens += (1 - post) + post * sum(a**i for i in range(gamma))
        time += 1.0
        post = (1 - post) * a + post * a**gamma
    assert predicted("overlap", RATES, gamma) == pytest.approx(tokens / time, rel=1e-2)
    slow = replace(RATES, probe=replace(PROBE, first=((1, 0.5),), later=((1, 0.5),)))
    assert predicted("overlap", slow, gamma) == pytest.approx(tokens / time / 2, rel=1e-2)


def test_the_order_of_work_follows_from_layout_and_settings():
    turns = Separate(turns=True)
    for layout, roles, kind in (
        (Layout(turns), {"length"}, "turns"),
        (Layout(Separate(drafters=0)), {"length", "picks"}, "turns"),
        (Layout(lockstep=True), {"length"}, "overlap"),
        (Layout(lockstep=True), {"length", "shape"}, None),
        (Layout(turns), {"length", "shape"}, None),
        (Layout(), {"length"}, None),
        (Layout(Separate(2, 1)), {"lookahead", "devices"}, "servers"),
        (Layout(turns, batch=4), {"length"}, None),
    ):
        assert kind_of(layout, roles) == kind


def test_where_nothing_is_predicted_to_help_the_needed_drafter_is_named():
    trace = sample_trace("shared", gamma=1)
    trace.spans = [
        replace(s, end=s.end + (s.end - s.start) * 2) if s.kind == "draft" else s for s in trace.spans
    ]
    trace.commits = [replace(c, time=c.time * 2) for c in trace.commits]
    found = judged(trace)
    parts = re.fullmatch(
        r"No setting is predicted to help: a drafter forward takes (\d\.\d\d) plain tokens; one that takes "
        r"less than (\d\.\d\d) would pay at this acceptance\.",
        found["advice"],
    )
    assert parts, found
    assert float(parts[1]) > float(parts[2]) > 0
    assert found["run"] is None


def drafted(acceptance: float, kind: str = "speculative", **header):
    """Return a run of the sample's models with measured times."""
    facts = {"profile": "", "runtime": "local-process", **header}
    return with_header(sample_trace(kind, tokens=60, acceptance=acceptance), **facts)


@pytest.mark.parametrize("kind", ["speculative", "pearl", "tree"])
def test_a_drafter_that_is_often_wrong_has_a_better_one(kind):
    trace = drafted(0.4, kind)
    found, first = shown(trace)["verdict"], measure(trace).per_level[0]
    assert found["drafter"].startswith(
        f"This drafter is wrong in {100 * (1 - first.rate):.0f} % of the first tokens. The target's own weights in "
        "4 bits (int4) need no training, and on the models that were measured they are seldom wrong"
    )
    assert found["other"] == {"method": kind, "config": trace.header.config, "drafter": "int4"}
    assert found["summary"] == "", "it needs no baseline"
    assert shown(trace, redact_prompt=True)["verdict"]["other"] is None
    found = shown(drafted(0.4, kind, drafter_path="/models/large/int4"))["verdict"]
    assert "These weights seem to lie on no 4-bit grid; int8 loses less" in found["drafter"]
    assert found["other"]["drafter"] == "int8"


NO_OTHER = {
    "right": drafted(0.95),
    "a right form": drafted(0.95, drafter_path="/models/smollm2/int4"),
    "int8": drafted(0.4, drafter_path="/models/smollm2/int8"),
    "virtual": drafted(0.4, profile="sample-2xGPU"),
    "no drafter": drafted(0.4, drafter_path=""),
    "a head": drafted(0.4, environment={"head": "/heads/eagle"}),
    "copies": drafted(0.4, kind="llma"),
    "plain": PLAIN,
}


@pytest.mark.parametrize("trace", NO_OTHER.values(), ids=NO_OTHER)
def test_no_other_drafter_is_named_where_it_would_not_help_or_is_unknown(trace):
    found = shown(trace)["verdict"]
    assert (found["drafter"], found["other"]) == ("", None)


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [("pearl", "smollm2/int4", "int4 of smollm2"), ("llma", "smollm2/int4", ""), ("pearl", "small", "")],
)
def test_a_pane_names_a_form_of_the_target_and_only_where_it_drafts(kind, path, name):
    assert shown(drafted(0.9, kind, drafter_path=f"/cache/models/{path}"))["drafter"] == name


# Recorded loops: where the time goes.


def recorded(path, *, forward, rows=1, batch=1, gamma=2, extra="", draft=0.0, config=None):
    """Record 12 rounds, of which every third accepts nothing; times in milliseconds.

    Without rows it is plain decoding. `extra` is work of 40 ms after each rejection. `draft` is the
    time of a drafted token.
    """
    path.unlink(missing_ok=True)
    now = [perf_counter_ns() - 10**10]

    def worked(kind: str, time: float, rec: Any, **facts: Any) -> None:
        now.append(now[-1] + round(1e6 * time))
        rec.add(kind, now[-2], now[-1], sequence=-1 if batch > 1 else 0, **facts)

    drafted = gamma if rows > 1 else 0
    sampling = {"temperature": 0}
    with specscope.record(path, target="t", sampling=sampling, rule="match", config=config) as rec:
        for _ in range(batch):
            rec.prompt("Hi", ids=[1, 2])
        worked("prefill", 4, rec, rows=2 * batch, context=0)
        for step in range(12):
            kept = drafted if step % 3 else 0
            for _ in range(drafted if draft else 0):
                worked("draft", draft, rec, rows=1, context=2 + step)
            worked("verify", forward, rec, rows=rows * batch, context=2 + step)
            for sequence in range(batch):
                tokens = [9] * drafted
                rec.round(tokens, kept, [*tokens[:kept], 5], sequence=sequence, time=now[-1])
            if extra and not kept:
                worked(
                    extra,
                    40,
                    rec,
                    rows=30 if extra == "prefill" else 0,
                    context=0 if extra == "prefill" else -1,
                )
    return read_traces(path).traces[0]


def of_recorded(path, plain, mine):
    """Return the verdict on a recorded loop beside a plain one."""
    traces = [recorded(path, **plain), recorded(path, **mine)]
    return view_model(traces)["runs"][1]


EXTRA = {
    "other": "work of the kind other",
    "prefill": "prefill during decoding",
    "sample": "deciding on tokens after the forward",
    "communicate": "moving data",
}


@pytest.mark.parametrize(("extra", "words"), EXTRA.items())
def test_work_that_is_no_forward_is_not_the_width_of_forwards(tmp_path, extra, words):
    """A verification takes 7 / 6 plain tokens, and 40 ms of 12 / 3 rejections in 12 rounds 2.2."""
    run = of_recorded(tmp_path / "r.jsonl", {"forward": 6}, {"forward": 7, "rows": 3, "extra": extra})
    reason = run["verdict"]["reason"]
    assert "1.17 for its 3.0 rows" in reason
    assert f"2.22 for {words}, 0.00 in which no model works. Most of the loss is {words}." in reason
    assert "rows cached" not in run["note"], "no forward is without its context"


def test_a_batch_is_compared_with_a_plain_forward_of_its_batch(tmp_path):
    plain, mine = {"forward": 8, "batch": 4}, {"forward": 22, "rows": 3, "batch": 4}
    found = of_recorded(tmp_path / "r.jsonl", plain, mine)["verdict"]
    assert (
        "a target forward brought 9.33 tokens in the time of 2.75 plain ones, which bring 4.00 each"
        in found["summary"]
    )
    assert "A target forward takes the time of 2.75 plain forwards: 2.75 for its 12.0 rows" in found["reason"]
    assert "the width of the target's forwards, 12.0 rows instead of 4.0." in found["reason"]


@pytest.mark.parametrize("layers", [None, 1, 2])
def test_no_draft_is_advised_that_is_longer_than_the_layers_that_draft_it(tmp_path, layers):
    mine = {"forward": 6.1, "rows": 2, "gamma": 1, "draft": 0.1, "config": layers and {LAYERS: layers}}
    advice = of_recorded(tmp_path / "r.jsonl", {"forward": 6}, mine)["verdict"]["advice"]
    assert ("Try drafts of 2 tokens" in advice) == (layers != 1)
    plain, run = (recorded(tmp_path / "r.jsonl", **given) for given in ({"forward": 6}, mine))
    note = f"No draft is longer than {layers}: each layer drafts one token."
    assert (note in best_length(run, plain).notes) == bool(layers)


def test_forwards_that_are_slow_without_more_rows_are_not_called_wide(tmp_path):
    traces = [recorded(tmp_path / "r.jsonl", forward=6), recorded(tmp_path / "r.jsonl", forward=30, rows=3)]
    for rows in (1, -1):
        slow = replace(traces[1], spans=[replace(s, rows=rows) for s in traces[1].spans])
        reason = view_model([traces[0], slow])["runs"][1]["verdict"]["reason"]
        assert "Most of the loss is the target's forwards." in reason
        assert "width" not in reason


@pytest.mark.parametrize("batch", [1, 4])
def test_more_rows_in_less_time_than_plain_forwards_are_other_conditions(tmp_path, batch):
    plain, mine = {"forward": 8, "batch": batch}, {"forward": 3, "rows": 3, "batch": batch}
    reason = of_recorded(tmp_path / "r.jsonl", plain, mine)["verdict"]["reason"]
    forwards = f"a target forward of {3 * batch}.0 rows took 3.00 ms, a plain one of {batch}.0 rows 8.00 ms"
    assert reason.startswith(
        f"This cannot be an effect of the method: {forwards}. Check that both runs have the same"
    )
