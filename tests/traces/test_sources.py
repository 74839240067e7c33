import json
from dataclasses import replace

import pytest

from engine.errors import UsageError
from engine.trace.events import SCHEMA, Copied, Document
from engine.trace.jsonl import to_json
from tests.traces.samples import DOCUMENT, PROMPT, WORDS, sample_trace
from traces.export.jsonl import read_file
from traces.export.report import render_report
from traces.view.document import view_model
from traces.view.sources import copies, sources


@pytest.fixture
def trace():
    return sample_trace("llma", tokens=60, acceptance=0.7)


def test_every_copied_token_is_in_its_source(trace):
    texts = {-1: [*PROMPT, *trace.token_ids()], 0: list(DOCUMENT)}
    drafted = {}
    for d in trace.decisions:
        if d.node >= 0:
            drafted.setdefault(d.step, []).append(d)
    assert {c.step for c in trace.copies} == set(drafted)
    seen = set()
    for copy in copies(trace):
        seen.add(copy["document"])
        text, ids = texts[copy["document"]], [d.token for d in drafted[copy["step"]]]
        start, position = copy["start"], copy["position"]
        assert position == drafted[copy["step"]][0].position
        assert copy["length"] == len(ids)
        end = min(start + copy["length"], position) if copy["document"] == -1 else start + copy["length"]
        assert text[start:end] == ids[: end - start]
        before = [*PROMPT, *trace.token_ids()][:position]
        assert text[start - copy["match"] : start] == before[-copy["match"] :]
    assert seen == {-1, 0}, "the sample copies from both"


def test_sources_are_the_texts_of_prompts_and_documents(trace):
    assert sources(trace) == [
        {"sequence": 0, "document": -1, "texts": [WORDS[t] for t in PROMPT]},
        {"sequence": -1, "document": 0, "texts": [WORDS[t] for t in DOCUMENT]},
    ]


def test_a_run_without_copies_has_no_sources():
    assert sources(sample_trace("speculative")) == []
    (run,) = view_model([sample_trace("speculative")])["runs"]
    assert (run["copies"], run["sources"]) == ([], [])


def test_a_text_with_an_unknown_token_is_left_out(trace):
    trace.add(Document(1, (1, 99)))
    assert [s["document"] for s in sources(trace)] == [-1, 0]


def test_a_character_of_several_tokens_is_the_text_of_the_last(trace):
    pieces = {50: " x", 51: r"\xe2\x80", 52: r"\x99", 53: "s", 54: r"\xff", 55: r"C:\new"}
    trace.pieces |= pieces
    trace.documents = [Document(0, tuple(pieces))]
    assert sources(trace)[1]["texts"] == [" x", "", "\u2019", "s", r"\xff", r"C:\new"]


def test_a_redacted_document_has_no_text_of_prompt_and_reference(trace):
    header = replace(trace.header, config={"copy": 4, "reference": "my secret text"})
    trace.header = header
    (run,) = view_model([trace], redact_prompt=True)["runs"]
    assert run["sources"] == []
    assert "secret" not in json.dumps(run)
    assert {(g["id"], g["text"]) for g in run["ghosts"]} == {(None, "▒")}
    assert "secret" not in render_report([trace], redact_prompt=True)
    assert "my secret text" in render_report([trace])
    (run,) = view_model([trace])["runs"]
    assert {g["text"] for g in run["ghosts"]} <= set(WORDS)


def test_a_long_text_among_the_settings_is_cut_in_the_heading(trace):
    trace.header = replace(trace.header, config={"reference": "a long  text\n" * 20})
    (run,) = view_model([trace])["runs"]
    assert run["config"] == "reference a long text a long text a long…"


def test_the_headline_without_a_drafter_names_the_target_only(trace):
    (run,) = view_model([trace])["runs"]
    assert [part["label"] for part in run["headline"]] == ["target busy", "target idle"]
    assert run["note"] == ""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"document": 3}, "document 3 of a copy is not in the trace"),
        ({"document": -2}, "document -2 of a copy is not in the trace"),
        ({"start": 1, "match": 2}, "a copy has start 1, match 2 and length 4"),
        ({"match": -1}, "a copy has start 5, match -1"),
        ({"length": -4}, "length -4"),
        ({"sequence": 1}, "sequence 1 is not among the header's 1 prompts"),
    ],
)
def test_an_invalid_copy_is_refused(tmp_path, trace, fields, message):
    values = {"step": 1, "sequence": 0, "document": 0, "start": 5, "match": 2, "length": 4, **fields}
    trace.copies = [Copied(**values)]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(to_json(e) for e in trace.events()))
    with pytest.raises(UsageError, match=message):
        read_file(path)


def test_a_file_of_schema_1_is_read(tmp_path):
    old = sample_trace("pearl")
    old.header = replace(old.header, schema=1)
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(to_json(e) for e in old.events()))
    assert read_file(path) == old
    assert SCHEMA == 5


def test_special_tokens_of_a_prompt_have_no_text(trace):
    trace.pieces[PROMPT[0]], trace.pieces[PROMPT[1]] = "<|im_start|>", "</s>"
    texts = sources(trace)[0]["texts"]
    assert texts == ["", "", *(WORDS[t] for t in PROMPT[2:])]
