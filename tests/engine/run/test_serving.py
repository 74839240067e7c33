"""Requests under load: texts as alone, slots, chunks of prompts, rounds, errors."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest

import specscope
from specscope import Load
from specscope.engine.errors import UsageError
from specscope.engine.run import models
from specscope.engine.trace.events import Event, Span
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker import host
from specscope.traces.view.caches import packings
from tests.engine.heads.random_heads import with_heads
from tests.engine.methods.pairs import make_pair

PROMPTS = [tuple(range(7 + 5 * i, 7 + 5 * i + n)) for i, n in enumerate((9, 1, 30, 4, 12))]
LOAD = Load((0.0, 0.0, 0.03, 0.3, 4.0), batch=2, chunk=6)
"""Two slots; the third request waits for one, and the last finds an idle cluster."""
LIMITS = Limits(10)
SAMPLINGS = [Sampling(), Sampling(temperature=0.9, seed=4)]
CONFIGS = [
    ("autoregressive", {}),
    ("speculative", {"gamma": 3}),
    ("assisted", {"start": 3}),
    ("tree", {"width": 3, "depth": 3}),
    ("ems", {"base": "llma", "match": 1}),
    ("ems", {"base": "speculative", "width": 2}),
    ("llma", {"match": 1}),
    ("prompt_lookup", {"ngram": 1}),
    ("suffix", {"offset": 1.0}),
    ("hybrid", {"gamma": 2, "offset": 1.0}),
    ("lookahead", {"level": 3, "window": 4}),
    ("ouroboros", {"gamma": 3}),
    ("pearl", {"gamma": 3}),
    ("pearl", {"gamma": 3, "guesses": 2}),
    ("pearl", {"gamma": 2, "pre_verify": False}),
    ("pearl", {"gamma": 2, "post_verify": False}),
    ("pearl", {"gamma": 2, "placement": "co-located"}),
    ("specbranch", {"gamma": 3, "length": 3, "threshold": 0.5}),
    ("specbranch", {"gamma": 1, "length": 2, "threshold": 0.9, "placement": "co-located"}),
    ("easyspec", {"size": 1}),
    ("medusa", {}),
    ("hydra", {}),
    ("eagle", {}),
    ("eagle2", {"depth": 3, "total": 9}),
    ("parallelspec_medusa", {"first": "mask"}),
    ("parallelspec_eagle", {}),
]

DRAW_DRAFTS = ("speculative", "tree", "specbranch", "eagle")
"""Methods that have both samplings; the others have one of them for each config."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[specscope.Cluster]:
    folder = tmp_path_factory.mktemp("load")
    pair = with_heads(make_pair(folder, "qwen3", "other")[0], folder / "heads")
    with specscope.open(pair, runtime="virtual", profile="pearl-4xA100") as opened:
        yield opened


def alone(
    cluster: specscope.Cluster, method: str, number: int, prompt: tuple[int, ...], **options: Any
) -> tuple[list[int], str]:
    """Return the text of request `number` from runs without load, and the reason of its end."""
    sampling = options["sampling"]
    options["sampling"] = Sampling(sampling.temperature, seed=sampling.seed + number)
    first = cluster.run("autoregressive", prompt, sampling=options["sampling"], limits=Limits(1)).token_ids()
    own = first if sampling.temperature else []
    rest = cluster.run(method, (*prompt, *own), limits=Limits(LIMITS.max_new_tokens - len(own)), **options)
    assert rest.footer
    text = own + rest.token_ids()
    assert text[:1] == first
    return text, rest.footer.reasons[0]


def loaded(cluster: specscope.Cluster, method: str, **options: Any) -> Trace:
    options = {"limits": LIMITS, "load": LOAD, **options}
    return cluster.run(method, *PROMPTS, **options)


