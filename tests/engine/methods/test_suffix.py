"""Suffix decoding and its hybrid: rounds, forecasts, finished texts of this and earlier runs."""

from __future__ import annotations

import pytest

from specscope import Load
from specscope.engine.drafting.suffix import Finished
from specscope.engine.trace.events import Copied, Document, Forecast
from specscope.engine.types import Limits, Sampling
from tests.engine.methods.test_baselines import (
    DRAFTER_US,
    TARGET_US,
    counts_up,
    never,
    rounds,
    run,
    times,
)
from tests.engine.worker.harness import Flat, scripted_cluster

STORY = "Tell me a story."
WARM = Sampling(0.8, seed=6)


def test_drafts_grow_with_the_match_and_end_at_the_depth():
    """The text repeats after 50 tokens; a match and its draft have 8 tokens at most."""
    trace = run("suffix", list(range(10, 60)), 22, depth=8)
    assert rounds(trace) == [(0, 0, 1), (1, 1, 2), (3, 3, 4), (4, 4, 5), (4, 4, 5), (4, 4, 5)]
    assert [f.match for f in trace.forecasts] == [0, 1, 3, 4, 4, 4]
    assert trace.copies[:2] == [Copied(2, 0, -1, 1, 1, 1), Copied(3, 0, -1, 3, 3, 3)]
    assert {s.model for s in trace.spans} == {"target"}


def test_the_first_occurrence_in_the_own_text_is_half_of_the_count():
    """The end of the text is an occurrence, too, as in the published code."""
    trace = run("suffix", list(range(10, 60)), 8)
    assert trace.forecasts[1] == Forecast(2, 0, "own", 1, 2, 0.5, None)


def test_no_match_is_a_plain_step():
    trace = run("suffix", [1, 2, 3, 10], 6)
    assert rounds(trace) == [(0, 0, 1)] * 6
    assert times(trace) == [TARGET_US * i for i in range(1, 7)]
    assert trace.copies == []
    assert {f.tree for f in trace.forecasts} == {""}


@pytest.mark.parametrize("new", [1, 2, 7, 8, 9, 30])
@pytest.mark.parametrize("method", ["suffix", "hybrid"])
def test_a_draft_never_reaches_past_the_end(method, new):
    trace = run(method, [*range(10, 60), 10, 11], new, offset=9.0)
    assert len(trace.token_ids()) == new
    assert all(r.drafted <= new - r.emitted + r.accepted for r in trace.rounds)


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


def test_without_finished_texts_the_own_text_alone_drafts():
    memory = Finished([tuple(range(11, 23))])
    trace = counting(memory, [8, 14], 7, finished=0)
    assert (trace.documents, trace.copies) == ([], [])
    assert len(memory.texts) == 1


def test_the_oldest_finished_texts_are_dropped():
    memory = Finished([range(11, 23), range(30, 36)])
    trace = counting(memory, [8, 32], 4, finished=9)
    assert trace.documents == [Document(0, tuple(range(30, 36)))]
    assert list(memory.texts.values()) == [tuple(range(33, 37))]


def test_the_own_text_wins_over_finished_ones_at_an_equal_score():
    own = [11, 12, 11, 12, 11]
    memory = Finished([[7, 11, 40]])
    trace = counting(memory, own, 1 + 2)
    assert trace.forecasts[0] == Forecast(1, 0, "own", 3, 2, 1.0, None)


def test_a_run_repeats_if_it_gets_the_documents_of_its_trace(threads):
    memory, limits = Finished(), Limits(40)
    for prompt in ("Tell me a story about a fox.", "Tell me a story about a dog."):
        threads.run("suffix", prompt, limits=limits, finished=memory)
    trace = threads.run("suffix", STORY, limits=limits, finished=memory)
    assert any(f.tree == "finished" for f in trace.forecasts)
    assert len(trace.documents) == 2
    texts = [d.tokens for d in trace.documents]
    again = threads.run("suffix", STORY, limits=limits, finished=Finished(texts))
    assert (again.documents, again.copies, again.forecasts) == (
        trace.documents,
        trace.copies,
        trace.forecasts,
    )
    alone = threads.run("suffix", STORY, limits=limits)
    assert (alone.documents, alone.token_ids()) == ([], trace.token_ids())
    assert alone.forecasts != trace.forecasts


