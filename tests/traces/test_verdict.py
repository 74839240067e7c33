"""The verdict on a run and the advised setting: facts of the run, and predictions by formulas."""

import re
from dataclasses import replace

import pytest

import specscope
from specscope.engine.drafting.pace import Probe
from specscope.engine.layout import Layout, Separate
from specscope.engine.types import Limits
from specscope.traces.advice import advise, kind_of, predicted
from specscope.traces.metrics import measure
from specscope.traces.places import first_rate, level_rate
from specscope.traces.rates import Rates, rates_of
from specscope.traces.view.document import view_model
from tests.traces.samples import sample_trace, slowed

PLAIN = sample_trace("autoregressive")
DRAFT = ((1, 0.1),)
PROBE = Probe(((1, 1.0), (9, 1.0)), DRAFT, DRAFT, 0.0, ((0.8,),) * 5, (), 1)
RATES = Rates(PROBE, (1.0,) * 5, 0.8, 1.0, 1.0)


def judged(trace, **options):
    return view_model([PLAIN, trace], **options)["runs"][1]["verdict"]


def test_a_fast_run_has_its_speed_its_overlap_and_its_lost_drafts() -> None:
    trace = sample_trace("pearl")
    metrics, found = measure(trace), judged(trace)
    both, lost = round(100 * metrics.waiting["both"]), metrics.drafted - metrics.accepted
    assert found["summary"] == (
        f"PEARL 1.36×: drafter and target worked at the same time for {both} % of decoding, and "
        f"{100 * metrics.acceptance_rate_tested:.0f} % of the tested drafts were right; "
        f"{lost} of {metrics.drafted} drafts were thrown away."
    )
    assert found["reason"] == ""


def test_a_method_that_takes_turns_has_the_tokens_and_the_time_of_a_forward() -> None:
    found = judged(sample_trace("speculative"))["summary"]
    brings, time = map(float, re.findall(r"brought (\S+) tokens in the time of (\S+) plain", found)[0])
    assert brings / time == pytest.approx(1.18, abs=0.02)
    assert "copied tokens were thrown away" in judged(sample_trace("llma"))["summary"]
    assert "1.00 tokens of each tree were accepted" in judged(sample_trace("tree"))["summary"]


def test_a_slow_run_says_where_the_time_of_a_forward_goes_and_what_costs_most() -> None:
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
    assert found["advice"].startswith("No setting is predicted to help")
    assert found["run"] is None


def test_a_planned_run_shows_what_was_predicted_beside_what_was_measured() -> None:
    trace = sample_trace("speculative")
    plan = {"nodes": 4, "levels": 4, "tokens_per_forward": 2.5, "speedup": 1.31}
    trace.header = replace(trace.header, environment={**trace.header.environment, "planned": plan})
    assert judged(trace)["summary"].endswith(". The plan predicted 1.31×.")
    learned = {**plan, "low": 1.2, "high": 1.4, "runs": 3}
    trace.header = replace(trace.header, environment={**trace.header.environment, "planned": learned})
    assert view_model([trace])["runs"][0]["planned"].endswith(
        "1.31× (1.20 to 1.40 by each of the last 3 runs of this method and pair on this machine)"
    )


def test_only_a_finished_run_with_a_baseline_has_a_verdict() -> None:
    slow = sample_trace("speculative")
    slow.header = replace(slow.header, prompt_ids=((9, 9),))
    assert judged(slow)["summary"] == ""
    slow = sample_trace("speculative")
    slow.footer = replace(slow.footer, status="cancelled")
    assert judged(slow)["summary"] == ""
    assert [view_model([t])["runs"][0]["verdict"]["summary"] for t in (PLAIN, slow)] == ["", ""]


def test_the_advice_is_a_setting_of_the_method_and_its_predicted_speed_up() -> None:
    found = judged(sample_trace("shared"))
    assert found["advice"] == "Try gamma 2: predicted 1.14× instead of 0.97×."
    assert found["run"]["method"] == "speculative"
    assert found["run"]["config"] == {"gamma": 2}
    assert judged(sample_trace("shared"), redact_prompt=True)["run"] is None


@pytest.mark.parametrize(
    "setting", [{"schedule": "average"}, {"confidence": 0.4}, {"off_below": 0.2}], ids=str
)
def test_nothing_is_predicted_for_lengths_that_adapt(setting) -> None:
    trace = sample_trace("shared")
    header = replace(trace.header, config={**trace.header.config, **setting})
    assert judged(replace(trace, header=header))["run"] is None


