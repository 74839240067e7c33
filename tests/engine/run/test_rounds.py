"""Rounds of the device have the texts and rows of rounds with a host between their forwards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
from torch.nn.attention.flex_attention import flex_attention

import specscope
from specscope.engine.methods import METHODS
from specscope.engine.model import attention, compiled, flex
from specscope.engine.trace.events import Commit
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker import rounds
from tests.engine.methods.pairs import make_pair
from tests.engine.model.tiny import CONTEXT, DENSE
from tests.engine.run.rounds_on_host import check, on_the_host

PROMPTS = [(5, 9, 33, 7, 60, 2), (1,), (8, 8, 9, 41)]
WARM = Sampling(0.9, top_k=50, top_p=0.95, seed=3)
SAMPLINGS = [Sampling(), Sampling(1.0, seed=1), WARM, Sampling(1.4, top_k=5, seed=9)]
UNFIT = ("phi3", "smollm3")
"""Families whose EOS is beyond the tiny vocabulary."""
FAMILIES = [family for family in DENSE if not any(name in family for name in UNFIT)]
WAYS = {
    "speculative": [{"gamma": 1}, {"gamma": 4}, {"gamma": 3, "drafts": "greedy"}],
    "autoregressive": [{}],
    "tree": [
        {"width": 3, "depth": 3},
        {"width": 4, "depth": 2, "drafts": "greedy"},
        {"width": 2, "depth": 5},
    ],
    "assisted": [{"schedule": "heuristic", "start": 3}, {"schedule": "constant", "confidence": 0.2}],
}


@contextmanager
def one_device(folder, runtime="local-thread", family="llama", forward="static"):
    """A cluster of tiny models on one device, where they take turns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda _: {0})
        pair, _ = make_pair(folder, family, "other")
        with specscope.open(pair, device="cpu", runtime=runtime, forward=forward) as opened:
            yield opened


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with one_device(tmp_path_factory.mktemp("pair")) as opened:
        yield opened


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("begins", ["as asked", "ahead"])
@pytest.mark.parametrize("method", WAYS)
def test_rounds_of_the_device_write_the_host_s_rows(method, begins, sampling, cluster, counted, monkeypatch):
    monkeypatch.setattr(rounds, "AHEAD", {"cpu"} if begins == "ahead" else set())
    for number, config in enumerate(WAYS[method]):
        prompt = PROMPTS[(number + SAMPLINGS.index(sampling)) % len(PROMPTS)]
        how = {"config": config, "sampling": sampling, "limits": Limits(30)}
        check(cluster.run(method, prompt, **how), on_the_host(cluster, method, prompt, **how))
    if method == "speculative" or begins == "ahead":
        assert counted[0] > 2
    if method != "assisted":  # each of its rounds may have another length
        assert (counted[2] > 0) == (begins == "ahead")


def test_every_length_of_an_output_has_the_host_s_rows(cluster, ahead):
    for tokens in range(1, 12):
        for method, config in (("speculative", {"gamma": 3}), ("autoregressive", {})):
            how = {"config": config, "sampling": WARM, "limits": Limits(tokens)}
            check(cluster.run(method, PROMPTS[0], **how), on_the_host(cluster, method, PROMPTS[0], **how))


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=str)
def test_a_round_that_begins_after_the_end_is_cancelled(sampling, cluster, ahead):
    """An EOS at every place of the text: within a draft, and as the target's own token."""
    text = cluster.run("autoregressive", PROMPTS[0], sampling=sampling, limits=Limits(24)).token_ids()
    cancelled = 0
    for eos in dict.fromkeys(text):
        for method, config in (("speculative", {"gamma": 3}), ("autoregressive", {})):
            how = {"config": config, "sampling": sampling, "limits": Limits(40, eos=(eos,))}
            trace, expected = (
                cluster.run(method, PROMPTS[0], **how),
                on_the_host(cluster, method, PROMPTS[0], **how),
            )
            check(trace, expected)
            late = [span for span in trace.spans if span.outcome == "cancelled"]
            assert len(late) in (0, 5 if method == "speculative" else 2)
            roles = [(span.kind, span.model) for span in late]
            drafts = [("draft", "drafter")] * 3 if method == "speculative" else []
            assert roles in ([], [*drafts, ("verify", "target"), ("sample", "target")])
            cancelled += bool(late)
            check_intervals(trace)
    assert cancelled > 5


def check_intervals(trace):
    times = sorted((span.start, span.end) for span in trace.spans)
    assert all(start <= end for start, end in times)
    assert all(a[1] <= b[0] for a, b in pairwise(times)), "one worker does one thing at a time"


def test_the_context_may_be_full(cluster, ahead):
    prompt = PROMPTS[0] * 5
    for tokens in (CONTEXT - len(prompt) - 1, CONTEXT - len(prompt)):
        for method, config in (("speculative", {"gamma": 5}), ("autoregressive", {})):
            how = {"config": config, "sampling": WARM, "limits": Limits(tokens)}
            check(cluster.run(method, prompt, **how), on_the_host(cluster, method, prompt, **how))


def test_a_draft_that_is_verified_otherwise_is_verified_as_before(cluster, ahead, counted):
    """Also a draft of no tokens, and further drafts, which then wait for their verification."""

    async def decode(run, cfg):
        while not run.done:
            draft = await run.drafter.propose(run.x, 3)
            if run.step % 3 == 0:
                draft = draft[: run.step % 2]
            run.commit(await run.target.verify(run.x, draft))

    def as_method(trace_of):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(METHODS, "speculative", replace(METHODS["speculative"], decode=decode))
            return trace_of(cluster, "speculative", PROMPTS[2], sampling=WARM, limits=Limits(30))

    trace = as_method(lambda cluster, *args, **more: cluster.run(*args, **more))
    assert trace.status == "done"
    assert trace.text == as_method(on_the_host).text
    assert counted[0] == 3, "it is not tried again"
    assert {span.kind for span in trace.spans if span.outcome == "cancelled"} >= {"verify", "sample"}


