"""Assisted generation, lookahead, Ouroboros, copying and suffix decoding in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import specscope
from specscope import Load
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Copied, Document, Forecast
from specscope.engine.types import Limits, Sampling
from tests.engine.methods.lossless import assert_same, generate
from tests.engine.methods.pairs import make_pair
from tests.engine.model import tiny
from tests.engine.worker.harness import Flat, scripted_cluster

TARGET_US, DRAFTER_US, SAMPLE_US, COMMUNICATE_US = 1000, 250, 30, 20
JUDGED_US = TARGET_US + SAMPLE_US + COMMUNICATE_US
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


@pytest.mark.parametrize(
    ("prompt", "new", "drafter", "config", "expected"),
    [
        pytest.param([9, 10], 24, counts_up, {}, [(5, 5, 6), (7, 7, 8), (9, 9, 10)], id="grows by two"),
        pytest.param(
            [9, 10],
            5,
            never,
            {"start": 3},
            [(3, 0, 1), (2, 0, 1), *[(1, 0, 1)] * 3],
            id="shrinks down to one",
        ),
        pytest.param([9, 10], 42, counts_up, {"schedule": "constant"}, [(20, 20, 21)] * 2, id="constant"),
    ],
)
def test_the_drafts_of_assisted_generation(prompt, new, drafter, config, expected):
    trace = run("assisted", prompt, new, drafter, **config)
    assert rounds(trace) == expected
    ends = np.cumsum([drafted * DRAFTER_US + JUDGED_US for drafted, _, _ in expected])
    assert times(trace) == ends.tolist()
    if "schedule" in config:
        assert (trace.header.config["start"], trace.header.config["confidence"]) == (20, 0.4)


def test_guesses_and_window_of_lookahead_are_one_forward_of_the_rows_that_the_output_can_use():
    trace = run("lookahead", [10, 11], 80, level=3, window=4, guesses=2)
    fed = [s.rows for s in trace.spans if s.kind == "verify"]
    assert len(fed) == len(trace.rounds) < 80
    ends = np.cumsum([JUDGED_US if r.drafted else TARGET_US for r in trace.rounds])
    assert times(trace) == ends.tolist()
    assert {s.model for s in trace.spans} == {"target"}
    levels, left = 1, 80
    for r, rows in zip(trace.rounds, fed, strict=True):
        width = max(0, min(4 + (levels == 1), left - levels + 2))
        assert rows == 1 + r.drafted + max(0, width * levels - 1)
        levels, left = 2, left - r.emitted


def test_the_trace_holds_window_and_pool():
    trace = run("lookahead", [10, 11], 12, level=3, window=2, guesses=2)
    first, second, third = trace.pooled[:3]
    assert [p.step for p in trace.pooled] == [r.step for r in trace.rounds]
    assert (first.window, first.gained, first.size) == (((11, 10, 11), (12, 11, 12)), (), 0)
    assert second.gained == ((12, 11, 12), (11, 12, 13)) == tuple(zip(*second.window, strict=True))
    assert (second.tried, second.size) == ((), 2)
    assert third.tried == (), "no n-gram begins with 13 yet"
    grams = [g for p in trace.pooled for rows in (p.window, p.tried, p.gained) for g in rows]
    assert {token for gram in grams for token in gram} <= set(trace.pieces)
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


@pytest.mark.parametrize(("method", "most"), [("lookahead", tiny.CONTEXT - 1), ("ouroboros", 30)])
def test_no_row_lies_beyond_the_context_whatever_the_window(tiny_cluster, method, most):
    cluster, model = tiny_cluster
    config = {"level": 8, "window": tiny.CONTEXT - 7, "guesses": 64}
    for new in (1, 3, most):
        prompt = list(range(20, 20 + tiny.CONTEXT - new))
        trace = cluster.run(method, prompt, config=config, limits=Limits(new))
        assert_same(model, prompt, trace.token_ids(), generate(model, prompt, new))
    with pytest.raises(UsageError, match="context of 64 tokens it must be at least 1 and at most 57"):
        cluster.run(method, prompt, config=config | {"window": 58}, limits=Limits(new))


def test_the_drafter_looks_ahead_and_the_target_verifies_draft_and_phrases_at_once():
    config = {"gamma": 4, "level": 3, "window": 3, "guesses": 2, "phrases": 2}
    trace = run("ouroboros", [10, 11], 60, **config)
    assert all(r.accepted >= min(4, r.emitted - 1) for r in trace.rounds), "a drafter that is right"
    spans = [s for s in trace.spans if s.kind == "draft"]
    assert {s.model for s in spans} == {p.model for p in trace.pooled} == {"drafter"}
    ends = np.cumsum([JUDGED_US + DRAFTER_US * sum(s.step == r.step for s in spans) for r in trace.rounds])
    assert times(trace) == ends.tolist()
    assert len(spans) < sum(r.drafted for r in trace.rounds), "n-grams save forwards of the drafter"
    drafted = {d.draft_span for d in trace.decisions if d.node >= 0}
    assert drafted >= {s.id for s in spans}, "every forward has its tokens"
    assert -1 in drafted, "phrases come from no forward"


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


# LLMA and prompt lookup.


def test_a_right_copy_emits_itself_and_a_bonus_token():
    counted = [*range(10, 60), 10, 11]
    for method, length in (("llma", 7), ("prompt_lookup", 10)):
        trace = run(method, counted, 3 * (length + 1))
        assert rounds(trace) == [(length, length, length + 1)] * 3
        assert trace.token_ids() == [*range(12, 12 + 3 * (length + 1))]
        assert times(trace) == [JUDGED_US * i for i in (1, 2, 3)]
        assert {s.model for s in trace.spans} == {"target"}
        copied = [d for d in trace.decisions if d.node >= 0]
        assert {(d.rule, d.q, d.draft_span, d.top_q) for d in copied} == {("match", None, -1, ())}
        if method == "llma":
            assert trace.copies == [Copied(i + 1, 0, -1, 2 + 8 * i, min(2 + 8 * i, 5), 7) for i in range(3)]


@pytest.mark.parametrize(("which", "start", "first"), [("first", 2, (3, 0, 1)), ("latest", 6, (3, 2, 3))])
def test_prompt_lookup_copies_the_first_or_the_latest_match(which, start, first):
    trace = run("prompt_lookup", [20, 10, 30, 31, 20, 10, 11, 12, 20, 10], 3, which=which, copy=3)
    assert rounds(trace)[0] == first
    copied = trace.copies[0]
    assert (copied.document, copied.start, copied.match, copied.length) == (-1, start, 2, 3)
    assert trace.token_ids() == [11, 12, 13]


@pytest.mark.parametrize("method", ["llma", "prompt_lookup", "suffix"])
def test_no_match_is_a_plain_step(method):
    trace = run(method, [1, 2, 3, 10], 6)
    assert rounds(trace) == [(0, 0, 1)] * 6
    assert times(trace) == [TARGET_US * i for i in range(1, 7)]
    assert {r.mode for r in trace.rounds} == {"plain"}
    assert trace.copies == []
    assert {f.tree for f in trace.forecasts} == ({""} if method == "suffix" else set())


def test_a_reference_is_copied_and_its_text_and_tokens_are_in_the_trace(threads):
    plain = threads.run("autoregressive", STORY, limits=Limits(60))
    trace = threads.run("llma", STORY, config={"match": 1, "reference": plain.text}, limits=Limits(60))
    assert trace.token_ids() == plain.token_ids()
    assert len(trace.rounds) < 60 / 3
    assert {c.document for c in trace.copies} >= {0}
    text = "Once upon a time, a fox said: “Hello!” <|end|>"
    (document,) = threads.run("llma", STORY, config={"reference": text}, limits=Limits(2)).documents
    assert document == Document(0, threads.pair.encode_text(text))
    assert not set(document.tokens) & set(threads.pair.eos), "special tokens in a reference are plain text"
    assert threads.pair.tokenizer.decode(document.tokens) == text
    (document,) = trace.documents
    assert {*document.tokens, *trace.header.prompt_ids[0]} <= set(trace.pieces)


# Suffix decoding and its hybrid.


ONCE = list(range(10, 60))
"""The text repeats after these 50 tokens."""


def test_drafts_grow_with_the_match_and_end_at_the_depth():
    """A match and its draft have 8 tokens at most.

    The end of the text is an occurrence, too, as in the published code: the first one before it is
    half of the count.
    """
    trace = run("suffix", ONCE, 22, depth=8)
    assert rounds(trace) == [(0, 0, 1), (1, 1, 2), (3, 3, 4), (4, 4, 5), (4, 4, 5), (4, 4, 5)]
    assert [f.match for f in trace.forecasts] == [0, 1, 3, 4, 4, 4]
    assert trace.forecasts[1] == Forecast(2, 0, "own", 1, 2, 0.5, None)
    assert trace.copies[:2] == [Copied(2, 0, -1, 1, 1, 1), Copied(3, 0, -1, 3, 3, 3)]
    assert {s.model for s in trace.spans} == {"target"}


# Finished texts.


def counting(memory: Finished, prompt: list[int], new: int, **config):
    with scripted_cluster(counts_up, never, Flat(TARGET_US, DRAFTER_US)) as cluster:
        limits = cluster.limits(new)
        return cluster.run("suffix", prompt, config=config, limits=limits, finished=memory)


def test_a_later_run_drafts_from_the_output_of_an_earlier_one():
    memory = Finished()
    first = counting(memory, [9, 10], 12)
    assert list(memory.texts.values()) == [tuple(first.token_ids())] == [tuple(range(11, 23))]
    assert (first.documents, first.copies) == ([], [])
    second = counting(memory, [8, 14], 7)
    assert second.documents == [Document(0, tuple(range(11, 23)))]
    assert second.copies[0] == Copied(1, 0, 0, 4, 1, 1)
    assert second.forecasts[0] == Forecast(1, 0, "finished", 1, 1, 1.0, None)
    assert rounds(second) == [(1, 1, 2), (3, 3, 4), (0, 0, 1)]
    assert second.token_ids() == list(range(15, 22))
    assert len(memory.texts) == 2


def test_which_finished_texts_are_used_and_kept():
    memory = Finished([tuple(range(11, 23))])
    trace = counting(memory, [8, 14], 7, finished=0)
    assert (trace.documents, trace.copies, len(memory.texts)) == ([], [], 1), "none on request"
    memory = Finished([range(11, 23), range(30, 36)])
    trace = counting(memory, [8, 32], 4, finished=9)
    assert trace.documents == [Document(0, tuple(range(30, 36)))], "the oldest are dropped"
    assert list(memory.texts.values()) == [tuple(range(33, 37))]
    trace = counting(Finished([[7, 11, 40]]), [11, 12, 11, 12, 11], 3)
    assert trace.forecasts[0] == Forecast(1, 0, "own", 3, 2, 1.0, None), "the own text wins a tie"


def test_a_run_repeats_if_it_gets_the_documents_of_its_trace(threads):
    memory, limits = Finished(), Limits(40)
    threads.run("llma", STORY, limits=Limits(8), finished=memory)
    assert memory.texts == {}, "only methods with suffix trees leave their texts"
    for prompt in ("Tell me a story about a fox.", "Tell me a story about a dog."):
        threads.run("suffix", prompt, limits=limits, finished=memory)
    trace = threads.run("suffix", STORY, limits=limits, finished=memory)
    assert any(f.tree == "finished" for f in trace.forecasts)
    texts = [d.tokens for d in trace.documents]
    assert len(texts) == 2
    again = threads.run("suffix", STORY, limits=limits, finished=Finished(texts))
    drafted = [(t.documents, t.copies, t.forecasts) for t in (again, trace)]
    assert drafted[0] == drafted[1]
    alone = threads.run("suffix", STORY, limits=limits)
    assert (alone.documents, alone.token_ids()) == ([], trace.token_ids())
    assert alone.forecasts != trace.forecasts


@pytest.mark.parametrize(
    ("method", "sampling"), [("suffix", Sampling()), ("hybrid", Sampling(0.8, seed=6))], ids=str
)
def test_under_load_a_sequence_drafts_from_those_that_finished_before(threads, method, sampling):
    """The third request waits for one of two slots."""
    options = {"limits": Limits(40), "sampling": sampling, "load": Load((0.0, 0.0, 0.0), batch=2)}
    trace = threads.run(method, STORY, "Hello!", STORY, **options)
    plain = threads.run("autoregressive", STORY, "Hello!", STORY, **options)
    assert [trace.token_ids(i) for i in range(3)] == [plain.token_ids(i) for i in range(3)]
    assert {f.tree for f in trace.forecasts if f.sequence == 2} >= {"finished"}
    assert trace.documents
    assert {d.tokens for d in trace.documents} <= {tuple(trace.token_ids(i)) for i in (0, 1)}


# The hybrid.


def test_the_drafter_drafts_until_a_copy_is_expected_to_bring_more():
    """The drafter, always right, is expected to bring 3; a match of 7 tokens brings 7 / 2."""
    trace = run("hybrid", ONCE, 30, gamma=3, depth=64)
    assert {f.drafter for f in trace.forecasts} == {3.0}
    copied = {c.step for c in trace.copies}
    for f, r in zip(trace.forecasts, trace.rounds, strict=True):
        assert (f.step in copied) == (f.score >= 3.0)
        assert r.drafted == (min(f.match, 12) if f.step in copied else 3)
    assert rounds(trace) == [(3, 3, 4), (3, 3, 4), (8, 8, 9), (12, 12, 13)]
    assert copied == {3, 4}


def test_a_wrong_drafter_is_expected_to_bring_less_with_every_round_and_by_seconds_its_time_counts():
    """The drafter is as slow as the target (c = 1): a copy of half a token already pays."""
    config = {"gamma": 4, "c": 1.0}
    by = {w: run("hybrid", ONCE, 12, never, weigh=w, **config) for w in ("tokens", "seconds")}
    assert [f.drafter for f in by["tokens"].forecasts[:3]] == [4.0, 2.0, 4 / 3]
    assert rounds(by["tokens"])[:2] == [(4, 0, 1), (4, 0, 1)]
    first = {weigh: trace.copies[0].step for weigh, trace in by.items()}
    assert first["seconds"] < first["tokens"]
    assert by["seconds"].token_ids() == by["tokens"].token_ids()


def test_c_is_that_of_the_cluster():
    for weigh, c in (("seconds", TARGET_US / DRAFTER_US), ("tokens", 0.0)):
        assert run("hybrid", [9, 10], 4, weigh=weigh).header.config["c"] == c