def test_another_method_is_advised_only_where_both_models_have_a_device() -> None:
    advice = judged(sample_trace("speculative"))["run"]
    assert (advice["method"], advice["setting"]) == ("pearl", "gamma 3")
    assert judged(sample_trace("shared"))["run"]["method"] == "speculative"


def test_on_one_card_no_method_is_advised_whose_models_work_at_once() -> None:
    """Both models are timed alone there, and wait for the same memory when they are not."""
    trace = sample_trace("speculative")
    names = {"gpu0": "cuda:0/drafter", "gpu1": "cuda:0/target"}
    devices = tuple(replace(device, name=names[device.name]) for device in trace.header.devices)
    spans = [replace(span, device=names[span.device]) for span in trace.spans]
    on_one = replace(trace, header=replace(trace.header, devices=devices), spans=spans)
    assert judged(on_one)["run"]["method"] == "speculative"


def test_siblings_that_lose_are_no_rejections_of_a_chain() -> None:
    """A tree's first siblings are right as often as the tokens of chains of the same drafter."""
    with specscope.open("bundled", profile="ratios", runtime="virtual") as cluster:
        texts = ("Explain gravity.", "Once upon a time there was a small town")
        for text in texts:
            limits = Limits(96)
            tree = cluster.run("specbranch", text, config={"gamma": 8, "length": 8}, limits=limits)
            chain = cluster.run("pearl", text, config={"gamma": 2}, limits=limits)
            plain = cluster.run("autoregressive", text, limits=limits)
            tested = measure(chain).acceptance_rate_tested
            assert first_rate(tree.decisions) == pytest.approx(tested, abs=0.02)
            assert first_rate(tree.decisions) > measure(tree).acceptance_rate_tested + 0.1
            assert rates_of(tree, measure(tree), plain).any == pytest.approx(tested, abs=0.02)
            own = view_model([tree, plain])["runs"][0]["verdict"]["summary"]
            assert (
                f"and {100 * level_rate(measure(tree).per_level):.0f} % of the tested levels had a right draft"
                in own
            )


def test_nothing_is_predicted_from_forwards_of_one_row() -> None:
    """What a second row costs is unknown then."""
    trace = sample_trace("pearl", gamma=1)
    assert rates_of(trace, measure(trace), sample_trace("autoregressive")) is None
    assert judged(trace)["run"] is None


def test_a_prediction_for_another_length_is_near_a_run_with_that_length() -> None:
    trace = sample_trace("speculative", tokens=400, gamma=6)
    plain = sample_trace("autoregressive", tokens=400)
    rates = rates_of(trace, measure(trace), plain)
    for gamma in (1, 2, 4):
        other = measure(sample_trace("speculative", tokens=400, gamma=gamma))
        faster = other.tokens_per_second / measure(plain).tokens_per_second
        assert predicted("turns", rates, gamma) == pytest.approx(faster, rel=0.1), gamma


def test_turns_with_one_rate_are_the_formula_of_leviathan() -> None:
    for gamma in (1, 3, 5):
        expected = (1 - 0.8 ** (gamma + 1)) / (0.2 * (gamma * 0.1 + 1))
        assert predicted("turns", RATES, gamma) == pytest.approx(expected)


def test_the_modes_of_pearl_are_counted_as_in_a_long_chain_of_its_steps() -> None:
    gamma, a = 4, 0.8
    post, tokens, time = 0.0, 0.0, 0.0
    for _ in range(2000):  # the probability that a step is a post-verify
        tokens += (1 - post) + post * sum(a**i for i in range(gamma))
        time += 1.0
        post = (1 - post) * a + post * a**gamma
    assert predicted("overlap", RATES, gamma) == pytest.approx(tokens / time, rel=1e-2)
    slow = replace(RATES, probe=replace(PROBE, first=((1, 0.5),), later=((1, 0.5),)))
    assert predicted("overlap", slow, gamma) == pytest.approx(tokens / time / 2, rel=1e-2)


def test_the_turns_of_dsi_draft_until_a_token_is_wrong() -> None:
    blocks = sum(0.8 ** (2 * i) for i in range(200))
    assert predicted("servers", RATES, 2) == pytest.approx(5 / (blocks * 2 * 0.1 + 1))


