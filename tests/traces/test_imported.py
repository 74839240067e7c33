"""Files of other engines become traces; what a file does not hold stays unknown."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from specscope.engine.errors import StoreError, UsageError
from specscope.engine.trace.jsonl import read_jsonl, to_json
from specscope.traces.definitions import FACTS, FIGURES
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.report import render_report
from specscope.traces.export.tables import write_csv
from specscope.traces.imported import NO_TOKEN, origin
from specscope.traces.imports import reading
from specscope.traces.imports.modelopt import profile_of
from specscope.traces.imports.reading import FORMS, read_traces
from specscope.traces.metrics import measure
from specscope.traces.view.document import view_model
from specscope.traces.view.figures import UNKNOWN
from tests.traces.samples import sample_trace

FILES = Path(__file__).parent / "imported"
NAMES = (
    "vllm.jsonl",
    "aiperf.jsonl",
    "sglang.json",
    "vllm-vcr-steps.jsonl",
    "speculation_profile.json",
    "sglang-profile.json",
    "vllm-profile.json",
)


NOTHING = {
    "num_spec_tokens": 5,
    "num_drafts": 0,
    "num_draft_tokens": 0,
    "num_accepted_tokens": 0,
    "num_accepted_tokens_per_pos": [0] * 5,
}
"""The statistics of a step that verified no draft."""


def rows_of(name):
    """Return the JSON values of an example file."""
    text = (FILES / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]


def test_accepted_tokens_after_the_end_of_the_text_are_counted_but_have_no_id(tmp_path):
    row = rows_of("vllm.jsonl")[0]
    row["choices"][0]["token_ids"] = [11, 12, 13, 14, 15, 16]
    row["usage"]["completion_tokens"] = 6
    (tmp_path / "cut.json").write_text(json.dumps(row))
    (trace,) = read_traces(tmp_path / "cut.json").traces
    assert trace.token_ids() == [11, 12, 13, 14, 15, 16]
    assert trace.rounds[-1].accepted == 3
    assert trace.rounds[-1].emitted == 1
    last = [(d.token, d.outcome) for d in trace.decisions if d.step == 3]
    assert last == [(16, "accepted"), (NO_TOKEN, "accepted"), (NO_TOKEN, "accepted")]
    assert measure(trace).accepted == 5


def test_steps_without_a_draft_leave_the_origins_open(tmp_path):
    row = rows_of("vllm.jsonl")[1]
    row["usage"]["completion_tokens"] = 9
    (tmp_path / "copied.json").write_text(json.dumps(row))
    (trace,) = read_traces(tmp_path / "copied.json").traces
    assert (trace.commits, trace.rounds, trace.decisions) == ([], [], [])
    metrics = measure(trace)
    assert (metrics.tokens, metrics.drafted, metrics.accepted) == (9, 4, 2)
    assert "origin of each token" in origin(trace.header).unknown


def test_steps_of_vllm_vcr_are_one_run_of_totals(tmp_path):
    """Of 4 drafts 3 have one accepted token or more, 2 have two, 1 has three."""
    (trace,) = read_traces(FILES / "vllm-vcr-steps.jsonl").traces
    rows = rows_of("vllm-vcr-steps.jsonl")
    rows[-1]["scheduler"]["spec_decoding_stats"]["num_draft_tokens"] = 3
    rows.append({"ts_ms": 99, "scheduler": {"spec_decoding_stats": NOTHING}})
    (tmp_path / "even.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (even,) = read_traces(tmp_path / "even.jsonl").traces
    assert [slot.unconditional for slot in measure(even).per_position] == [0.75, 0.5, 0.25]
    assert even.header.run_id != trace.header.run_id


def test_a_recording_may_have_more_steps_than_a_file_has_requests(monkeypatch):
    monkeypatch.setattr(reading, "MOST_RUNS", 4)
    assert len(rows_of("vllm-vcr-steps.jsonl")) > 4
    assert len(read_traces(FILES / "vllm-vcr-steps.jsonl").traces) == 1


def test_a_profile_of_model_optimizer_is_read_and_written_back():
    (trace,) = read_traces(FILES / "speculation_profile.json").traces
    written, read = profile_of(trace), rows_of("speculation_profile.json")[0]
    same = ("schema_version", "conditional_accept_rates", "marginal_accept_rates", "mean_accept_length")
    for name in (*same, "num_speculative_tokens", "acceptance_length_histogram"):
        assert written[name] == read[name], name


def test_a_profile_counts_the_longest_drafts_of_a_run(tmp_path):
    trace = sample_trace("speculative")
    profile = profile_of(trace)
    gamma = profile["num_speculative_tokens"]
    judged = [r.accepted for r in trace.rounds if r.drafted == gamma]
    assert profile["mean_accept_length"] == pytest.approx(1 + sum(judged) / len(judged), abs=1e-6)
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile))
    (again,) = read_traces(file).traces
    assert origin(again.header).counts.accepted == sum(judged)


@pytest.mark.parametrize(
    ("kind", "message"), [("autoregressive", "no draft"), ("pearl", "in parts"), ("tree", "trees")]
)
def test_a_run_without_chains_of_drafts_has_no_profile(kind, message):
    with pytest.raises(UsageError, match=message):
        profile_of(sample_trace(kind))


def test_rows_of_a_profiled_forward_are_the_tokens_of_its_batch():
    (trace,) = read_traces(FILES / "vllm-profile.json").traces
    assert [s.rows for s in trace.spans if s.model == "target" and s.kind != "sample"] == [5, 4]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_stored_written_and_read_again(name, tmp_path, store):
    found = read_traces(FILES / name)
    store.insert(*found.traces)
    for trace in found.traces:
        assert store.load(trace.header.run_id) == trace
        lines = tmp_path / "again.jsonl"
        lines.write_text("\n".join(to_json(event) for event in trace.events()))
        assert read_traces(lines).traces == (trace,)
        assert read_jsonl(lines.read_text().splitlines()) == trace


@pytest.mark.parametrize("name", NAMES)
def test_unknown_figures_say_so_and_nothing_is_a_speed_without_times(name):
    for trace in read_traces(FILES / name).traces:
        document = view_model([trace, sample_trace("autoregressive")])
        run = document["runs"][0]
        imported = origin(trace.header)
        assert run["badge"].startswith("imported · ")
        assert run["note"] == imported.sentence
        assert not run["baseline"]
        assert run["figures"]["speedup"] == "a run of another engine"
        assert {key for key, text in run["figures"].items() if text == UNKNOWN} == {
            key for key in imported.figures if key in run["figures"]
        }
        assert run["timed"] == bool(trace.spans)
        if not run["timed"]:
            assert run["tracks"] == []
            assert run["metrics"]["tokens_per_second"] is None
            assert run["figures"]["seconds"] == run["figures"]["both"] == UNKNOWN
        json.dumps(document, allow_nan=False)


def test_a_run_without_times_has_no_perfetto_trace_and_empty_cells(tmp_path):
    trace = read_traces(FILES / "vllm.jsonl").traces[1]
    with pytest.raises(UsageError, match="no times"):
        to_perfetto(trace)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        write_csv(trace, "tokens", file)
    head, first, *_ = (tmp_path / "t.csv").read_text().splitlines()
    cells = dict(zip(head.split(","), first.split(","), strict=True))
    assert (cells["time"], cells["token"], cells["origin"]) == ("", "", "plain")


def test_a_second_import_of_a_file_stores_nothing(store):
    found = read_traces(FILES / "vllm.jsonl")
    fresh = replace(found.traces[0], header=replace(found.traces[0].header, run_id="fresh"))
    store.insert(*found.traces)
    with pytest.raises(StoreError, match="already stored"):
        store.insert(fresh, found.traces[1])
    assert store.runs()[1] == 2


def test_a_report_says_what_is_unknown():
    (trace,) = read_traces(FILES / "sglang.json").traces
    summary = render_report([trace]).split("<script")[0]
    assert "<h2>Prompt</h2><p>unknown</p>" in summary
    assert "prompt left out" not in summary
    assert "nothing was decoded" not in summary
    assert origin(trace.header).sentence in summary


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        (5, "environment.imported"),
        (None, "environment.imported"),
        ({"source": 1, "unknown": []}, "environment.imported.source"),
        ({"source": "x", "unknown": 3}, "environment.imported.unknown"),
        ({"counts": {"gamma": 2**40}}, "environment.imported.counts.gamma"),
        ({"counts": {"histogram": [1] * 1026}}, "1026 numbers; at most 1025"),
    ],
)
def test_a_mark_of_another_form_is_refused(tmp_path, entry, place):
    trace = sample_trace("speculative")
    trace.header = replace(trace.header, environment={"imported": entry})
    (tmp_path / "marked.jsonl").write_text("\n".join(map(to_json, trace.events())))
    with pytest.raises(UsageError, match=re.escape(place)):
        read_traces(tmp_path / "marked.jsonl")


def test_every_figure_needs_known_facts_and_every_form_is_recognised_alone():
    assert {fact for figure in FIGURES.values() for fact in figure.needs} <= set(FACTS)
    for name in NAMES:
        assert sum(form.recognises(rows_of(name)[0]) for form in FORMS) == 1
