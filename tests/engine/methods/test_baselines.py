"""Assisted generation, lookahead, Ouroboros and copying methods in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Copied, Document
from specscope.engine.types import Limits
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