@pytest.mark.parametrize(
    ("method", "config", "sampling"),
    [
        *((*case, SAMPLINGS[i % 2]) for i, case in enumerate(CONFIGS)),
        *((*case, SAMPLINGS[1 - i % 2]) for i, case in enumerate(CONFIGS) if case[0] in DRAW_DRAFTS),
    ],
    ids=str,
)
def test_texts_are_those_of_the_prompts_alone(
    cluster: specscope.Cluster, method: str, config: dict[str, Any], sampling: Sampling
) -> None:
    """The first token is plain decoding's, the rest that of the prompt with this token alone.

    So at temperature 0 the whole text is that of the prompt alone.
    """
    trace = loaded(cluster, method, config=config, sampling=sampling)
    assert trace.status == "done"
    together = {s.kind for s in trace.spans if s.sequence == -1}
    assert "verify" in together
    assert ("draft" in together) == ("draft" in {s.kind for s in trace.spans})
    for i, prompt in enumerate(PROMPTS):
        text, reason = alone(cluster, method, i, prompt, config=config, sampling=sampling)
        assert trace.token_ids(i) == text
        assert trace.footer
        assert trace.footer.reasons[i] == reason


@pytest.mark.parametrize(
    ("method", "config"), [("autoregressive", {}), ("pearl", {"gamma": 3}), ("medusa", {})]
)
def test_the_forward_that_ends_a_prompt_gives_its_first_token(
    cluster: specscope.Cluster, method: str, config: dict[str, Any]
) -> None:
    """No draft and no further forward of the target come before it, as in vLLM."""
    trace = loaded(cluster, method, config=config, load=Load((0.0,) * 5, batch=3, chunk=64))
    prefills = {s.id: s for s in trace.spans if s.kind == "prefill" and s.model == "target"}
    for i, prompt in enumerate(PROMPTS):
        first, *rounds = [r for r in trace.rounds if r.sequence == i]
        assert (first.mode, first.emitted) == ("plain", 1)
        own = prefills[first.span]
        assert (own.sequence, own.context, own.rows) == (i, 0, len(prompt))
        between = [s for s in trace.spans if s.model == "target" and own.end <= s.start < first.time]
        assert {s.kind for s in between} <= {"sample", "communicate"}
        assert first.time == own.end or method != "autoregressive"
        assert all(r.span not in prefills for r in rounds)
        assert len(rounds) >= 1


def test_a_request_of_one_token_needs_its_prefill_only(cluster: specscope.Cluster) -> None:
    trace = loaded(cluster, "pearl", limits=Limits(1))
    assert trace.status == "done"
    assert {s.kind for s in trace.spans} == {"prefill"}
    assert [len(trace.token_ids(i)) for i in range(5)] == [1] * 5


def test_a_request_waits_for_a_slot_and_its_prompt_is_cached_in_chunks(cluster: specscope.Cluster) -> None:
    trace = loaded(cluster, "autoregressive")
    chunks = [s for s in trace.spans if s.kind == "prefill" and s.model == "target" and s.sequence == 2]
    assert [s.rows for s in chunks] == [6, 6, 6, 6, 6]
    assert [s.context for s in chunks] == [0, 6, 12, 18, 24]
    ends = {i: max(c.time for c in trace.commits if c.sequence == i) for i in range(5)}
    assert chunks[0].start >= min(ends[0], ends[1]) > LOAD.times[2]  # both slots were in use
    assert min(c.time for c in trace.commits if c.sequence == 4) > LOAD.times[4]


def test_all_waiting_prompts_together_have_one_chunk_in_a_forward(cluster: specscope.Cluster) -> None:
    trace = loaded(cluster, "autoregressive", load=Load((0.0,) * 5, batch=3, chunk=6))
    fed = Counter[int]()
    for s in trace.spans:
        if s.kind == "prefill" and s.model == "target":
            fed[s.start] += s.rows
    assert max(fed.values()) == 6
    assert len(fed) < sum(s.kind == "prefill" for s in trace.spans), "some forwards have several prompts"