def test_a_run_can_be_cancelled_and_another_follows(cluster, ahead):
    how = {"config": {"gamma": 3}, "sampling": WARM, "limits": Limits(30)}
    expected = cluster.run("speculative", PROMPTS[2], **how)
    for stop_at in (3, 9, 20):
        cancel, seen = threading.Event(), []

        def listen(event, cancel=cancel, seen=seen, stop_at=stop_at):
            seen.append(event)
            if sum(isinstance(one, Commit) for one in seen) >= stop_at:
                cancel.set()

        assert (
            cluster.run("speculative", PROMPTS[2], listener=listen, cancel=cancel, **how).status
            == "cancelled"
        )
        check(cluster.run("speculative", PROMPTS[2], **how), expected)


def test_methods_follow_each_other_on_one_cluster(cluster, ahead):
    """Trees leave rows in the caches; a parallel method has a drafter of its own."""
    order = [
        "tree",
        "speculative",
        "autoregressive",
        "pearl",
        "speculative",
        "hybrid",
        "ouroboros",
        "assisted",
    ]
    order += ["ssd", "specbranch", "lookahead", "prompt_lookup", "suffix", "speculative"]
    for method in order:
        for sampling in SAMPLINGS[:2]:
            how = {"sampling": sampling, "limits": Limits(14)}
            trace, expected = (
                cluster.run(method, PROMPTS[0], **how),
                on_the_host(cluster, method, PROMPTS[0], **how),
            )
            assert (trace.status, trace.text) == ("done", expected.text), method


@pytest.mark.parametrize("base", ["speculative", "plain"])
def test_the_last_sequence_of_a_batch_goes_on_alone(base, cluster, ahead, counted):
    """Its rounds are then those of one sequence."""
    how = {"config": {"base": base, "batch": 2}, "sampling": SAMPLINGS[3]}
    early = cluster.run("ems", *PROMPTS[1:], limits=Limits(30), **how).token_ids(0)[8]
    how["limits"] = Limits(30, eos=(early,))
    check(cluster.run("ems", *PROMPTS[1:], **how), on_the_host(cluster, "ems", *PROMPTS[1:], **how))
    assert counted[0] > 2


@pytest.mark.parametrize("family", FAMILIES)
def test_rounds_of_every_family(family, tmp_path, ahead, counted):
    with one_device(tmp_path, family=family) as cluster:
        how = {"config": {"gamma": 3}, "sampling": SAMPLINGS[1], "limits": Limits(30)}
        check(
            cluster.run("speculative", PROMPTS[2], **how),
            on_the_host(cluster, "speculative", PROMPTS[2], **how),
        )
    assert counted[0] > 5


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_rounds_of_compiled_layers(tmp_path, ahead, counted, monkeypatch):
    """Their functions run as they are."""
    monkeypatch.setattr(compiled, "fused", lambda function, mode: function)
    monkeypatch.setattr(flex, "compiled_flex", lambda: flex_attention)
    monkeypatch.setattr(attention, "fastest", lambda ways, device: "flex")
    with one_device(tmp_path, forward="compiled") as cluster:
        for method, config in (("speculative", {"gamma": 3}), ("autoregressive", {})):
            how = {"config": config, "sampling": SAMPLINGS[1], "limits": Limits(30)}
            check(cluster.run(method, PROMPTS[2], **how), on_the_host(cluster, method, PROMPTS[2], **how))
    assert counted[0] > 20


def test_clusters_in_two_threads(cluster, ahead, tmp_path):
    how = {"config": {"gamma": 3}, "sampling": WARM, "limits": Limits(30)}
    expected = [on_the_host(cluster, "speculative", prompt, **how) for prompt in PROMPTS]
    with one_device(tmp_path) as other, ThreadPoolExecutor(2) as threads:
        runs = [
            threads.submit(lambda c: [c.run("speculative", p, **how) for p in PROMPTS], c)
            for c in (cluster, other)
        ]
        for run in runs:
            for trace, wanted in zip(run.result(), expected, strict=True):
                check(trace, wanted)


def test_worker_processes_write_the_same_rows(cluster, tmp_path):
    with one_device(tmp_path, "local-process") as processes:
        for method, config in (("speculative", {"gamma": 3}), ("autoregressive", {})):
            how = {"config": config, "sampling": WARM, "limits": Limits(30)}
            check(processes.run(method, PROMPTS[2], **how), on_the_host(cluster, method, PROMPTS[2], **how))


def test_the_first_run_of_a_graph_leaves_the_start_as_it_was(tmp_path, ahead):
    """A graph is captured after a run of its operations, which moves on to the next round."""
    captures = []

    def captured(compute, pool):
        captures.append(pool)
        compute()
        return compute

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specscope.engine.worker.rounds.graph_pool", lambda device: device)
        patch.setattr("specscope.engine.worker.device_rounds.captured", captured)
        with one_device(tmp_path) as cluster:
            for sampling in SAMPLINGS[:2]:
                how = {"config": {"gamma": 3}, "sampling": sampling, "limits": Limits(30)}
                trace = cluster.run("speculative", PROMPTS[0], **how)
                check(trace, on_the_host(cluster, "speculative", PROMPTS[0], **how))
    assert captures
