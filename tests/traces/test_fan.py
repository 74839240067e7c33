"""The speculation cache in the viewer's document, and its figures."""

from dataclasses import asdict, replace

import pytest

from specscope.engine.methods import METHODS
from specscope.engine.types import Limits
from specscope.traces import waiting
from specscope.traces.advice import kind_of
from specscope.traces.forks import lookups, untaken
from specscope.traces.metrics import measure
from specscope.traces.view.document import view_model
from specscope.traces.view.fan import fans, hits
from specscope.traces.view.tracks import span_fates
from specscope.traces.waiting import Around
from tests.engine.methods.test_ssd import START, WRONG, ranked_cluster
from tests.engine.worker.harness import Flat
from tests.traces.samples import sample_trace


def ssd(latency=None, **config):
    """Decode 22 tokens with drafts that are wrong at known places."""
    with ranked_cluster(WRONG, latency) as cluster:
        return cluster.run("ssd", START, config={"gamma": 3, "forks": 1, **config}, limits=Limits(22))


@pytest.fixture(scope="module")
def trace():
    return ssd()


def test_figures_count_what_the_rows_show(trace):
    rows, metrics = fans(trace), measure(trace)
    found = {result: [row for row in rows if row["result"] == result] for result in ("hit", "miss")}
    assert metrics.hit_rate == len(found["hit"]) / sum(map(len, found.values()))
    for result, figure in (("hit", metrics.tokens_per_hit), ("miss", metrics.tokens_per_miss)):
        assert figure == sum(row["emitted"] for row in found[result]) / len(found[result])
    places = hits(trace)
    assert sum(place["lookups"] for place in places) == len(lookups(trace)) == sum(map(len, found.values()))
    assert sum(place["hits"] for place in places) == len(found["hit"])
    assert [place["place"] for place in places] == sorted({one.round.accepted for one in lookups(trace)})
    assert untaken(trace) == sum(f.length for f in trace.forks if not f.taken) > 0
    plain = measure(sample_trace("speculative"))
    assert (plain.hit_rate, plain.tokens_per_hit, plain.tokens_per_miss) == (None, None, None)
    assert plain.draft_rows_per_token
    assert measure(sample_trace("autoregressive")).draft_rows_per_token is None


def test_saved_time_is_drafting_before_the_verdict():
    """Steps of 400 us beside a verification of 1000: the glue, one step, and half of the second."""
    trace = ssd(Flat(1000, 400, sample_us=100))
    saved = {row["saved"] for row in fans(trace)[1:-2] if row["result"] == "hit"}
    assert saved == {0.7}
    assert {row["saved"] for row in fans(trace) if row["result"] != "hit"} == {0.0}


def test_work_for_outcomes_that_did_not_occur_is_wasted(trace):
    fates, taken = span_fates(trace), {fork.step for fork in trace.forks if fork.taken}
    wasted = {span.id for span in waiting.wasted(trace)}
    for span in trace.spans:
        if span.kind == "glue":
            assert fates[span.id] == ("kept" if span.step in taken else "discarded")
        if span.kind == "branch" and span.step not in taken:
            assert fates[span.id] == "discarded"
        if span.kind in waiting.DRAFTS:
            assert (span.id in wasted) == (fates[span.id] != "kept")
    kept = {fates[span.id] for span in trace.spans if span.kind == "branch" and span.step in taken}
    assert "kept" in kept
    running = replace(trace, footer=None)
    missed = {s.id for s in trace.spans if s.kind in ("glue", "branch") and s.step not in taken}
    assert missed
    assert not missed & {span.id for span in waiting.wasted(running)}
    assert {span_fates(running)[i] for i in missed} == {"open"}


def test_gaps_between_the_forwards_of_a_fan_are_the_hosts(trace):
    late = replace(
        trace,
        spans=[
            replace(s, start=s.start + 20_000) if s.kind == "branch" and s.step == 2 else s
            for s in trace.spans
        ],
    )
    waits = [w for w in waiting.waits(late) if w.device == "gpu-drafter" and w.end - w.start == 20_000]
    assert len(waits) == 3
    assert {w.reason for w in waits} == {"host"}


def test_the_document_has_the_texts_of_the_guesses(trace):
    (run,) = view_model([trace])["runs"]
    assert run["note"] == ""
    assert {str(token) for row in run["fans"] for token in row["guesses"]["token"]} <= set(run["pieces"])
    assert run["figures"]["acceptance_rate"].endswith("per round")


def test_nothing_is_predicted_for_branches():
    """The formulas of the advice are those of turns, of PEARL's two modes and of DSI's servers."""
    kinds = {}
    for key in ("ssd", "pearl", "speculative"):
        cfg = METHODS[key].configure({"gamma": 3})
        kinds[key] = kind_of(METHODS[key].layout(cfg), asdict(cfg))
    assert kinds == {"ssd": None, "pearl": "overlap", "speculative": "turns"}


def test_of_a_part_the_last_round_is_left_out_if_its_result_is_not_known(trace):
    part = replace(trace, rounds=trace.rounds[:4])
    known = fans(part, Around(until=1))
    assert [row["step"] for row in known] == [r.step for r in trace.rounds[:3]]
    assert [row["result"] for row in known] == [row["result"] for row in fans(trace)[:3]]