def test_a_chunk_shares_the_forward_that_decodes_the_others(cluster: specscope.Cluster) -> None:
    trace = loaded(cluster, "autoregressive")
    forwards = {(s.start, s.end): s for s in trace.spans if s.kind == "verify"}
    shared = [s for s in trace.spans if s.kind == "prefill" and (s.start, s.end) in forwards]
    assert shared
    assert all(forwards[s.start, s.end].rows == 1 for s in shared)  # the other sequence's one row
    latency = {s.end - s.start for s in trace.spans if s.rows == 1 and s.kind == "verify"}
    assert max(latency) < 2 * min(latency)  # the batch does not stall


@pytest.mark.parametrize("load", [None, Load((0.0,), batch=1, chunk=9)], ids=["alone", "chunks"])
def test_all_rows_of_a_long_prompt_are_in_spans_once(
    cluster: specscope.Cluster, load: Load | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (host, models):
        monkeypatch.setattr(module, "PREFILL_ROWS", 8)
    trace = cluster.run("speculative", PROMPTS[2], config={"gamma": 3}, limits=LIMITS, load=load)
    for model in ("target", "drafter"):
        spans = [s for s in trace.spans if s.kind == "prefill" and s.model == model]
        last = load is not None  # its logits give the first token
        assert sum(s.rows for s in spans) == len(PROMPTS[2]) - 1 + last
        assert [s.context for s in spans] == [sum(s.rows for s in spans[:i]) for i in range(len(spans))]
    assert len({s.id for s in trace.spans}) == len(trace.spans)


def test_rounds_and_slots(cluster: specscope.Cluster) -> None:
    trace = loaded(cluster, "speculative", config={"gamma": 3})
    steps = [(s.step, s.start) for s in trace.spans if s.kind == "verify"]
    assert all(a[0] < b[0] for a, b in pairwise(steps))  # one verification in each round
    together = [{r.sequence for r in trace.rounds if r.step == step} for step, _ in steps]
    assert max(map(len, together)) == LOAD.batch
    ids = [s.id for s in trace.spans]
    assert len(ids) == len(set(ids))
    known = {s.id: s for s in trace.spans}
    first = {
        (r.sequence, min(q.step for q in trace.rounds if q.sequence == r.sequence)) for r in trace.rounds
    }
    for r in trace.rounds:
        assert known[r.span].kind == ("prefill" if (r.sequence, r.step) in first else "verify")
    assert all(known[d.draft_span].kind == "draft" for d in trace.decisions if d.draft_span >= 0)
    assert trace.header.environment["load"] == {"arrivals": LOAD.times, "batch": 2, "chunk": 6}


def test_pearl_drafts_for_all_sequences_while_their_drafts_are_verified(cluster: specscope.Cluster) -> None:
    load = Load((0.0,) * 5, batch=4, chunk=64)
    trace = loaded(cluster, "pearl", config={"gamma": 3}, load=load, limits=Limits(30))
    forwards = [s for s in trace.spans if s.kind in ("verify", "pre-verify")]
    for forward in forwards:
        drafts = [s for s in trace.spans if s.kind == "draft" and s.step == forward.step]
        assert len(drafts) <= 3, "one forward drafts a token for all sequences"
        assert all(s.start >= forward.start for s in drafts)
        assert not drafts or drafts[0].start == forward.start
        judged = [s for s in trace.spans if s.kind == "sample" and s.step == forward.step]
        assert len(judged) == 1
        assert judged[0].start >= max(s.end for s in (forward, *drafts))
    modes = [{r.mode for r in trace.rounds if r.step == forward.step} for forward in forwards]
    assert {"pre-verify", "post-verify"} in modes, "each sequence is in its own mode"
    kinds = {s.step: s.kind for s in forwards}
    judging = [r for r in trace.rounds if r.drafted]
    assert all((kinds[r.step] == "pre-verify") <= (r.mode == "pre-verify") for r in judging)


def test_a_reference_is_recorded_once(cluster: specscope.Cluster) -> None:
    trace = loaded(cluster, "llma", config={"match": 1, "reference": "abc"})
    assert [document.document for document in trace.documents] == [0]


@pytest.mark.parametrize("method", ["speculative", "pearl"])
def test_a_measured_run_in_threads(cluster: specscope.Cluster, method: str) -> None:
    load = Load((0.0, 0.0, 0.01, 0.02, 0.03), batch=3, chunk=8)
    with specscope.open(cluster.pair, runtime="local-thread") as threads:
        trace = loaded(threads, method, config={"gamma": 3}, load=load)
    virtual = loaded(cluster, method, config={"gamma": 3})
    assert [trace.token_ids(i) for i in range(5)] == [virtual.token_ids(i) for i in range(5)]
    first = [min(c.time for c in trace.commits if c.sequence == i) for i in range(5)]
    assert all(time > arrival for time, arrival in zip(first, load.times, strict=True))


@pytest.mark.parametrize("method", ["pearl", "medusa", "eagle2"])
def test_static_forwards_of_several_sequences(cluster: specscope.Cluster, method: str) -> None:
    load = Load((0.0,) * 5, batch=3, chunk=8)
    with specscope.open(cluster.pair, runtime="local-thread", device="cpu", forward="static") as static:
        trace = loaded(static, method, load=load)
    eager = loaded(cluster, method)
    assert [trace.token_ids(i) for i in range(5)] == [eager.token_ids(i) for i in range(5)]


def test_a_cancelled_run_keeps_what_is_finished(cluster: specscope.Cluster) -> None:
    cancel = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, Span) and event.sequence == 3:
            cancel.set()

    trace = loaded(cluster, "autoregressive", listener=listen, cancel=cancel)
    assert trace.status == "cancelled"
    assert trace.footer
    assert trace.footer.reasons[1] == "length"
    assert len(trace.token_ids(1)) == 10
    assert not trace.token_ids(4)
    assert loaded(cluster, "autoregressive").status == "done"


