"""One contract for every runtime: the same calls give the same rows; only the times differ."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest

import engine
from engine.errors import UsageError
from engine.model.pair import Pair
from engine.trace.events import Footer, Header, Span
from engine.trace.trace import Trace
from engine.types import Limits, Sampling
from tests.engine.heads.random_heads import with_eagle3, with_heads

RUNTIMES = {
    "local-thread": {"runtime": "local-thread"},
    "local-process": {"runtime": "local-process"},
    "virtual": {"runtime": "virtual", "profile": "pearl-4xA100"},
}
PROMPT = "Tell me a story about a fox who lost its hat."
WARM = Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=3)
SHORT = Limits(24)
GREEDY = (
    "autoregressive",
    "speculative",
    "pearl",
    "pearl in a pipeline",
    "pearl co-located",
    "lookahead",
    "eagle",
)
"""Run at temperature 0 as well: a method of each kind of draft, and each placement."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return with_heads(Pair.find("bundled"), tmp_path_factory.mktemp("pair") / "heads")


@pytest.fixture(scope="module", params=RUNTIMES)
def cluster(request, pair):
    with engine.open(pair, device="cpu", **RUNTIMES[request.param]) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference(pair):
    """Rows of the thread runtime, which the others must repeat."""
    with engine.open(pair, device="cpu", **RUNTIMES["local-thread"]) as opened:
        runs = {}
        for method, config in (
            ("autoregressive", {}),
            ("speculative", {"gamma": 4}),
            ("pearl", {"gamma": 3}),
            ("pearl in a pipeline", {"gamma": 3, "placement": "pipeline"}),
            ("pearl co-located", {"gamma": 3, "placement": "co-located"}),
            ("tree", {"width": 3, "depth": 4}),
            ("easyspec", {"gamma": 4}),
            ("prompt_lookup", {"ngram": 2, "copy": 5}),
            ("assisted", {"start": 3}),
            ("lookahead", {"level": 4, "window": 6}),
            ("ouroboros", {"gamma": 4}),
            ("medusa", {}),
            ("medusa with typical acceptance", {"acceptance": "typical"}),
            ("hydra", {"heads": 2}),
            ("eagle", {}),
            ("eagle2", {"depth": 3, "total": 20}),
            ("parallelspec_medusa", {}),
            ("parallelspec_eagle", {"masks": 3}),
            ("llma", {"match": 1, "reference": "The fox was very sad. It wanted to find its hat."}),
        ):
            for sampling in (WARM, Sampling())[: 2 if method in GREEDY else 1]:
                trace = opened.run(method.split()[0], PROMPT, config=config, sampling=sampling, limits=SHORT)
                runs[method, sampling.temperature] = (config, sampling, trace)
    return runs


def _facts(trace: Trace) -> tuple[list[object], ...]:
    timeless = {"time": 0, "verify_span": 0, "span": 0, "draft_span": 0}
    inexact = {"p": 0, "q": 0, "top_p": (), "top_q": ()}

    def strip(row, **more):
        return replace(row, **{k: v for k, v in timeless.items() if hasattr(row, k)}, **more)

    told = (trace.rounds, trace.commits, trace.documents, trace.copies, trace.pooled)
    return [strip(d, **inexact) for d in trace.decisions], *(list(map(strip, rows)) for rows in told)


def _probabilities(trace: Trace) -> np.ndarray:
    return np.array([(d.p, d.q) for d in trace.decisions], dtype=float)


@pytest.mark.parametrize("cluster", ["local-process", "virtual"], indirect=True)
def test_same_rows_on_every_runtime(cluster, reference):
    for (method, _), (config, sampling, expected) in reference.items():
        trace = cluster.run(method.split()[0], PROMPT, config=config, sampling=sampling, limits=SHORT)
        assert trace.status == "done"
        for mine, theirs in zip(_facts(trace), _facts(expected), strict=True):
            assert mine == theirs, method
        np.testing.assert_allclose(_probabilities(trace), _probabilities(expected), atol=1e-4, err_msg=method)
        assert trace.text == expected.text


def test_an_eagle_3_head_drafts_the_same_on_every_runtime(pair, tmp_path):
    runs = dict[str, list[Trace]]()
    for name, options in RUNTIMES.items():
        with engine.open(with_eagle3(pair, tmp_path / "eagle3"), device="cpu", **options) as opened:
            runs[name] = [
                opened.run(method, PROMPT, sampling=sampling, limits=Limits(16))
                for method in ("autoregressive", "eagle", "eagle2")
                for sampling in (Sampling(), WARM)
            ]
    for traces in runs.values():
        for trace, expected in zip(traces, runs["local-thread"], strict=True):
            assert _facts(trace) == _facts(expected), trace.header.method
        alone, warm, eagle, _, eagle2, warm2 = (trace.token_ids() for trace in traces)
        assert (eagle, eagle2, warm2) == (alone, alone, warm), "lossless"
        assert all(max(r.accepted for r in trace.rounds) > 0 for trace in traces[2:]), "some are accepted"
    drafts = [s for s in runs["virtual"][2].spans if s.kind == "draft"]
    assert all(s.end > s.start and s.model == "drafter" for s in drafts)


def test_a_placement_changes_no_row(reference):
    for temperature in (0.0, 0.9):
        separate, *others = (
            _facts(reference[method, temperature][2])
            for method in ("pearl", "pearl in a pipeline", "pearl co-located")
        )
        for other in others:
            for mine, theirs in zip(separate, other, strict=True):
                assert mine == theirs


