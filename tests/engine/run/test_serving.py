"""Requests under load: texts as alone, slots, chunks, rounds, errors; work that is called off."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import specscope
from specscope import Load
from specscope.engine.errors import UsageError
from specscope.engine.run import models
from specscope.engine.run.dispatch import Dispatcher
from specscope.engine.run.gathering import AtOnce
from specscope.engine.run.models import Model
from specscope.engine.run.run import Racing
from specscope.engine.run.targets import TargetModel
from specscope.engine.trace.emitter import TraceEmitter
from specscope.engine.trace.events import Event, Span
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Draft, Limits, Prefix, Sampling
from specscope.engine.worker import host
from specscope.engine.worker.jobs import Drop
from tests.engine.methods.pairs import make_pair
from tests.engine.model import tiny
from tests.engine.toy_methods import settings_of, spelled_out
from tests.engine.worker.harness import AnsweredWorker

PROMPTS = [tuple(range(7 + 5 * i, 7 + 5 * i + n)) for i, n in enumerate((9, 1, 30, 4, 12))]
LOAD = Load((0.0, 0.0, 0.03, 0.3, 4.0), batch=2, chunk=6)
"""Two slots; the third request waits for one, and the last finds an idle cluster."""
LIMITS = Limits(10)
SAMPLINGS = [Sampling(), Sampling(temperature=0.9, seed=4)]
CONFIGS = """
autoregressive:
speculative: gamma=3
assisted: start=3
tree: width=3 depth=3
ems: base=llma match=1 | base=speculative width=2
llma: match=1
prompt_lookup: ngram=1
suffix: offset=1.0
hybrid: gamma=2 offset=1.0
lookahead: level=3 window=4
ouroboros: gamma=3
pearl: gamma=3 | gamma=3 guesses=2 | gamma=2 pre_verify=False | gamma=2 post_verify=False
pearl: gamma=2 placement=co-located
specbranch: gamma=3 length=3 threshold=0.5 | gamma=1 length=2 threshold=0.9 placement=co-located
easyspec: size=1
medusa:
hydra:
eagle:
eagle2: depth=3 total=9
parallelspec_medusa: first=mask
parallelspec_eagle:
dflash:
mtp: confidence=0.02
"""
CASES = [settings_of(words) for words in spelled_out(CONFIGS)]
DRAW_DRAFTS = ("speculative", "tree", "specbranch", "eagle")
"""Methods that have both samplings; the others have one of them for each config."""


@cache
def first_token(cluster, prompt: tuple[int, ...], sampling: Sampling) -> list[int]:
    return cluster.run("autoregressive", prompt, sampling=sampling, limits=Limits(1)).token_ids()


def alone(cluster, method: str, number: int, prompt: tuple[int, ...], **options) -> tuple[list[int], str]:
    """Return the text of request `number` from runs without load, and the reason of its end."""
    sampling = options["sampling"]
    options["sampling"] = Sampling(sampling.temperature, seed=sampling.seed + number)
    first = first_token(cluster, prompt, options["sampling"])
    own = first if sampling.temperature else []
    rest = cluster.run(method, (*prompt, *own), limits=Limits(LIMITS.max_new_tokens - len(own)), **options)
    assert rest.footer
    text = own + rest.token_ids()
    assert text[:1] == first
    return text, rest.footer.reasons[0]


def loaded(cluster, method: str, **options: Any) -> Trace:
    options = {"limits": LIMITS, "load": LOAD, **options}
    return cluster.run(method, *PROMPTS, **options)


@pytest.mark.parametrize(
    ("method", "config", "sampling"),
    [
        *((*case, SAMPLINGS[i % 2]) for i, case in enumerate(CASES)),
        *((*case, SAMPLINGS[1 - i % 2]) for i, case in enumerate(CASES) if case[0] in DRAW_DRAFTS),
    ],
    ids=str,
)
def test_texts_are_those_of_the_prompts_alone(cluster, method, config, sampling):
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
def test_the_forward_that_ends_a_prompt_gives_its_first_token(cluster, method, config):
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


def test_a_request_of_one_token_needs_its_prefill_only(cluster):
    trace = loaded(cluster, "pearl", limits=Limits(1))
    assert trace.status == "done"
    assert {s.kind for s in trace.spans} == {"prefill"}
    assert [len(trace.token_ids(i)) for i in range(5)] == [1] * 5


def test_a_request_waits_for_a_slot_and_its_prompts_chunks_share_forwards_that_decode_others(cluster):
    trace = loaded(cluster, "autoregressive")
    chunks = [s for s in trace.spans if s.kind == "prefill" and s.model == "target" and s.sequence == 2]
    assert [(s.rows, s.context) for s in chunks] == [(6, 0), (6, 6), (6, 12), (6, 18), (6, 24)]
    ends = {i: max(c.time for c in trace.commits if c.sequence == i) for i in range(5)}
    assert chunks[0].start >= min(ends[0], ends[1]) > LOAD.times[2]  # both slots were in use
    assert min(c.time for c in trace.commits if c.sequence == 4) > LOAD.times[4]
    forwards = {(s.start, s.end): s for s in trace.spans if s.kind == "verify"}
    shared = [s for s in trace.spans if s.kind == "prefill" and (s.start, s.end) in forwards]
    assert shared
    assert all(forwards[s.start, s.end].rows == 1 for s in shared)  # the other sequence's one row
    latency = {s.end - s.start for s in trace.spans if s.rows == 1 and s.kind == "verify"}
    assert max(latency) < 2 * min(latency)  # the batch does not stall


def test_all_waiting_prompts_together_have_one_chunk_in_a_forward(cluster):
    trace = loaded(cluster, "autoregressive", load=Load((0.0,) * 5, batch=3, chunk=6))
    fed = Counter[int]()
    for s in trace.spans:
        if s.kind == "prefill" and s.model == "target":
            fed[s.start] += s.rows
    assert max(fed.values()) == 6
    assert len(fed) < sum(s.kind == "prefill" for s in trace.spans), "some forwards have several prompts"


@pytest.mark.parametrize("load", [None, Load((0.0,), batch=1, chunk=9)], ids=["alone", "chunks"])
def test_all_rows_of_a_long_prompt_are_in_spans_once(cluster, load, monkeypatch):
    for module in (host, models):
        monkeypatch.setattr(module, "PREFILL_ROWS", 8)
    trace = cluster.run("speculative", PROMPTS[2], config={"gamma": 3}, limits=LIMITS, load=load)
    for model in ("target", "drafter"):
        spans = [s for s in trace.spans if s.kind == "prefill" and s.model == model]
        last = load is not None  # its logits give the first token
        assert sum(s.rows for s in spans) == len(PROMPTS[2]) - 1 + last
        assert [s.context for s in spans] == [sum(s.rows for s in spans[:i]) for i in range(len(spans))]
    assert len({s.id for s in trace.spans}) == len(trace.spans)


def test_rounds_and_slots(cluster):
    trace = loaded(cluster, "speculative", config={"gamma": 3})
    steps = [(s.step, s.start) for s in trace.spans if s.kind == "verify"]
    assert all(a[0] < b[0] for a, b in pairwise(steps))  # one verification in each round
    together = [{r.sequence for r in trace.rounds if r.step == step} for step, _ in steps]
    assert max(map(len, together)) == LOAD.batch
    assert trace.header.environment["load"] == {"arrivals": LOAD.times, "batch": 2, "chunk": 6}


def test_pearl_drafts_for_all_sequences_while_their_drafts_are_verified(cluster):
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


def test_a_reference_is_recorded_once(cluster):
    trace = loaded(cluster, "llma", config={"match": 1, "reference": "abc"})
    assert [document.document for document in trace.documents] == [0]


@pytest.mark.parametrize(
    ("method", "forward", "load"),
    [
        ("speculative", "eager", Load((0.0, 0.0, 0.01, 0.02, 0.03), batch=3, chunk=8)),
        ("pearl", "static", Load((0.0, 0.0, 0.01, 0.02, 0.03), batch=3, chunk=8)),
        ("medusa", "static", Load((0.0,) * 5, batch=3, chunk=8)),
        ("eagle2", "static", Load((0.0,) * 5, batch=3, chunk=8)),
    ],
)
def test_measured_and_static_runs_have_the_texts_of_virtual_ones(cluster, method, forward, load):
    with specscope.open(cluster.pair, runtime="local-thread", device="cpu", forward=forward) as threads:
        trace = loaded(threads, method, load=load)
    virtual = loaded(cluster, method)
    assert [trace.token_ids(i) for i in range(5)] == [virtual.token_ids(i) for i in range(5)]
    first = [min(c.time for c in trace.commits if c.sequence == i) for i in range(5)]
    assert all(time > arrival for time, arrival in zip(first, load.times, strict=True))


def test_a_cancelled_run_keeps_what_is_finished(cluster):
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
def test_refusals(cluster, method, config, load, words):
    with pytest.raises(UsageError, match=words):
        loaded(cluster, method, config=config, load=load)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1 and at most 64"),
        ({"chunk": 0}, "chunk is 0; it must be at least 1"),
        ({"policy": "fast"}, "there is no policy 'fast'; choose one of fixed, by-batch"),
        *(({"times": (time,)}, "an arrival is") for time in (-0.5, float("nan"), float("inf"), 1e300)),
    ],
)
def test_the_values_of_a_load(options, words):
    with pytest.raises(UsageError, match=words):
        Load(options.pop("times", (0.0,)), **options)


def test_the_layers_of_easyspecs_drafter_are_shared(tmp_path):
    """Models of 5 layers: groups of the layers 0, 1 and 2, 3, 4."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny._SIZES, "num_hidden_layers", 5)
        pair = make_pair(tmp_path, "qwen3", "other")[0]
    for options in ({"runtime": "virtual", "profile": "8xA100"}, {"runtime": "local-thread"}):
        with specscope.open(pair, device="cpu", **options) as opened:
            for more, sampling in zip(({}, {"width": 2, "calibrate": False}), SAMPLINGS, strict=True):
                config = {"gamma": 3, "devices": 2, "size": 2, **more}
                trace = loaded(opened, "easyspec", config=config, sampling=sampling)
                assert {"draft", "verify"} <= {s.kind for s in trace.spans if s.sequence == -1}
                assert len({s.device for s in trace.spans if s.model == "drafter"}) == 2
                for i, prompt in enumerate(PROMPTS):
                    text, _ = alone(opened, "easyspec", i, prompt, config=config, sampling=sampling)
                    assert trace.token_ids(i) == text


