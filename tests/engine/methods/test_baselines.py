"""Assisted generation, lookahead, Ouroboros and copying methods in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Copied, Document
from specscope.engine.types import Limits, Sampling
from tests.engine.methods.lossless import assert_same, generate
from tests.engine.methods.pairs import make_pair
from tests.engine.model import tiny
from tests.engine.worker.harness import Flat, scripted_cluster

TARGET_US, DRAFTER_US, SAMPLE_US, COMMUNICATE_US = 1000, 250, 30, 20
JUDGED_US = TARGET_US + SAMPLE_US + COMMUNICATE_US
WARM = Sampling(0.8, seed=5)
STORY = "Tell me a story."
NextToken = Callable[[np.ndarray], int]


def counts_up(path: np.ndarray) -> int:
    """10, 11, ... 59, 10, ..."""
    return (int(path[-1]) - 9) % 50 + 10


def never(path: np.ndarray) -> int:
    """5, which `counts_up` never returns."""
    return 5


def run(method: str, prompt: list[int], new: int, drafter: NextToken = counts_up, **config):
    latency = Flat(TARGET_US, DRAFTER_US, SAMPLE_US, COMMUNICATE_US)
    with scripted_cluster(counts_up, drafter, latency) as cluster:
        return cluster.run(method, prompt, config=config, limits=cluster.limits(new))


def rounds(trace):
    return [(r.drafted, r.accepted, r.emitted) for r in trace.rounds]


def times(trace):
    """Return when each round ended, in microseconds of decoding."""
    start = max(s.end for s in trace.spans if s.kind == "prefill")
    return [(r.time - start) // 1000 for r in trace.rounds]


def rows(trace, kind: str) -> list[int]:
    return [s.rows for s in trace.spans if s.kind == kind]


# Assisted generation.


def test_the_draft_grows_by_two_while_all_of_it_is_accepted():
    trace = run("assisted", [9, 10], 6 + 8 + 10)
    assert rounds(trace) == [(5, 5, 6), (7, 7, 8), (9, 9, 10)]
    ends = np.cumsum([drafted * DRAFTER_US + JUDGED_US for drafted in (5, 7, 9)])
    assert times(trace) == ends.tolist()


def test_the_draft_shrinks_by_one_down_to_one_token():
    trace = run("assisted", [10], 7, never, start=3)
    assert rounds(trace) == [(3, 0, 1), (2, 0, 1), (1, 0, 1), (1, 0, 1), (1, 0, 1), (1, 0, 1), (1, 0, 1)]


def test_the_constant_schedule_drafts_20_tokens_and_ends_at_an_uncertain_one():
    trace = run("assisted", [9, 10], 42, schedule="constant")
    assert rounds(trace) == [(20, 20, 21), (20, 20, 21)]
    assert (trace.header.config["start"], trace.header.config["confidence"]) == (20, 0.4)


# Lookahead decoding.


def test_guesses_and_window_take_the_time_of_one_forward():
    trace = run("lookahead", [10, 11], 80, level=3, window=4, guesses=2)
    assert len(rows(trace, "verify")) == len(trace.rounds) < 80
    ends = np.cumsum([JUDGED_US if r.drafted else TARGET_US for r in trace.rounds])
    assert times(trace) == ends.tolist()
    assert trace.token_ids() == [(i - 8) % 50 + 10 for i in range(10, 90)]
    assert {s.model for s in trace.spans} == {"target"}
    tested = [d for d in trace.decisions if d.node >= 0 and d.outcome != "discarded"]
    assert {(d.rule, d.draft_span) for d in tested} == {("match", -1)}


def test_every_forward_feeds_the_last_token_guesses_and_window_and_no_more():
    trace = run("lookahead", [10, 11], 80, level=3, window=4, guesses=2)
    levels, left = 1, 80
    for r, fed in zip(trace.rounds, rows(trace, "verify"), strict=True):
        width = max(0, min(4 + (levels == 1), left - levels + 2))
        assert fed == 1 + r.drafted + max(0, width * levels - 1)
        levels, left = 2, left - r.emitted


def test_a_whole_ngram_is_accepted_to_its_last_token_and_one_more_follows():
    trace = run("lookahead", [*range(10, 60)], 60, level=4, window=50, guesses=3)
    assert max(r.accepted for r in trace.rounds) == 3
    assert max(r.emitted for r in trace.rounds) == 4
    assert len(trace.rounds) < 30


def test_the_trace_holds_window_and_pool():
    trace = run("lookahead", [10, 11], 12, level=3, window=2, guesses=2)
    first, second, third = trace.pooled[:3]
    assert [p.step for p in trace.pooled] == [r.step for r in trace.rounds]
    assert (first.window, first.gained, first.size) == (((11, 10, 11), (12, 11, 12)), (), 0)
    assert second.gained == ((12, 11, 12), (11, 12, 13))
    assert second.gained == tuple(zip(*second.window, strict=True)), "its columns"
    assert (second.tried, second.size) == ((), 2)
    assert third.tried == (), "no n-gram begins with 13 yet"
    known = {
        token for p in trace.pooled for rows in (p.window, p.tried, p.gained) for g in rows for token in g
    }
    assert known <= set(trace.pieces)
    tried = {p.step: p.tried for p in trace.pooled}
    for r in trace.rounds:
        path = [d.token for d in trace.decisions if d.step == r.step and d.outcome == "accepted"]
        assert not path or any(list(gram[1 : 1 + len(path)]) == path for gram in tried[r.step])


@pytest.fixture(scope="module")
def tiny_cluster(tmp_path_factory):
    """Open a tiny pair; the target also as a transformers model."""
    pair, model = make_pair(tmp_path_factory.mktemp("pair"), "llama3-rope", "other")
    with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
        yield cluster, model


@pytest.mark.parametrize(
    ("method", "new"),
    [(m, n) for m, most in (("lookahead", tiny.CONTEXT - 1), ("ouroboros", 30)) for n in (1, 3, most)],
)
def test_no_row_lies_beyond_the_context_whatever_the_window(tiny_cluster, method, new):
    cluster, model = tiny_cluster
    prompt = list(range(20, 20 + tiny.CONTEXT - new))
    config = {"level": 8, "window": tiny.CONTEXT - 7, "guesses": 64}
    trace = cluster.run(method, prompt, config=config, limits=Limits(new))
    assert_same(model, prompt, trace.token_ids(), generate(model, prompt, new))
    with pytest.raises(UsageError, match="context of 64 tokens it must be at least 1 and at most 57"):
        cluster.run(method, prompt, config=config | {"window": 58}, limits=Limits(new))


# Ouroboros.


def test_the_drafter_looks_ahead_and_the_target_verifies_draft_and_phrases_at_once():
    config = {"gamma": 4, "level": 3, "window": 3, "guesses": 2, "phrases": 2}
    trace = run("ouroboros", [10, 11], 60, **config)
    assert trace.token_ids() == [(i - 8) % 50 + 10 for i in range(10, 70)]
    assert all(r.accepted >= min(4, r.emitted - 1) for r in trace.rounds), "a drafter that is right"
    spans = [s for s in trace.spans if s.kind == "draft"]
    assert {s.model for s in spans} == {"drafter"}
    ends = np.cumsum([JUDGED_US + DRAFTER_US * sum(s.step == r.step for s in spans) for r in trace.rounds])
    assert times(trace) == ends.tolist()
    assert len(spans) < sum(r.drafted for r in trace.rounds), "n-grams save forwards of the drafter"
    drafted = {d.draft_span for d in trace.decisions if d.node >= 0}
    assert drafted >= {s.id for s in spans}, "every forward has its tokens"
    assert -1 in drafted, "phrases come from no forward"


def test_a_phrase_behind_an_accepted_draft_is_accepted_too():
    config = {"gamma": 4, "level": 3, "window": 3, "guesses": 2, "phrases": 2}
    trace = run("ouroboros", [10, 11], 150, **config)
    longest = max(r.accepted for r in trace.rounds)
    chain = {
        r.step: sum(d.draft_span >= 0 for d in trace.decisions if d.step == r.step) for r in trace.rounds
    }
    assert any(r.accepted == chain[r.step] + 2 for r in trace.rounds), "to its last token"
    assert longest <= max(chain.values()) + 2


def test_without_phrases_the_pool_still_learns_from_rejected_drafts():
    config = {"gamma": 6, "level": 2, "window": 1, "guesses": 2, "phrases": 0}
    trace = run(
        "ouroboros", [10, 11], 30, lambda path: 5 if len(path) % 3 == 0 else counts_up(path), **config
    )
    assert trace.token_ids() == [(i - 8) % 50 + 10 for i in range(10, 40)]
    assert any(p.gained for p in trace.pooled)
    assert {p.tried for p in trace.pooled} == {()}
    assert {p.model for p in trace.pooled} == {"drafter"}


def test_a_reference_text_starts_the_pool(threads):
    """The same text, its n-grams in the pool before the first round, and fewer target forwards."""
    prompt, config = "Tell me a story about a fox.", {"gamma": 3, "level": 3, "window": 1, "phrases": 4}
    cold = threads.run("ouroboros", prompt, config=config, limits=Limits(24))
    warm = threads.run("ouroboros", prompt, config={**config, "reference": cold.text}, limits=Limits(24))
    assert warm.token_ids() == cold.token_ids()
    ids = tuple(warm.documents[0].tokens)
    known = {ids[i : i + 3] for i in range(len(ids) - 2)}
    assert known <= set(warm.pooled[0].gained)
    assert not known <= set(cold.pooled[0].gained)
    assert len(warm.rounds) < len(cold.rounds)


# LLMA and prompt lookup: copies, their ends and their trace rows, in virtual time.


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