@pytest.mark.parametrize(
    ("method", "config", "load", "words"),
    [
        ("pearl", {"placement": "pipeline"}, LOAD, "pearl cannot run under load in a pipeline, whose drafter"),
        ("dsi", {}, LOAD, "dsi cannot run under load: it starts and stops forwards of one sequence"),
        ("dsi", {"sp": 1}, LOAD, "dsi cannot run under load: it starts"),
        ("ems", {"unpad_kv": False}, LOAD, "ems cannot pad under load"),
        ("autoregressive", {}, Load((0.0,)), "there are 1 arrivals and 5 prompts"),
    ],
)  # fmt: skip
def test_refusals(
    cluster: specscope.Cluster, method: str, config: dict[str, Any], load: Load, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        loaded(cluster, method, config=config, load=load)


def test_the_values_of_a_load() -> None:
    with pytest.raises(UsageError, match="batch is 0; it must be at least 1 and at most 64"):
        Load((0.0,), batch=0)
    with pytest.raises(UsageError, match="chunk is 0; it must be at least 1"):
        Load((0.0,), chunk=0)
    for wrong in (-0.5, float("nan"), float("inf"), 1e300):
        with pytest.raises(UsageError, match="an arrival is"):
            Load((wrong,))


def test_the_view_of_a_shared_forward_leaves_first_tokens_out(cluster: specscope.Cluster) -> None:
    trace = loaded(cluster, "speculative", config={"gamma": 3}, load=Load((0.0,) * 5, batch=3, chunk=64))
    known = {s.id: s for s in trace.spans}
    shared = packings(trace)
    assert shared
    for forward in shared:
        span = known[forward["span"]]
        rounds = {r.sequence for r in trace.rounds if r.span == span.id}
        assert {share["sequence"] for share in forward["shares"]} == rounds
        assert sum(share["rows"] for share in forward["shares"]) == span.rows
    mixed = [
        s
        for s in trace.spans
        if s.kind == "prefill" and any(known[f["span"]].start == s.start for f in shared)
    ]
    assert mixed, "a prompt ends in such a forward"
