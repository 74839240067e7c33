"""Which runs are compared, and how a view shows a run without a baseline."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from specscope.engine.trace.events import OTHERS, Device, Occupancy
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.report import render_report
from specscope.traces.facts.checks import check
from specscope.traces.facts.comparable import (
    Baseline,
    batch_size,
    comparisons,
    conditions,
    differences,
    other_load,
)
from specscope.traces.facts.metrics import measure
from specscope.traces.view.document import view_model
from specscope.traces.view.figures import figure_rows
from tests.traces.samples import sample_trace, shown, with_header

WARM = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "seed": 7}
GREEDY = {**WARM, "temperature": 0.0}
MEASURED = {"runtime": "local-process", "profile": ""}
CPU = {"processor": "A", "gpus": [], "threads": 1}


def sample(kind, **fields):
    return with_header(sample_trace(kind), **fields)


def batched(kind, size):
    """Return a sample whose rounds decode `size` sequences at once."""
    trace = sample_trace(kind)
    for name in ("rounds", "commits", "decisions"):
        rows = [replace(row, sequence=i) for row in getattr(trace, name) for i in range(size)]
        setattr(trace, name, rows)
    footer, header = trace.footer, trace.header
    trace.footer = replace(footer, texts=footer.texts * size, reasons=footer.reasons * size)
    ids = {"prompts": header.prompts * size, "prompt_ids": header.prompt_ids * size}
    return with_header(trace, run_id=f"batch-{kind}", **ids)


def differing(group, other):
    """Return the names of the conditions that differ between two groups of runs."""
    return differences(conditions(group), conditions(other))


def on(**facts):
    """Return the header fields of a measured run on a machine."""
    return {"environment": {**CPU, **facts}, **MEASURED}


BARE = {"environment": {"processor": "A"}, **MEASURED}
GPU = {**MEASURED, "devices": (Device("cuda:0", "target", "GPU", "cuda"),)}


@pytest.mark.parametrize(
    ("mine", "theirs", "names"),
    [
        ({}, {}, []),
        ({}, {"prompt_ids": ((9, 9),)}, ["prompt"]),
        ({}, {"target_path": "other"}, ["target"]),
        ({}, {"drafter_path": ""}, []),
        ({}, {"drafter_path": "other"}, ["drafter"]),
        ({}, MEASURED, ["clock"]),
        (MEASURED, {**MEASURED, "runtime": "local-thread"}, ["clock"]),
        ({}, {"profile": "other"}, ["profile"]),
        ({}, {"environment": {"profile_pair": "phi", "tokens": "scripted"}}, ["modelled pair"]),
        ({}, {"environment": {"tokens": "bernoulli:0.8"}}, ["token source"]),
        ({}, {"sampling": {**WARM, "temperature": 1.0}}, ["sampling"]),
        ({}, {"sampling": {**WARM, "top_k": 5}}, ["sampling"]),
        ({}, {"sampling": {**WARM, "top_p": 0.9}}, ["sampling"]),
        ({}, {"sampling": {**WARM, "seed": 8}}, ["sampling"]),
        ({"sampling": GREEDY}, {"sampling": {**GREEDY, "seed": 8, "top_k": 5}}, []),
        (on(), on(processor="B"), ["machine"]),
        (on(), on(threads=2), ["threads"]),
        (on(), on(tp=2), ["ranks of the target (tp)"]),
        (on(), on(nodes=2), ["nodes"]),
        (on(stages=[4, 4]), on(stages=[5, 3]), ["layers of the target per device"]),
        (on(), BARE, []),  # what a recording does not know is no difference
        (on(gpus=["G"]), BARE, ["machine"]),
        (GPU, MEASURED, ["machine"]),  # the kind of the target's device
        ({}, {"target_path": "other", "profile": "other"}, ["target", "profile"]),
    ],
)
def test_every_condition_of_a_comparison_is_named(mine, theirs, names):
    first, second = sample("pearl", **mine), sample("autoregressive", **theirs)
    assert differing([first], [second]) == differing([second], [first]) == names


def test_a_run_is_compared_with_the_plain_run_of_its_own_conditions():
    plain, other = sample("autoregressive"), sample("autoregressive", target_path="b")
    fast, slow = sample("pearl"), sample("speculative", target_path="b")
    found = comparisons([[fast], [other], [slow], [plain]])
    assert [c.baseline for c in found] == [3, 1, 1, 3]
    assert {c.reason for c in found} == {""}


def test_without_a_plain_run_of_its_conditions_the_closest_plain_run_names_what_differs():
    pearl = sample("pearl")
    far = sample("autoregressive", target_path="b", profile="b")
    near = sample("autoregressive", sampling=GREEDY)
    assert comparisons([[pearl], [far], [near]])[0] == Baseline(None, "different sampling")
    assert comparisons([[pearl], [far]])[0] == Baseline(None, "different target, profile")
    pair = [[pearl], [sample("speculative")]]
    assert comparisons(pair) == [Baseline(None, "no plain decoding among these runs")] * 2
    assert comparisons([[pearl]]) == [Baseline(None, "")]


def test_autoregressive_decoding_is_the_baseline_before_a_method_that_found_no_draft():
    silent = sample("autoregressive", method="prompt_lookup")
    assert [c.baseline for c in comparisons([[silent], [sample("autoregressive")]])] == [1, 1]
    assert comparisons([[silent], [sample("pearl")]])[1].baseline == 0
    starting = replace(sample("speculative"), spans=[], rounds=[], commits=[])
    failed = sample("autoregressive")
    failed.footer = replace(failed.footer, status="failed")
    for other in (starting, failed):
        assert comparisons([[sample("pearl")], [other]])[0].baseline is None


def test_a_batch_is_compared_with_batched_plain_decoding_only():
    batch, single = batched("pearl", 2), sample("autoregressive")
    assert (batch_size(batch), batch_size(sample("pearl"))) == (2, 1)
    missing = Baseline(None, "no batched plain decoding among these runs")
    assert comparisons([[batch], [single]])[0] == missing
    assert comparisons([[batch], [single, single]])[0] == missing, "the same prompts, one after the other"
    assert comparisons([[batch], [batched("autoregressive", 2)]])[0].baseline == 1
    assert comparisons([[batch], [batched("autoregressive", 3)]])[0].reason == "different prompt, batch size"


def test_runs_of_the_same_prompts_are_one_group_and_sequence_i_has_the_seed_of_run_i():
    first, second = sample("autoregressive"), sample("autoregressive", prompt_ids=((5,),))
    pearl, other = sample("pearl"), sample("pearl", prompt_ids=((5,),))
    assert differing([pearl, other], [first, second]) == []
    assert differing([pearl], [first]) == []
    assert differing([pearl], [second]) == ["prompt"]
    several = batched("pearl", 2)
    for rows in (several.rounds, several.commits, several.decisions):
        rows[:] = [row for row in rows if row.sequence == 0]  # one sequence at a time
    assert differing([several], [first, sample("autoregressive", sampling={**WARM, "seed": 8})]) == []
    assert differing([several], [first, first]) == ["sampling"]


def test_the_cell_of_a_speed_up_names_what_differs():
    plain, pearl = sample("autoregressive", prompt_ids=((9, 9),)), sample("pearl")
    run = view_model([plain, pearl])["runs"][1]
    assert run["figures"]["speedup"] == run["reason"] == "different prompt"
    assert (run["over"], run["verdict"]["summary"]) == (None, "")
    assert "different prompt" in render_report([plain, pearl]).split("<script")[0]


def test_a_batch_has_a_throughput_and_a_speed_per_sequence():
    batch, usual = view_model([batched("autoregressive", 2)])["figures"], figure_rows()
    main, usual = ({f["key"]: f["label"] for f in rows if f["main"]} for rows in (batch, usual))
    assert (main["tokens_per_second"], usual["tokens_per_second"]) == ("throughput, tokens/s", "tokens/s")
    assert main["tokens_per_second_per_sequence"] == "tokens/s per sequence"
    assert "tokens_per_second_per_sequence" not in usual


def test_the_acceptance_of_trees_is_a_number_of_tokens_per_round():
    model = view_model([sample("tree"), sample("pearl")])
    tree, chain = (run["figures"]["acceptance_rate"] for run in model["runs"])
    metrics = model["runs"][0]["metrics"]
    share, length = metrics["acceptance_rate"], metrics["mean_accepted_length"]
    assert tree == f"{100 * share:.0f} % of nodes, {length:.2f} per round"
    assert re.fullmatch(r"\d+ %", chain)
    main = {row["label"] for row in model["figures"] if row["main"]}
    assert {"accepted / drafted", "accepted / tested", "tokens / forward, own included"} <= main


def test_the_badge_of_a_virtual_run_has_the_modelled_pair():
    trace = sample("pearl", environment={"profile_pair": "llama-3-8-70", "tokens": "scripted"})
    model, clock = view_model([trace]), trace.header.clock
    assert clock == "virtual · sample-2xGPU · llama-3-8-70"
    assert model["clocks"] == [model["runs"][0]["badge"]] == [clock]
    assert json.dumps(clock, ensure_ascii=False).strip('"') in render_report([trace])
    assert with_header(trace, **MEASURED).header.clock == "measured · local-process"


def loaded(share, cores=4):
    trace = sample_trace("speculative", tokens=6)
    end = max(span.end for span in trace.spans)
    found = with_header(trace, environment={**trace.header.environment, "cores": cores})
    return replace(found, occupancy=[*trace.occupancy, Occupancy(OTHERS, end, share, 0)])


BUSY = "Other programs used 1.3 of 4 cores during the run: the times may be wrong."


@pytest.mark.parametrize(("share", "busy", "figure"), [(0.325, BUSY, BUSY), (0.1, "", "0.4 of 4 cores")])
def test_a_busy_machine_is_named_in_pane_and_report_and_a_calm_one_has_a_figure(store, share, busy, figure):
    store.insert(loaded(share))
    stored = store.load("sample-speculative")
    assert shown(stored)["busy"] == busy
    assert figure in render_report([stored])


def test_a_run_without_this_row_or_without_cores_has_no_load():
    assert other_load(sample_trace("speculative", tokens=6)) is None
    assert other_load(loaded(0.9, cores=None)) is None
    assert shown(sample_trace("speculative", tokens=6))["busy"] == ""


def test_other_programs_are_no_device():
    trace = loaded(0.5)
    check(trace)
    assert OTHERS not in measure(trace).measured_occupancy
    assert len(shown(trace)["tracks"]) == 2
    assert to_perfetto(trace)
    trace.occupancy.append(Occupancy("gpu9", 0, 0.5, 0))
    with pytest.raises(Exception, match="gpu9"):
        check(trace)