def test_the_order_of_work_follows_from_layout_and_settings() -> None:
    assert kind_of(Layout(Separate(turns=True)), {"gamma": 3}) == "turns"
    assert kind_of(Layout(Separate(drafters=0)), {"copy": 3}) == "turns"
    assert kind_of(Layout(lockstep=True), {"gamma": 3}) == "overlap"
    assert kind_of(Layout(lockstep=True), {"gamma": 3, "branches": 4}) is None
    assert kind_of(Layout(), {"gamma": 3}) is None
    assert kind_of(Layout(Separate(2, 1)), {"lookahead": 3}) == "servers"
    assert kind_of(Layout(Separate(turns=True), batch=4), {"gamma": 3}) is None


def test_where_nothing_is_predicted_to_help_the_needed_drafter_is_named() -> None:
    trace = sample_trace("shared", gamma=1)
    spans = [replace(s, end=s.end + (s.end - s.start) * 2) if s.kind == "draft" else s for s in trace.spans]
    commits = [replace(c, time=c.time * 2) for c in trace.commits]
    trace.spans[:], trace.commits[:] = spans, commits
    metrics = measure(trace)
    assert advise(trace, metrics, PLAIN, 0.6) is None
    found = judged(trace)
    number = r"(\d\.\d\d)"
    parts = re.fullmatch(
        rf"No setting is predicted to help: a drafter forward takes {number} plain tokens; one that takes less than "
        rf"{number} would pay at this acceptance\.",
        found["advice"],
    )
    assert parts, found
    assert float(parts[1]) > float(parts[2]) > 0
    assert found["run"] is None


def drafted(acceptance: float, kind: str = "speculative", **header):
    """Return a run of the sample's models with measured times."""
    trace = sample_trace(kind, tokens=60, acceptance=acceptance)
    facts = {"profile": "", "runtime": "local-process", **header}
    trace.header = replace(trace.header, **facts)
    return trace


def of_drafter(trace, **options):
    return view_model([trace], **options)["runs"][0]["verdict"]


@pytest.mark.parametrize("kind", ["speculative", "pearl", "tree"])
def test_a_drafter_that_is_often_wrong_has_a_better_one_with_its_measured_figures(kind) -> None:
    trace = drafted(0.4, kind)
    found, first = of_drafter(trace), measure(trace).per_level[0]
    assert found["drafter"].startswith(
        f"This drafter is wrong in {100 * (1 - first.rate):.0f} % of the first tokens. The target's own weights in "
        "4 bits (int4) need no training. On SmolLM2 at temperature 0, int4 agrees with the target on 99 %"
    )
    assert found["other"] == {"method": kind, "config": trace.header.config, "drafter": "int4"}
    assert found["summary"] == "", "it needs no baseline"
    assert of_drafter(trace, redact_prompt=True)["other"] is None


def test_int4_that_is_often_wrong_has_int8() -> None:
    found = of_drafter(drafted(0.4, drafter_path="/models/large/int4"))
    assert "These weights seem to lie on no 4-bit grid; int8 loses less." in found["drafter"]
    assert found["other"]["drafter"] == "int8"


@pytest.mark.parametrize(
    "trace",
    [
        drafted(0.95),
        drafted(0.95, drafter_path="/models/smollm2/int4"),
        drafted(0.4, drafter_path="/models/smollm2/int8"),
        drafted(0.4, profile="sample-2xGPU"),
        drafted(0.4, drafter_path=""),
        drafted(0.4, environment={"head": "/heads/eagle"}),
        drafted(0.4, kind="llma"),
        sample_trace("autoregressive"),
    ],
    ids=["right", "a right form", "int8", "virtual", "no drafter", "a head", "copies", "plain"],
)
def test_no_other_drafter_is_named_where_it_would_not_help_or_is_unknown(trace) -> None:
    assert (of_drafter(trace)["drafter"], of_drafter(trace)["other"]) == ("", None)


def test_a_pane_names_a_form_of_the_target_and_only_where_it_drafts() -> None:
    def name(kind: str, path: str) -> str:
        return view_model([drafted(0.9, kind, drafter_path=path)])["runs"][0]["drafter"]

    assert name("pearl", "/cache/models/smollm2/int4") == "int4 of smollm2"
    assert name("llma", "/cache/models/smollm2/int4") == ""
    assert name("pearl", "/cache/models/small") == ""
