"""Files of other engines that are cut, contradictory, too large or of another version."""

import gzip
import json

import pytest

from specscope.engine.errors import UsageError
from specscope.traces.imports import reading
from specscope.traces.imports.reading import read_traces
from specscope.traces.view.document import view_model
from tests.traces.test_imported import FILES, NAMES, rows_of


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
    "num_drafts": 2,
    "num_draft_tokens": 6,
    "num_accepted_tokens": 3,
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
        (
            VCR,
            step(num_accepted_tokens_per_pos=[1, 2, 0]),
            "_per_pos [1, 2, 0]; expected none above the one before",
        ),
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
        (("vllm-profile.json", ()), {"traceEvents": []}, "no scopes of speculative decoding on a GPU"),
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


PLACES = {
    "vllm.jsonl": lambda rows: rows[0]["metrics"]["speculative_decoding"],
    "aiperf.jsonl": lambda rows: rows[0]["spec_decode_acceptance"],
    "sglang.json": lambda rows: rows[0]["sglext"]["spec_tokens_details"],
    "vllm-vcr-steps.jsonl": lambda rows: rows[1]["scheduler"]["spec_decoding_stats"],
    "speculation_profile.json": lambda rows: rows[0],
}


@pytest.mark.parametrize("value", [None, True, -1, 2**60, 1.5, "x", [], {}, [[]], [-1], [2**40]])
@pytest.mark.parametrize("name", PLACES)
def test_values_of_other_types_are_bad_input(name, value, tmp_path):
    rows = rows_of(name)
    for field in PLACES[name](rows):
        changed = json.loads(json.dumps(rows))
        PLACES[name](changed)[field] = value
        (tmp_path / name).write_text("\n".join(map(json.dumps, changed)))
        try:
            found = read_traces(tmp_path / name)
        except UsageError:
            continue
        view_model(found.traces[:2])


def test_a_draft_longer_than_the_limit_takes_no_memory(refused):
    huge = {"per_step_drafted": [2**30, 2**30], "num_draft_tokens": 2**31}
    assert "0 to 1024" in refused("aiperf.jsonl", "spec_decode_acceptance", **huge)


def test_a_file_with_too_many_requests_is_refused(tmp_path):
    (tmp_path / "many.json").write_text("[" + ",".join(["{}"] * 10_001) + "]")
    with pytest.raises(UsageError, match="10001 requests; at most 10000"):
        read_traces(tmp_path / "many.json")


def test_a_file_with_too_many_tokens_is_refused(monkeypatch):
    monkeypatch.setattr(reading, "MOST_ROWS", 20)
    with pytest.raises(UsageError, match="more than 20 tokens and drafts"):
        read_traces(FILES / "vllm.jsonl")


def test_other_lines_of_vllm_vcr_are_refused(tmp_path):
    file = tmp_path / "other.jsonl"
    for first in ({"meta": {"model": "m"}}, {"prompt_tokens": 3, "output_tokens": 1, "ttft_ms": 2.0}):
        file.write_text(json.dumps(first))
        with pytest.raises(UsageError, match="file of requests, which does not say what was drafted"):
            read_traces(file)
    rows = rows_of("vllm-vcr-steps.jsonl")
    file.write_text("\n".join(map(json.dumps, [*rows, {"ts_ms": 1.0}])))
    with pytest.raises(UsageError, match="expected step statistics of vllm-vcr"):
        read_traces(file)
    file.write_text(json.dumps(rows[0]))
    with pytest.raises(UsageError, match="says nothing of speculative decoding"):
        read_traces(file)
    rows[0]["ts_ms"] = "soon"
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UsageError, match="ts_ms is 'soon'"):
        read_traces(file)


def test_an_unknown_file_names_the_document_with_all_forms(tmp_path):
    (tmp_path / "other.json").write_text('{"answer": 42}')
    with pytest.raises(UsageError, match=r"docs/traces\.md"):
        read_traces(tmp_path / "other.json")
