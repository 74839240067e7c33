"""LLMA: copies, their ends and their trace rows, with scripted models in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import engine
from engine.trace.events import Copied, Document
from engine.types import Limits, Sampling
from tests.engine.worker.harness import Flat, scripted_cluster

TARGET_US, SAMPLE_US, COMMUNICATE_US = 1000, 30, 20


def counts_up(path: np.ndarray) -> int:
    """10, 11, ... 59, 10, ..."""
    return (int(path[-1]) - 9) % 50 + 10


def run(target: Callable[[np.ndarray], int], prompt: list[int], new: int, **config):
    latency = Flat(TARGET_US, 250, SAMPLE_US, COMMUNICATE_US)
    with scripted_cluster(target, target, latency) as cluster:
        return cluster.run("llma", prompt, config=config, limits=cluster.limits(new))


def drafts(trace):
    return [(r.drafted, r.accepted, r.emitted) for r in trace.rounds]


def test_a_right_copy_emits_itself_and_a_bonus_token():
    trace = run(counts_up, [*range(10, 60), 10, 11], 24)
    assert drafts(trace) == [(7, 7, 8)] * 3
    assert trace.token_ids() == list(range(12, 36))
    assert trace.copies == [Copied(i + 1, 0, -1, 2 + 8 * i, min(2 + 8 * i, 5), 7) for i in range(3)]


def test_a_wrong_copy_costs_no_text():
    wrong = [10, 11, 30, 10, 12, 30, 10, 11]
    trace = run(lambda path: 70 + len(path) % 3 if len(path) % 2 else 10, wrong, 9)
    plain = [70 + n % 3 if n % 2 else 10 for n in range(8, 17)]
    assert trace.token_ids() == plain
    assert trace.rounds[0].drafted > 0
    assert trace.rounds[0].accepted == 0


def test_no_match_is_a_plain_step():
    trace = run(lambda path: len(path) + 100, [1, 2, 3], 6)
    assert drafts(trace) == [(0, 0, 1)] * 6
    assert {r.mode for r in trace.rounds} == {"plain"}
    assert trace.copies == []


@pytest.mark.parametrize("new", [1, 2, 7, 8, 9, 11])
def test_a_draft_never_reaches_past_the_end(new):
    trace = run(counts_up, [*range(10, 60), 10, 11], new)
    assert len(trace.token_ids()) == new
    assert sum(r.drafted for r in trace.rounds) <= new
    assert trace.rounds[0].drafted == min(7, new)
    assert all(c.length == r.drafted for c, r in zip(trace.copies, trace.rounds, strict=False))


def test_virtual_time_is_target_forwards_and_judging_alone():
    trace = run(counts_up, [*range(10, 60), 10, 11], 24)
    assert {s.model for s in trace.spans} == {"target"}
    start = max(s.end for s in trace.spans if s.kind == "prefill")
    judged = TARGET_US + COMMUNICATE_US + SAMPLE_US
    assert [r.time - start for r in trace.rounds] == [1000 * judged * i for i in (1, 2, 3)]


def test_every_copied_token_has_an_outcome_and_no_drafter():
    trace = run(counts_up, [*range(10, 60), 10, 11], 20)
    copied = [d for d in trace.decisions if d.node >= 0]
    assert len(copied) == sum(c.length for c in trace.copies)
    assert {(d.rule, d.q, d.draft_span, d.top_q) for d in copied} == {("match", None, -1, ())}
    verified = {s.id for s in trace.spans if s.kind == "verify"}
    assert {d.verify_span for d in copied} <= verified


@pytest.fixture(scope="module")
def bundled():
    with engine.open(runtime="local-thread", device="cpu") as cluster:
        yield cluster


STORY = "Tell me a story."
WARM = Sampling(0.8, seed=5)


def test_a_reference_that_holds_the_answer_is_copied_in_a_few_rounds(bundled):
    plain = bundled.run("autoregressive", STORY, limits=Limits(60))
    trace = bundled.run("llma", STORY, config={"match": 1, "reference": plain.text}, limits=Limits(60))
    assert trace.token_ids() == plain.token_ids()
    assert len(trace.rounds) < 60 / 3
    assert {c.document for c in trace.copies} >= {0}


def test_the_document_is_in_the_trace_with_the_text_of_its_tokens(bundled):
    text = "Once upon a time, a fox said: “Hello!” <|end|>"
    trace = bundled.run("llma", STORY, config={"match": 1, "reference": text}, limits=Limits(40))
    (document,) = trace.documents
    assert document == Document(0, bundled.pair.encode_text(text))
    assert not set(document.tokens) & set(bundled.pair.eos), "special tokens in a reference are plain text"
    assert bundled.pair.tokenizer.decode(document.tokens) == text
    assert set(document.tokens) <= set(trace.pieces)
    assert trace.copies
    assert set(trace.header.prompt_ids[0]) <= set(trace.pieces)


def test_the_reference_changes_no_token_above_temperature_0(bundled):
    plain = bundled.run("autoregressive", STORY, sampling=WARM, limits=Limits(48)).token_ids()
    for reference in ("", "the the the the", "Once upon a time there was a little fox. " * 20):
        config = {"match": 1, "copy": 9, "reference": reference}
        trace = bundled.run("llma", STORY, config=config, sampling=WARM, limits=Limits(48))
        assert trace.token_ids() == plain
        assert trace.copies
