"""LLMA and prompt lookup: copies, their ends and their trace rows, in virtual time."""

from __future__ import annotations

import pytest

from specscope.engine.trace.events import Copied, Document
from specscope.engine.types import Limits
from tests.engine.methods.test_baselines import JUDGED_US, TARGET_US, rounds, run, times

COUNTED = [*range(10, 60), 10, 11]
"""The target counts on: 12, 13, ..."""


def test_a_right_copy_emits_itself_and_a_bonus_token():
    trace = run("llma", COUNTED, 24)
    assert rounds(trace) == [(7, 7, 8)] * 3
    assert trace.token_ids() == list(range(12, 36))
    assert trace.copies == [Copied(i + 1, 0, -1, 2 + 8 * i, min(2 + 8 * i, 5), 7) for i in range(3)]
    assert times(trace) == [JUDGED_US * i for i in (1, 2, 3)]
    trace = run("prompt_lookup", COUNTED, 33)
    assert rounds(trace) == [(10, 10, 11)] * 3
    assert times(trace) == [JUDGED_US * i for i in (1, 2, 3)]
    assert {s.model for s in trace.spans} == {"target"}


@pytest.mark.parametrize(("which", "start"), [("first", 2), ("latest", 6)])
def test_prompt_lookup_copies_the_first_or_the_latest_match(which, start):
    prompt = [20, 10, 30, 31, 20, 10, 11, 12, 20, 10]
    trace = run("prompt_lookup", prompt, 3, which=which, copy=3)
    assert rounds(trace)[0] == ((3, 0, 1) if which == "first" else (3, 2, 3))
    copied = trace.copies[0]
    assert (copied.document, copied.start, copied.match, copied.length) == (-1, start, 2, 3)
    assert trace.token_ids() == [11, 12, 13]


def test_a_wrong_copy_costs_no_text():
    trace = run("llma", [10, 11, 30, 10, 12, 30, 10, 11, 30, 10], 9)
    assert trace.token_ids() == list(range(11, 20))
    assert rounds(trace)[0][0] > 0
    assert rounds(trace)[0][1] < rounds(trace)[0][0]


@pytest.mark.parametrize("method", ["llma", "prompt_lookup"])
def test_no_match_is_a_plain_step(method):
    trace = run(method, [1, 2, 3, 10], 6)
    assert rounds(trace) == [(0, 0, 1)] * 6
    assert times(trace) == [TARGET_US * i for i in range(1, 7)]
    assert {r.mode for r in trace.rounds} == {"plain"}
    assert trace.copies == []


@pytest.mark.parametrize("new", [1, 2, 7, 8, 9, 11])
def test_a_draft_never_reaches_past_the_end(new):
    trace = run("llma", COUNTED, new)
    assert len(trace.token_ids()) == new
    assert sum(r.drafted for r in trace.rounds) <= new
    assert trace.rounds[0].drafted == min(7, new)
    assert all(c.length == r.drafted for c, r in zip(trace.copies, trace.rounds, strict=False))


def test_every_copied_token_has_an_outcome_and_no_drafter():
    trace = run("llma", COUNTED, 20)
    copied = [d for d in trace.decisions if d.node >= 0]
    assert len(copied) == sum(c.length for c in trace.copies)
    assert {(d.rule, d.q, d.draft_span, d.top_q) for d in copied} == {("match", None, -1, ())}
    verified = {s.id for s in trace.spans if s.kind == "verify"}
    assert {d.verify_span for d in copied} <= verified


STORY = "Tell me a story."


def test_a_reference_that_holds_the_answer_is_copied_in_a_few_rounds(threads):
    plain = threads.run("autoregressive", STORY, limits=Limits(60))
    trace = threads.run("llma", STORY, config={"match": 1, "reference": plain.text}, limits=Limits(60))
    assert trace.token_ids() == plain.token_ids()
    assert len(trace.rounds) < 60 / 3
    assert {c.document for c in trace.copies} >= {0}


def test_the_document_is_in_the_trace_with_the_text_of_its_tokens(threads):
    text = "Once upon a time, a fox said: “Hello!” <|end|>"
    trace = threads.run("llma", STORY, config={"match": 1, "reference": text}, limits=Limits(40))
    (document,) = trace.documents
    assert document == Document(0, threads.pair.encode_text(text))
    assert not set(document.tokens) & set(threads.pair.eos), "special tokens in a reference are plain text"
    assert threads.pair.tokenizer.decode(document.tokens) == text
    assert set(document.tokens) <= set(trace.pieces)
    assert trace.copies
    assert set(trace.header.prompt_ids[0]) <= set(trace.pieces)
