"""Suffix decoding and its hybrid: rounds, forecasts, finished texts of this and earlier runs."""

from __future__ import annotations

import pytest

from specscope import Load
from specscope.engine.drafting.suffix import Finished
from specscope.engine.trace.events import Copied, Document, Forecast
from specscope.engine.types import Limits, Sampling
from tests.engine.methods.test_baselines import DRAFTER_US, TARGET_US, counts_up, never, rounds, run
from tests.engine.worker.harness import Flat, scripted_cluster

STORY = "Tell me a story."
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
