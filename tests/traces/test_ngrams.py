"""Pools of n-grams and look-ahead windows: the viewer's section, and the stored rows."""

import json
from dataclasses import replace

import pytest
from hypothesis import given

from specscope.engine.trace.events import Document, Footer, Round
from specscope.engine.trace.trace import Trace
from specscope.traces.export.report import render_report
from specscope.traces.view.document import view_model
from specscope.traces.view.ngrams import ngrams, sources
from tests.engine.worker.harness import scripted_cluster
from tests.traces import strategies
from tests.traces.samples import DOCUMENT, PROMPT, WORDS, sample_trace


def counts_up(path) -> int:
    """10, 11, ... 29, 10, ..."""
    return (int(path[-1]) - 9) % 20 + 10


def ahead(method: str = "lookahead", new: int = 60, **config: object) -> Trace:
    """Return a run in virtual time that uses a pool."""
    with scripted_cluster(counts_up, counts_up) as cluster:
        settings = {"level": 4, "window": 5, "guesses": 3} | config
        return cluster.run(method, [10, 11], config=settings, limits=cluster.limits(new))


@pytest.fixture(scope="module", params=["lookahead", "ouroboros"])
def trace(request):
    return ahead(request.param)


def test_pieces_have_the_text_of_every_token(trace):
    (run,) = view_model([trace])["runs"]
    ids = {i for row in run["ngrams"] for gram in (*row["window"], *row["gained"]) for i in gram}
    ids |= {i for row in run["ngrams"] for tried in row["tried"] for i in tried["ids"]}
    assert {str(i) for i in ids} <= set(run["pieces"])
    json.dumps(run["ngrams"], allow_nan=False)


def test_a_redacted_document_has_no_window(trace):
    (run,) = view_model([trace], redact_prompt=True)["runs"]
    assert run["ngrams"] == []


def test_incomplete_rounds_of_a_run_in_progress_are_left_out(trace):
    events = [trace.header, *trace.rows()]
    last = trace.rounds[-1]
    young = Trace.of([e for e in events if e != last and not isinstance(e, Footer)])
    assert isinstance(last, Round)
    assert len(ngrams(young)) == len(trace.rounds) - 1


@strategies.few
@given(strategies.traces())
def test_any_trace_has_its_rows(trace):
    for row in ngrams(trace):
        assert all(0 <= tried["accepted"] < len(tried["ids"]) for tried in row["tried"])


@pytest.fixture
def copied():
    return sample_trace("llma", tokens=60, acceptance=0.7)


def test_sources_are_the_texts_of_prompts_and_documents(copied):
    assert sources(copied) == [
        {"sequence": 0, "document": -1, "texts": [WORDS[t] for t in PROMPT]},
        {"sequence": -1, "document": 0, "texts": [WORDS[t] for t in DOCUMENT]},
    ]


def test_a_text_with_an_unknown_token_is_left_out(copied):
    copied.add(Document(1, (1, 99)))
    assert [s["document"] for s in sources(copied)] == [-1, 0]


def test_a_character_of_several_tokens_is_the_text_of_the_last(copied):
    pieces = {50: " x", 51: r"\xe2\x80", 52: r"\x99", 53: "s", 54: r"\xff", 55: r"C:\new"}
    copied.pieces |= pieces
    copied.documents = [Document(0, tuple(pieces))]
    assert sources(copied)[1]["texts"] == [" x", "", "\u2019", "s", r"\xff", r"C:\new"]


def test_a_redacted_document_has_no_text_of_prompt_and_reference(copied):
    header = replace(copied.header, config={"copy": 4, "reference": "my secret text"})
    copied.header = header
    (run,) = view_model([copied], redact_prompt=True)["runs"]
    assert run["sources"] == []
    assert "secret" not in json.dumps(run)
    assert {(g["id"], g["text"]) for g in run["ghosts"]} == {(None, "▒")}
    assert "secret" not in render_report([copied], redact_prompt=True)
    assert "my secret text" in render_report([copied])
    (run,) = view_model([copied])["runs"]
    assert {g["text"] for g in run["ghosts"]} <= set(WORDS)


def test_a_long_text_among_the_settings_is_cut_in_the_heading(copied):
    copied.header = replace(copied.header, config={"reference": "a long  text\n" * 20})
    (run,) = view_model([copied])["runs"]
    assert run["config"] == "reference a long text a long text a long…"


def test_the_headline_without_a_drafter_names_the_target_only(copied):
    (run,) = view_model([copied])["runs"]
    assert [part["label"] for part in run["headline"]] == ["target busy", "target idle"]
    assert run["note"] == ""


def test_special_tokens_of_a_prompt_have_no_text(copied):
    copied.pieces[PROMPT[0]], copied.pieces[PROMPT[1]] = "<|im_start|>", "</s>"
    texts = sources(copied)[0]["texts"]
    assert texts == ["", "", *(WORDS[t] for t in PROMPT[2:])]
