"""Files of other engines become traces; what a file does not hold stays unknown."""

import gzip
import json
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.trace.jsonl import read_jsonl, to_json
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.report import render_report
from specscope.traces.export.tables import write_csv
from specscope.traces.facts.definitions import FACTS, FIGURES
from specscope.traces.facts.imported import NO_TOKEN, origin
from specscope.traces.facts.metrics import measure
from specscope.traces.imports import reading
from specscope.traces.imports.modelopt import profile_of
from specscope.traces.imports.reading import FORMS, read_traces
from specscope.traces.view.document import view_model
from specscope.traces.view.figures import UNKNOWN
from tests.traces.samples import read_file, sample_trace, with_header

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


TOTALS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
NOTHING = {"num_spec_tokens": 5, **dict.fromkeys(TOTALS, 0), "num_accepted_tokens_per_pos": [0] * 5}
"""The statistics of a step that verified no draft."""


def rows_of(name):
    """Return the JSON values of an example file."""
    text = (FILES / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if name.endswith("l") else [json.loads(text)]


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a text to a file."""

    def write(text):
        (tmp_path / "file").write_text(text)
        return tmp_path / "file"

    return write


@pytest.fixture
def read(tmp_path):
    """Return a function that reads rows as a file, as one run."""

    def traces(*rows):
        file = tmp_path / "rows.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        return read_file(file)

    return traces


def test_accepted_tokens_after_the_end_of_the_text_are_counted_but_have_no_id(read):
    row = rows_of("vllm.jsonl")[0]
    row["choices"][0]["token_ids"] = [11, 12, 13, 14, 15, 16]
    row["usage"]["completion_tokens"] = 6
    trace = read(row)
    assert trace.token_ids() == [11, 12, 13, 14, 15, 16]
    assert (trace.rounds[-1].accepted, trace.rounds[-1].emitted) == (3, 1)
    last = [(d.token, d.outcome) for d in trace.decisions if d.step == 3]
    assert last == [(16, "accepted"), (NO_TOKEN, "accepted"), (NO_TOKEN, "accepted")]
    assert measure(trace).accepted == 5


def with_chances(row):
    """Return a response with log-probabilities of its tokens, as `logprobs` gives them."""
    words = ["The", " cat", " sat", " on", " the", " mat", ", and", " purred."]
    content = [{"token": word, "logprob": -i / 4, "top_logprobs": []} for i, word in enumerate(words)]
    row["choices"][0]["logprobs"] = {"content": content}
    return row


def test_log_probabilities_of_a_response_are_p_and_texts_of_its_tokens(read):
    trace = read(with_chances(rows_of("vllm.jsonl")[0]))
    assert "".join(commit.text for commit in trace.commits) == trace.footer.texts[0]
    told = {d.position: d.p for d in trace.decisions if d.p is not None}
    first = trace.commits[0].position
    assert told == {first + i: pytest.approx(math.exp(-i / 4)) for i in range(1, 8)}
    assert all(d.p is None for d in trace.decisions if d.token == NO_TOKEN)
    found = origin(trace.header)
    assert "texts of the tokens" not in found.unknown
    assert "probabilities" in found.unknown  # q, and p of rejected tokens
    assert "before temperature" in view_model([trace])["runs"][0]["note"]
    other = with_chances(rows_of("vllm.jsonl")[0])
    del other["choices"][0]["logprobs"]["content"][3]
    assert all(d.p is None for d in read(other).decisions)


def test_times_of_a_response_are_figures_without_a_timeline(read):
    row = rows_of("vllm.jsonl")[0]
    times = {
        "time_to_first_token_ms": 100.0,
        "generation_time_ms": 350.0,
        "mean_itl_ms": 50.0,
        "queue_time_ms": 9.0,
    }
    row["metrics"].update(times, tokens_per_second=17.8)
    trace = read(row)
    found = measure(trace)
    assert (found.ttft_ms, found.tpot_ms, found.seconds, found.decode_seconds) == (100.0, 50.0, 0.45, 0.35)
    assert found.tokens_per_second == pytest.approx(20.0)  # without the prefill and its token
    assert found.target_forwards is None
    assert not view_model([trace])["runs"][0]["timed"]
    assert read_jsonl([to_json(event) for event in trace.events()]) == trace
    for wrong in (-1.0, "soon", 1e300):
        row["metrics"]["generation_time_ms"] = wrong
        with pytest.raises(UsageError, match=r"metrics|generation_time_ms"):
            read(row)


def test_a_profile_of_a_cpu_has_the_scopes_of_its_host(written):
    """The file of a real vLLM on two cores, and with the long names of its batches."""
    text = (FILES / "vllm-profile-cpu.json").read_text()
    detailed = re.sub(
        r"execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)",
        r"execute_9_context_\1(sq\2sk7sqsq49sqsk56)_generation_\3(sq\4sk21sqsq25sqsk105)",
        text,
    )
    assert detailed != text
    odd = text.replace('"traceEvents": [', '"traceEvents": [{"ph": "X", "cat": [], "name": "gemm"}, ', 1)
    assert odd != text
    for content in (text, detailed, odd):
        (trace,) = read_traces(written(content)).traces
        assert Counter((span.kind, span.rows) for span in trace.spans) == {
            ("prefill", 8): 1,
            ("verify", 5): 3,
            ("draft", -1): 4,
            ("sample", -1): 4,
        }
        assert trace.header.devices[0].kind == "cpu"
    rows = json.loads(text)
    rows["traceEvents"].append({"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 1})
    with pytest.raises(UsageError, match="no scopes of speculative decoding on a GPU; vLLM writes them with"):
        read_traces(written(json.dumps(rows)))


def test_steps_without_a_draft_leave_the_origins_open(read):
    row = rows_of("vllm.jsonl")[1]
    row["usage"]["completion_tokens"] = 9
    trace = read(row)
    metrics = measure(trace)
    assert (trace.commits, trace.rounds, trace.decisions) == ([], [], [])
    assert (metrics.tokens, metrics.drafted, metrics.accepted) == (9, 4, 2)
    assert "origin of each token" in origin(trace.header).unknown


def test_steps_of_vllm_vcr_are_one_run_of_totals(read, monkeypatch):
    """Of 4 drafts 3 have one accepted token or more, 2 have two, 1 has three."""
    rows = rows_of("vllm-vcr-steps.jsonl")
    monkeypatch.setattr(reading, "MOST_RUNS", len(rows) - 1)
    trace = read_file(FILES / "vllm-vcr-steps.jsonl")
    rows[-1]["scheduler"]["spec_decoding_stats"]["num_draft_tokens"] = 3
    even = read(*rows, {"ts_ms": 99, "scheduler": {"spec_decoding_stats": NOTHING}})
    assert [slot.unconditional for slot in measure(even).per_position] == [0.75, 0.5, 0.25]
    assert even.header.run_id != trace.header.run_id


def test_a_profile_of_model_optimizer_is_read_and_written_back(read):
    written = profile_of(read_file(FILES / "speculation_profile.json"))
    known = rows_of("speculation_profile.json")[0]
    same = ("schema_version", "conditional_accept_rates", "marginal_accept_rates", "mean_accept_length")
    for name in (*same, "num_speculative_tokens", "acceptance_length_histogram"):
        assert written[name] == known[name], name
    trace = sample_trace("speculative")
    profile = profile_of(trace)
    judged = [r.accepted for r in trace.rounds if r.drafted == profile["num_speculative_tokens"]]
    assert profile["mean_accept_length"] == pytest.approx(1 + sum(judged) / len(judged), abs=1e-6)
    assert origin(read(profile).header).counts.accepted == sum(judged), "of the longest drafts"


@pytest.mark.parametrize(
    ("kind", "message"), [("autoregressive", "no draft"), ("pearl", "in parts"), ("tree", "trees")]
)
def test_a_run_without_chains_of_drafts_has_no_profile(kind, message):
    with pytest.raises(UsageError, match=message):
        profile_of(sample_trace(kind))


def test_rows_of_a_profiled_forward_are_the_tokens_of_its_batch():
    trace = read_file(FILES / "vllm-profile.json")
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
        run, imported = document["runs"][0], origin(trace.header)
        figures = run["figures"]
        assert run["badge"].startswith("imported · ")
        assert (run["note"], run["baseline"]) == (imported.sentence, False)
        assert figures["speedup"] == "a run of another engine"
        unknown = {key for key, text in figures.items() if text == UNKNOWN}
        assert unknown == figures.keys() & {*imported.figures}
        assert run["timed"] == bool(trace.spans)
        if not run["timed"]:
            assert run["tracks"] == []
            assert run["metrics"]["tokens_per_second"] is None
            assert figures["seconds"] == figures["both"] == UNKNOWN
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


def test_a_report_says_what_is_unknown():
    trace = read_file(FILES / "sglang.json")
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
    trace = with_header(sample_trace("speculative"), environment={"imported": entry})
    (tmp_path / "marked.jsonl").write_text("\n".join(map(to_json, trace.events())))
    with pytest.raises(UsageError, match=re.escape(place)):
        read_traces(tmp_path / "marked.jsonl")


def test_every_figure_needs_known_facts_and_every_form_is_recognised_alone():
    assert {fact for figure in FIGURES.values() for fact in figure.needs} <= set(FACTS)
    for name in NAMES:
        assert sum(form.recognises(rows_of(name)[0]) for form in FORMS) == 1


# Files that are cut, contradictory, too large or of another version.


@pytest.fixture
def refused(tmp_path):
    """Return a function that changes the first value of an example, and returns the error."""

    def attempt(file_name, *path, **fields):
        rows = rows_of(file_name)
        place = rows[0]
        for key in path:
            place = place[key]
        place.update(fields)
        file = tmp_path / file_name
        file.write_text("\n".join(map(json.dumps, rows)))
        with pytest.raises(UsageError) as caught:
            read_traces(file)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return attempt


AIPERF = "aiperf.jsonl", ("spec_decode_acceptance",)
SGLANG = "sglang.json", ("sglext", "spec_tokens_details")
VLLM = "vllm.jsonl", ("metrics", "speculative_decoding")
MODELOPT = "speculation_profile.json", ()
SCOPES = "sglang-profile.json"
VCR = "vllm-vcr-steps.jsonl", ("scheduler",)
STEP = {
    "num_spec_tokens": 3,
    **dict(zip(TOTALS, (2, 6, 3), strict=True)),
    "num_accepted_tokens_per_pos": [2, 1, 0],
}


def step(**fields):
    return {"spec_decoding_stats": STEP | fields}


@pytest.mark.parametrize(
    ("place", "fields", "message"),
    [
        # contradictions
        (("vllm.jsonl", ("usage",)), {"completion_tokens": 9}, "8 token ids, but completion_tokens is 9"),
        (("vllm.jsonl", ("choices", 0)), {"token_ids": [1] * 5}, "5 token ids, but completion_tokens is 8"),
        (AIPERF, {"completion_tokens": 3}, "3 tokens, but its steps make 4 to 7"),
        (AIPERF, {"num_spec_steps": 3}, "2 steps, but the number of steps is 3"),
        (AIPERF, {"per_step_accepted": [3, 5]}, "accepted 5 of 4"),
        (AIPERF, {"per_step_accepted": [2, 2]}, "does not count"),
        (AIPERF, {"per_step_drafted": [4]}, "has 2 entries, but"),
        (AIPERF, {"acceptance_histogram": {"x": 1}}, "a key 'x'"),
        (SGLANG, {"spec_num_correct_drafts": 6}, "5 accepted tokens, but the total is 6"),
        (SGLANG, {"spec_num_proposed_drafts": 4}, "5 tokens were accepted, but only 4 were drafted"),
        (MODELOPT, {"marginal_accept_rates": [0.8, 0.5, 0.25]}, "is 0.8, but the histogram gives 0.75"),
        (MODELOPT, {"num_speculative_tokens": 2}, "put out 4 tokens; expected at most 3"),
        (
            VCR,
            step(num_accepted_tokens=4),
            "step 1: the histogram counts 3 accepted tokens, but the total is 4",
        ),
        (VCR, step(num_accepted_tokens_per_pos=[1, 2, 0]), "[1, 2, 0]; expected none above the one before"),
        (VCR, step(num_drafts=1), "num_drafts is 1, num_accepted_tokens_per_pos [2, 1, 0]"),
        (VCR, step(num_draft_tokens=7), "expected at most num_drafts x num_spec_tokens = 6"),
        (VCR, step(num_draft_tokens=2), "3 tokens were accepted, but only 2 were drafted"),
        (VCR, step(num_accepted_tokens_per_pos=[2, 1]), "has 2 entries; num_spec_tokens is 3"),
        (VCR, step(num_spec_tokens=2, num_accepted_tokens_per_pos=[2, 1], num_draft_tokens=4), "is 2 and 3"),
        ((SCOPES, ("traceEvents", 2)), {"dur": -1}, "lasts -1"),
        ((SCOPES, ("traceEvents", 2)), {"pid": 1}, "2 GPUs; give the file of one rank"),
        # other versions
        (VLLM, {"version": 2}, "a field 'version'; expected only"),
        (VLLM, {"acceptance_histogram": {"0": 1}}, "expected a list"),
        (AIPERF, {"tree": []}, "AIPerf 0.12 and 0.13"),
        (SGLANG, {"per_step": []}, "a field 'per_step'"),
        (VCR, step(num_draft_tokens_per_pos=[2, 2, 2]), "a field 'num_draft_tokens_per_pos'; expected only"),
        (MODELOPT, {"schema_version": "2.0"}, "'2.0'; expected '1.0'"),
        (MODELOPT, {"measured": False}, "not measured"),
        (MODELOPT, {"verification_method": "block"}, "expected 'longest_prefix'"),
        ((SCOPES, ("traceEvents", 4)), {"name": "step[TARGET_VERIFY bs=1]"}, "another version of SGLang"),
        (
            ("vllm-profile.json", ()),
            {"traceEvents": []},
            "no scopes of speculative decoding; vLLM writes them",
        ),
    ],
)
def test_contradictions_and_other_versions_are_named(refused, place, fields, message):
    name, path = place
    assert message in refused(name, *path, **fields)


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_file_is_refused(name, tmp_path):
    content = (FILES / name).read_bytes()
    for share in (0.4, 0.97):
        (tmp_path / name).write_bytes(content[: int(share * len(content))])
        with pytest.raises(UsageError):
            read_traces(tmp_path / name)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_packed_with_gzip_is_the_same(name, tmp_path):
    packed = gzip.compress((FILES / name).read_bytes())
    (tmp_path / "packed").write_bytes(packed)
    ids = [trace.header.run_id for trace in read_traces(tmp_path / "packed").traces]
    assert ids == [trace.header.run_id for trace in read_traces(FILES / name).traces]
    for cut in (packed[:-9], packed[:40], packed[:3]):
        (tmp_path / "packed").write_bytes(cut)
        with pytest.raises(UsageError, match="gzip"):
            read_traces(tmp_path / "packed")


def test_a_file_with_too_many_requests_tokens_or_drafts_takes_no_memory(refused, tmp_path, monkeypatch):
    huge = {"per_step_drafted": [2**30, 2**30], "num_draft_tokens": 2**31}
    assert "0 to 1024" in refused("aiperf.jsonl", "spec_decode_acceptance", **huge)
    (tmp_path / "many.json").write_text("[" + ",".join(["{}"] * 10_001) + "]")
    with pytest.raises(UsageError, match="10001 requests; at most 10000"):
        read_traces(tmp_path / "many.json")
    whole = read_traces(FILES / "vllm.jsonl")
    monkeypatch.setattr(reading, "MOST_ROWS", 10)
    found = read_traces(FILES / "vllm.jsonl")
    assert (whole.totals, found.totals) == (0, 1)
    assert (
        found.notes[-1]
        == "1 request was read without the order of the steps: their tokens and drafts are more than 10"
    )
    first, last = found.traces
    assert first.rounds
    assert not last.rounds
    assert [_totals(trace) for trace in found.traces] == [_totals(trace) for trace in whole.traces]


def _totals(trace):
    metrics = measure(trace)
    return metrics.tokens, metrics.drafted, metrics.accepted, metrics.mean_accepted_length


STEPS = rows_of("vllm-vcr-steps.jsonl")
REQUESTS = "file of requests, which does not say what was drafted"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"meta": {"model": "m"}}], REQUESTS),
        ([{"prompt_tokens": 3, "output_tokens": 1, "ttft_ms": 2.0}], REQUESTS),
        ([*STEPS, {"ts_ms": 1.0}], "expected step statistics of vllm-vcr"),
        (STEPS[:1], "says nothing of speculative decoding"),
        ([{**STEPS[0], "ts_ms": "soon"}, *STEPS[1:]], "ts_ms is 'soon'"),
        ([{"answer": 42}], r"docs/traces\.md"),
    ],
)
def test_other_lines_and_unknown_files_are_refused(read, rows, message):
    with pytest.raises(UsageError, match=message):
        read(*rows)