# Work that is called off: results of a race, and logits that nobody can judge any more.


def test_stopped_work_has_no_result_even_if_it_was_ready():
    ended: list[str] = []

    async def work(name: str, wait: float) -> str:
        try:
            await asyncio.sleep(wait)
            return name
        finally:
            ended.append(name)

    async def play() -> list[str]:
        taken: list[str] = []
        async with Racing() as race:
            first, slow = race.start(work("first", 0)), race.start(work("slow", 60))
            race.start(work("second", 0.01))
            await first  # ready, but not taken
            race.stop(first)
            race.stop(slow)
            race.stop(None)
            async for results in race:
                taken += results
        return taken

    assert asyncio.run(play()) == ["second"]
    assert sorted(ended) == ["first", "second", "slow"]


class OneLane(AnsweredWorker):
    def lanes(self, model: str) -> int:
        return 1


def test_logits_are_dropped_when_their_forward_ends_and_not_before():
    async def drop_early() -> None:
        worker, rows = OneLane("worker"), []
        emitter = TraceEmitter(rows.append, str)
        dispatcher = Dispatcher(rows.append, emitter, origin=0, check=lambda: None)
        model = TargetModel(Model(dispatcher, worker, "target", "target", len, AtOnce()))
        scores = model.score(Prefix(0, np.arange(3)), Draft.empty())
        del scores
        gc.collect()
        assert not [job for job in worker.jobs if isinstance(job, Drop)], "the logits do not exist yet"
        worker.answer()
        await asyncio.sleep(0)
        assert worker.jobs[1:] == [Drop(worker.jobs[0].scores)]

    asyncio.run(drop_early())