def test_only_methods_with_suffix_trees_leave_their_texts(threads):
    memory = Finished()
    threads.run("llma", STORY, limits=Limits(8), finished=memory)
    assert memory.texts == {}


@pytest.mark.parametrize(("method", "sampling"), [("suffix", Sampling()), ("hybrid", WARM)], ids=str)
def test_under_load_a_sequence_drafts_from_those_that_finished_before(threads, method, sampling):
    """The third request waits for one of two slots."""
    options = {"limits": Limits(60), "sampling": sampling, "load": Load((0.0, 0.0, 0.0), batch=2)}
    trace = threads.run(method, STORY, "Hello!", STORY, **options)
    plain = threads.run("autoregressive", STORY, "Hello!", STORY, **options)
    assert [trace.token_ids(i) for i in range(3)] == [plain.token_ids(i) for i in range(3)]
    assert {f.tree for f in trace.forecasts if f.sequence == 2} >= {"finished"}
    finished = {tuple(trace.token_ids(0)), tuple(trace.token_ids(1))}
    assert trace.documents
    assert {d.tokens for d in trace.documents} <= finished


def test_under_load_a_text_that_was_finished_before_is_copied_in_few_rounds(threads):
    trace = threads.run("suffix", STORY, STORY, limits=Limits(40), load=Load((0.0, 0.0), batch=1))
    assert trace.token_ids(0) == trace.token_ids(1)
    assert trace.documents == [Document(0, tuple(trace.token_ids(0)))]
    assert {f.tree for f in trace.forecasts if f.sequence == 0} == {"", "own"}
    first, second = (sum(r.sequence == i for r in trace.rounds) for i in (0, 1))
    assert second < first / 2


# The hybrid.


def test_the_drafter_drafts_until_a_copy_is_expected_to_bring_more():
    """The drafter, always right, is expected to bring 3; a match of 7 tokens brings 7 / 2."""
    trace = run("hybrid", list(range(10, 60)), 30, gamma=3, depth=64)
    assert {f.drafter for f in trace.forecasts} == {3.0}
    copied = {c.step for c in trace.copies}
    for f, r in zip(trace.forecasts, trace.rounds, strict=True):
        assert (f.step in copied) == (f.score >= 3.0)
        assert r.drafted == (min(f.match, 12) if f.step in copied else 3)
    assert rounds(trace) == [(3, 3, 4), (3, 3, 4), (8, 8, 9), (12, 12, 13)]
    assert copied == {3, 4}


def test_a_wrong_drafter_is_expected_to_bring_less_with_every_round():
    trace = run("hybrid", [*range(10, 60)], 12, never, gamma=4, depth=64)
    assert [f.drafter for f in trace.forecasts[:3]] == [4.0, 2.0, 4 / 3]
    assert rounds(trace)[:2] == [(4, 0, 1), (4, 0, 1)]
    assert trace.copies


def test_by_seconds_the_drafters_time_counts():
    """The drafter is as slow as the target: a copy of half a token already pays."""
    config = {"gamma": 4, "c": 1.0}
    by = {w: run("hybrid", [*range(10, 60)], 12, never, weigh=w, **config) for w in ("tokens", "seconds")}
    first = {weigh: trace.copies[0].step for weigh, trace in by.items()}
    assert first["seconds"] < first["tokens"]
    assert by["seconds"].token_ids() == by["tokens"].token_ids()


def test_c_is_that_of_the_cluster():
    trace = run("hybrid", [9, 10], 4, weigh="seconds")
    assert trace.header.config["c"] == TARGET_US / DRAFTER_US
    assert run("hybrid", [9, 10], 4).header.config["c"] == 0.0
