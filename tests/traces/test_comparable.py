"""Which runs are compared, and how a view shows a run without a baseline."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from specscope.engine.trace.events import OTHERS, Device, Occupancy
from specscope.traces.checks import check
from specscope.traces.comparable import (
    Comparison,
    batch_size,
    comparisons,
    conditions,
    differences,
    other_load,
)
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.report import render_report
from specscope.traces.metrics import measure
from specscope.traces.view.document import view_model
from specscope.traces.view.figures import figure_rows
from tests.traces.samples import MS, sample_trace

WARM = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "seed": 7}
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 7}
MEASURED = {"runtime": "local-process", "profile": ""}
CPU = {"processor": "A", "gpus": [], "threads": 1}


def changed(trace, **fields):
    """Return the trace with other header fields."""
    trace.header = replace(trace.header, **fields)
    return trace


def batched(kind, size):
    """Return a sample whose rounds decode `size` sequences at once."""
    trace = sample_trace(kind)
    for name in ("rounds", "commits", "decisions"):
        rows = [replace(row, sequence=i) for row in getattr(trace, name) for i in range(size)]
        setattr(trace, name, rows)
    texts, header = trace.footer.texts * size, trace.header
    trace.footer = replace(trace.footer, texts=texts, reasons=trace.footer.reasons * size)
    return changed(
        trace, run_id=f"batch-{kind}", prompts=header.prompts * size, prompt_ids=header.prompt_ids * size
    )


def differing(group, other):
    """Return the names of the conditions that differ between two groups of runs."""
    return differences(conditions(group), conditions(other))


def changes(mine, theirs):
    """Return the differences between two samples with these header fields, in both directions."""
    first = changed(sample_trace("pearl"), **mine)
    second = changed(sample_trace("autoregressive"), **theirs)
    names = differing([first], [second])
    assert differing([second], [first]) == names
    return names


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
        (
            {"environment": CPU, **MEASURED},
            {"environment": {**CPU, "processor": "B"}, **MEASURED},
            ["machine"],
        ),
        ({"environment": CPU, **MEASURED}, {"environment": {**CPU, "threads": 2}, **MEASURED}, ["threads"]),
        (
            {"environment": CPU, **MEASURED},
            {"environment": {**CPU, "tp": 2}, **MEASURED},
            ["ranks of the target (tp)"],
        ),
        ({"environment": CPU, **MEASURED}, {"environment": {**CPU, "nodes": 2}, **MEASURED}, ["nodes"]),
        (
            {"environment": {**CPU, "stages": [4, 4]}, **MEASURED},
            {"environment": {**CPU, "stages": [5, 3]}, **MEASURED},
            ["layers of the target per device"],
        ),
        ({}, {"target_path": "other", "profile": "other"}, ["target", "profile"]),
    ],
)
def test_every_condition_of_a_comparison_is_named(mine, theirs, names):
    assert changes(mine, theirs) == names


def test_what_a_recording_does_not_know_is_no_difference():
    bare = {"environment": {"processor": "A"}, **MEASURED}
    assert changes({"environment": CPU, **MEASURED}, bare) == []
    gpu = {"environment": {**CPU, "gpus": ["G"]}, **MEASURED}
    assert changes(gpu, bare) == ["machine"]


def test_the_kind_of_the_targets_device_is_part_of_the_machine():
    gpu = (Device("cuda:0", "target", "GPU", "cuda"),)
    assert changes({**MEASURED, "devices": gpu}, MEASURED) == ["machine"]


def test_a_run_is_compared_with_the_plain_run_of_its_own_conditions():
    plain, other = sample_trace("autoregressive"), changed(sample_trace("autoregressive"), target_path="b")
    fast, slow = sample_trace("pearl"), changed(sample_trace("speculative"), target_path="b")
    found = comparisons([[fast], [other], [slow], [plain]])
    assert [c.baseline for c in found] == [3, 1, 1, 3]
    assert {c.reason for c in found} == {""}


def test_without_a_plain_run_of_its_conditions_the_closest_plain_run_names_what_differs():
    pearl = sample_trace("pearl")
    far = changed(sample_trace("autoregressive"), target_path="b", profile="b")
    near = changed(sample_trace("autoregressive"), sampling=GREEDY)
    assert comparisons([[pearl], [far], [near]])[0] == Comparison(None, "different sampling")
    assert comparisons([[pearl], [far]])[0] == Comparison(None, "different target, profile")
    pair = [[pearl], [sample_trace("speculative")]]
    assert comparisons(pair) == [Comparison(None, "no plain decoding among these runs")] * 2
    assert comparisons([[pearl]]) == [Comparison(None, "")]


def test_autoregressive_decoding_has_priority_over_a_method_that_found_no_draft():
    silent = changed(sample_trace("autoregressive"), method="prompt_lookup")
    assert [c.baseline for c in comparisons([[silent], [sample_trace("autoregressive")]])] == [1, 1]
    assert comparisons([[silent], [sample_trace("pearl")]])[1].baseline == 0


def test_a_run_that_has_decoded_nothing_is_no_baseline():
    starting = sample_trace("speculative")
    for rows in (starting.spans, starting.rounds, starting.commits):
        rows.clear()
    assert comparisons([[sample_trace("pearl")], [starting]])[0].baseline is None


def test_a_run_that_failed_is_no_baseline():
    failed = sample_trace("autoregressive")
    failed.footer = replace(failed.footer, status="failed")
    assert comparisons([[sample_trace("pearl")], [failed]])[0].baseline is None


def test_a_batch_is_compared_with_batched_plain_decoding_only():
    batch, plain = batched("pearl", 2), batched("autoregressive", 2)
    assert (batch_size(batch), batch_size(sample_trace("pearl"))) == (2, 1)
    single = sample_trace("autoregressive")
    missing = Comparison(None, "no batched plain decoding among these runs")
    assert comparisons([[batch], [single]])[0] == missing
    assert comparisons([[batch], [single, single]])[0] == missing, "the same prompts, one after the other"
    assert comparisons([[batch], [plain]])[0].baseline == 1
    assert comparisons([[batch], [batched("autoregressive", 3)]])[0].reason == "different prompt, batch size"


def test_runs_of_the_same_prompts_are_one_group():
    first, second = (
        sample_trace("autoregressive"),
        changed(sample_trace("autoregressive"), prompt_ids=((5,),)),
    )
    pearl, other = sample_trace("pearl"), changed(sample_trace("pearl"), prompt_ids=((5,),))
    assert differing([pearl, other], [first, second]) == []
    assert differing([pearl], [first]) == []
    assert differing([pearl], [second]) == ["prompt"]


def test_sequence_i_of_a_run_has_the_seed_of_run_i():
    several = batched("pearl", 2)
    for rows in (several.rounds, several.commits, several.decisions):
        rows[:] = [row for row in rows if row.sequence == 0]  # one sequence at a time
    first, second = sample_trace("autoregressive"), sample_trace("autoregressive")
    changed(second, sampling={**WARM, "seed": 8})
    assert differing([several], [first, second]) == []
    assert differing([several], [first, first]) == ["sampling"]


def test_the_cell_of_a_speed_up_names_what_differs():
    plain = changed(sample_trace("autoregressive"), prompt_ids=((9, 9),))
    runs = view_model([plain, sample_trace("pearl")])["runs"]
    assert runs[1]["figures"]["speedup"] == "different prompt"
    assert (runs[1]["over"], runs[1]["reason"], runs[1]["verdict"]["summary"]) == (
        None,
        "different prompt",
        "",
    )
    assert "different prompt" in render_report([plain, sample_trace("pearl")]).split("<script")[0]
    (alone,) = view_model([sample_trace("pearl")])["runs"]
    assert (alone["figures"]["speedup"], alone["reason"]) == ("–", "")


def test_a_batch_has_a_throughput_and_a_speed_per_sequence():
    batch = batched("autoregressive", 2)
    for i, commit in enumerate(batch.commits):
        if commit.sequence == 1:  # it ends after half the time
            batch.commits[i] = replace(commit, time=(commit.time - 15 * MS) // 2 + 15 * MS)
    metrics = measure(batch)
    assert metrics.tokens_per_second == pytest.approx(48 / metrics.decode_seconds)
    assert metrics.tokens_per_second_per_sequence == pytest.approx(48 / (1.5 * metrics.decode_seconds))
    main = {f["key"]: f["label"] for f in view_model([batch])["figures"] if f["main"]}
    assert main["tokens_per_second"] == "throughput, tokens/s"
    assert main["tokens_per_second_per_sequence"] == "tokens/s per sequence"
    usual = {f["key"]: f["label"] for f in figure_rows() if f["main"]}
    assert usual["tokens_per_second"] == "tokens/s"
    assert "tokens_per_second_per_sequence" not in usual


def test_a_sequence_that_waits_for_a_place_is_timed_from_its_own_prefill():
    batch = batched("autoregressive", 2)
    end, prefill = batch.commits[-1].time, batch.spans[0]
    joins = replace(prefill, id=9999, start=end, end=end + prefill.end, step=9)
    batch.spans.append(joins)
    later = [c if c.sequence == 0 else replace(c, time=c.time + end) for c in batch.commits]
    batch.commits = sorted(later, key=lambda c: c.time)
    alone = measure(sample_trace("autoregressive"))
    metrics = measure(batch)
    assert metrics.tokens_per_second_per_sequence == pytest.approx(alone.tokens_per_second)
    assert metrics.tokens_per_second < alone.tokens_per_second, "the second prefill is in between"


def test_the_acceptance_of_trees_is_a_number_of_tokens_per_round():
    runs = view_model([sample_trace("tree"), sample_trace("pearl")])["runs"]
    tree, chain = (run["figures"]["acceptance_rate"] for run in runs)
    metrics = runs[0]["metrics"]
    share, length = metrics["acceptance_rate"], metrics["mean_accepted_length"]
    assert tree == f"{100 * share:.0f} % of nodes, {length:.2f} per round"
    assert re.fullmatch(r"\d+ %", chain)


def test_both_definitions_of_acceptance_have_their_names_in_the_short_table():
    main = [row["label"] for row in view_model([sample_trace("tree")])["figures"] if row["main"]]
    assert {"accepted / drafted", "accepted / tested", "tokens / forward, own included"} <= set(main)


def test_the_badge_of_a_virtual_run_has_the_modelled_pair():
    facts = {"profile_pair": "llama-3-8-70", "tokens": "scripted"}
    trace = changed(sample_trace("pearl"), environment=facts)
    assert trace.header.clock == "virtual · sample-2xGPU · llama-3-8-70"
    model = view_model([trace])
    assert model["clocks"] == [model["runs"][0]["badge"]] == [trace.header.clock]
    assert json.dumps(trace.header.clock, ensure_ascii=False).strip('"') in render_report([trace])
    assert changed(trace, **MEASURED).header.clock == "measured · local-process"


def loaded(share, cores=4):
    trace = sample_trace("speculative", tokens=6)
    end = max(span.end for span in trace.spans)
    header = replace(trace.header, environment={**trace.header.environment, "cores": cores})
    return replace(trace, header=header, occupancy=[*trace.occupancy, Occupancy(OTHERS, end, share, 0)])


def test_a_busy_machine_is_named_in_pane_and_report(store):
    store.insert(loaded(0.325))
    stored = store.load("sample-speculative")
    sentence = "Other programs used 1.3 of 4 cores during the run: the times may be wrong."
    assert view_model([stored])["runs"][0]["busy"] == sentence
    assert sentence in render_report([stored])


def test_a_calm_machine_has_a_figure_and_no_warning():
    trace = loaded(0.1)
    assert view_model([trace])["runs"][0]["busy"] == ""
    assert "0.4 of 4 cores" in render_report([trace])


def test_a_run_without_this_row_or_without_cores_has_no_load():
    assert other_load(sample_trace("speculative", tokens=6)) is None
    assert other_load(loaded(0.9, cores=None)) is None
    assert view_model([sample_trace("speculative", tokens=6)])["runs"][0]["busy"] == ""


def test_other_programs_are_no_device():
    trace = loaded(0.5)
    check(trace)
    assert OTHERS not in measure(trace).measured_occupancy
    assert len(view_model([trace])["runs"][0]["tracks"]) == 2
    assert to_perfetto(trace)
    trace.occupancy.append(Occupancy("gpu9", 0, 0.5, 0))
    with pytest.raises(Exception, match="gpu9"):
        check(trace)