@pytest.mark.parametrize("config", [{}, {"acceptance": "rejection"}], ids=str)
def test_dsi_says_the_same_whatever_the_timing(cluster, config, reference):
    for sampling in (Sampling(), WARM):
        trace = cluster.run("dsi", PROMPT, config=config, sampling=sampling, limits=SHORT)
        assert trace.status == "done"
        if not config:
            assert trace.text == reference["autoregressive", sampling.temperature][2].text
        elif sampling is WARM:
            again = cluster.run("dsi", PROMPT, config=config, sampling=sampling, limits=SHORT)
            assert again.text == trace.text


@pytest.mark.parametrize(
    ("method", "config"),
    [
        ("pearl", {"gamma": 3}),
        ("pearl", {"gamma": 3, "placement": "pipeline"}),
        ("dsi", {}),
        ("tree", {}),
        ("assisted", {}),
        ("lookahead", {}),
        ("ouroboros", {}),
        ("eagle", {}),
        ("parallelspec_eagle", {}),
    ],
)
def test_the_trace_tells_the_whole_story(cluster, method, config):
    trace = cluster.run(method, PROMPT, config=config, limits=SHORT)
    spans = {s.id: s for s in trace.spans}
    assert len(spans) == len(trace.spans), "span ids are unique"
    drafts = [s for s in trace.spans if s.kind == "draft" and s.outcome == "done"]
    fates = {d.draft_span for d in trace.decisions if d.draft_span >= 0}
    assert {s.id for s in drafts} == fates, "every drafted token has its fate"
    for decision in trace.decisions:
        if decision.verify_span >= 0:
            assert spans[decision.verify_span].kind in ("verify", "pre-verify")
    assert sum(r.emitted for r in trace.rounds) == len(trace.commits)
    assert {p for d in trace.decisions for p, _ in (*d.top_p, *d.top_q)} <= set(trace.pieces)
    assert {s.kind for s in trace.spans if s.step == 0} == {"prefill"}
    for device in {s.device for s in trace.spans}:
        forwards = sorted(
            (s.start, s.end)
            for s in trace.spans
            if s.device == device and s.kind not in ("sample", "communicate")
        )
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(forwards)), "one forward at a time"


def test_events_come_header_first_footer_last(cluster):
    events: list[object] = []
    trace = cluster.run("speculative", PROMPT, limits=Limits(12), listener=events.append)
    assert isinstance(events[0], Header)
    assert isinstance(events[-1], Footer)
    assert sum(isinstance(e, Span) for e in events) == len(trace.spans)


def test_cancel_leaves_a_trace_that_says_so(cluster):
    stop = threading.Event()
    seen = 0

    def listen(event: object) -> None:
        nonlocal seen
        seen += isinstance(event, Span)
        if seen == 12:
            stop.set()

    config = {"gamma": 3}  # a long first draft alone could be 12 spans
    trace = cluster.run("pearl", PROMPT, config=config, limits=Limits(2000), listener=listen, cancel=stop)
    assert trace.status == "cancelled"
    assert 0 < len(trace.commits) < 2000
    again = cluster.run("pearl", PROMPT, limits=Limits(8))
    assert again.status == "done"


def test_a_listener_that_fails_ends_the_run_and_the_next_one_works(cluster):
    def full(event: object) -> None:
        if isinstance(event, Span):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        cluster.run("speculative", PROMPT, limits=Limits(8), listener=full)
    assert cluster.run("speculative", PROMPT, limits=Limits(8)).status == "done"


def test_one_run_at_a_time(cluster):
    begun, refused = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        begun.set()
        refused.wait(60)

    def first() -> None:
        cluster.run("autoregressive", PROMPT, limits=Limits(8), listener=hold)

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    try:
        with pytest.raises(UsageError):
            cluster.run("autoregressive", PROMPT, limits=Limits(8))
    finally:
        refused.set()
        thread.join()


@pytest.mark.parametrize(
    ("method", "config", "prompt", "message"),
    [
        ("nonsense", {}, PROMPT, "there is no method 'nonsense'; choose one of"),
        ("speculative", {"gama": 3}, PROMPT, "no field 'gama'"),
        ("speculative", {"gamma": 0}, PROMPT, "gamma is 0; it must be at least 1 and at most 32"),
        ("speculative", {"gamma": "x"}, PROMPT, "gamma is 'x'; it must be a whole number of at least 1"),
        ("speculative", {"drafts": "x"}, PROMPT, "choose one of sampled, greedy"),
        ("pearl", {"pre_verify": "perhaps"}, PROMPT, "pre_verify is 'perhaps'"),
        ("speculative", {}, "", "empty"),
        ("speculative", {}, "word " * 4000, "context"),
        ("speculative", {}, [1, 99999], "token id 99999"),
    ],
)
def test_bad_input_is_refused_before_a_run_begins(cluster, method, config, prompt, message):
    events: list[object] = []
    with pytest.raises(UsageError, match=message):
        cluster.run(method, prompt, config=config, listener=events.append)
    assert events == []


def test_numpy_prompt_ids_are_not_needed(cluster):
    ids = list(np.asarray([1, 3, 40, 50]))
    assert cluster.run("speculative", [int(i) for i in ids], limits=Limits(4)).header.prompt_ids == (
        (1, 3, 40, 50),
    )
