"""Models split by tensors over processes: the rows of whole models, death of a rank, wrong use."""

import asyncio
import os
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import nan

import numpy as np
import psutil
import pytest
import torch

import specscope
from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import SpecScopeError, UsageError, WorkerDied
from specscope.engine.heads.find import load_head
from specscope.engine.runtimes import ensemble
from specscope.engine.runtimes.ensemble import Ensemble, ranks_of
from specscope.engine.trace.events import Footer
from specscope.engine.types import Judged, Judgement, Limits, Sampling
from specscope.engine.worker.jobs import Grown, JudgeAll, Measure, Reply
from tests.engine.heads.random_heads import make_head
from tests.engine.model.together import on_ranks
from tests.engine.runtimes.processes import PROMPT, at_span, gone, six_cores
from tests.engine.runtimes.test_contract import WARM, _probabilities, facts
from tests.engine.runtimes.test_process import shared_memory
from tests.engine.worker.harness import AnsweredWorker, chains

LIMITS = Limits(8)
METHODS = {
    "pearl": ({"gamma": 3}, Sampling()),
    "pearl, sampled": ({"gamma": 3}, WARM),
    "ssd": ({"gamma": 3}, WARM),
    "tree": ({"width": 2, "depth": 3}, WARM),
    "easyspec": ({"gamma": 3}, WARM),
    "medusa, sampled": ({}, WARM),
}
"""Settings and sampling by name; the name's first word is the method."""
SPLITS = {"two": {"tp": 2}, "three": {"tp": 3, "drafter_tp": 2, "forward": "static"}}
"""Eager forwards over two processes, static ones over three."""


@pytest.fixture(scope="module")
def pair():
    return Pair.find("bundled")


@pytest.fixture(scope="module")
def opened(pair):
    """Open a cluster of whole models, and clusters whose target is split over 2 and 3 processes."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
        splits = {"whole": {}, **SPLITS}
        yield {n: stack.enter_context(specscope.open(pair, device="cpu", **s)) for n, s in splits.items()}


def _members(cluster, model="target"):
    (group,) = cluster.placement.workers_for(cluster.placement.base).by_model[model]
    assert isinstance(group, Ensemble)
    return group.members


@pytest.mark.parametrize("name", METHODS)
def test_a_split_target_writes_the_rows_of_the_whole_one(opened, name):
    config, sampling = METHODS[name]
    method = name.split(",")[0]

    def run(split):
        return opened[split].run(method, PROMPT, config=config, sampling=sampling, limits=LIMITS)

    expected = run("whole")
    for split in SPLITS:
        trace = run(split)
        assert trace.status == "done"
        assert trace.text == expected.text
        for rows, expected_rows in zip(facts(trace), facts(expected), strict=True):
            assert rows == expected_rows
        (p, q), (expected_p, expected_q) = _probabilities(trace).T, _probabilities(expected).T
        np.testing.assert_allclose(p, expected_p, atol=1e-4)
        # A head rounds the states that it reads to bf16, so that equal roundings are rare.
        np.testing.assert_allclose(q, expected_q, atol=1e-2 if method == "medusa" else 1e-4)


@pytest.mark.parametrize("tokens", [0, 50], ids=["all tokens", "50 tokens"])
def test_a_head_drafts_with_the_split_head_of_its_target(pair, tmp_path, tokens):
    path = make_head(tmp_path / "eagle", "eagle", pair.target_path, draft_vocab=tokens)

    def logits(ranks=None):
        target = load(pair.target_path, ranks=ranks)
        head = load_head(str(path), target)
        states = torch.randn(3, target.shape.width, generator=torch.Generator().manual_seed(1))
        return head.layer.decoder.head(states)

    for rows in on_ranks(3, logits):
        torch.testing.assert_close(rows, logits(), atol=1e-4, rtol=1e-4)


def test_a_pool_and_easyspec_on_the_devices_of_a_split_target(opened, monkeypatch):
    monkeypatch.setattr(opened["two"], "_c", 2.0)  # the plan needs no measurement
    plain = opened["whole"].run("autoregressive", PROMPT, limits=LIMITS)
    pool = opened["two"].run("dsi", PROMPT, config={"sp": 2, "lookahead": 1}, limits=LIMITS)
    trace = opened["two"].run("easyspec", PROMPT, config={"gamma": 2}, limits=LIMITS)
    assert pool.text == trace.text == plain.text
    assert len({s.device for s in pool.spans if s.model == "target"}) == 4
    used = {kind: {(s.device, s.rank) for s in trace.spans if s.kind == kind} for kind in ("draft", "verify")}
    assert used["draft"] == used["verify"]
    assert {rank for _, rank in used["draft"]} == {0, 1}
    assert {d.role for d in trace.header.devices} == {"drafter+target"}


def test_every_rank_is_a_device_and_shows_its_communication(opened):
    trace = opened["three"].run("speculative", PROMPT, config={"gamma": 2}, limits=LIMITS)
    labels = {d.label.partition(" · ")[2] for d in trace.header.devices}
    drafters = {f"drafter rank {i} of 2" for i in range(2)}
    assert labels == drafters | {f"target rank {i} of 3" for i in range(3)}
    forwards = [s for s in trace.spans if s.kind in ("prefill", "draft", "verify")]
    moves = {(s.device, s.start): s for s in trace.spans if s.kind == "communicate"}
    for forward in forwards:
        after = moves[forward.device, forward.end]
        assert after.end > after.start
        assert (after.model, after.step, after.rank) == (forward.model, forward.step, 0)
    assert sorted({s.rank for s in forwards if s.model == "target"}) == [0, 1, 2]
    assert len({s.device for s in trace.spans if s.kind == "sample"}) == 3
    settings = {name: trace.header.environment[name] for name in ("tp", "drafter_tp", "forward")}
    assert settings == {"tp": 3, "drafter_tp": 2, "forward": "static"}


@pytest.mark.parametrize("split", SPLITS)
def test_a_stopped_run_or_measurement_leaves_the_ranks_in_step(opened, split):
    cluster, stop = opened[split], threading.Event()
    plain = opened["whole"].run("autoregressive", PROMPT, limits=LIMITS)
    listen = at_span(20, stop.set)
    stopped = cluster.run("speculative", PROMPT, limits=Limits(2000), listener=listen, cancel=stop)
    assert stopped.status == "cancelled"
    (group,) = cluster.placement.workers_for(cluster.placement.base).by_model["target"]

    async def times():
        return (await group.submit(Measure("target", 8, 3, (1, 2), seconds=0.0)).reply).value

    assert len(cluster.placement.on_loop(times())) == 1, "out of time after the first number of rows"
    assert cluster.run("speculative", PROMPT, limits=LIMITS).text == plain.text


KILLED = (signal.SIGKILL, "was killed by SIGKILL")
STOPPED = (signal.SIGSTOP, "was stopped by a signal and was killed")


@pytest.mark.parametrize(("rank", "end"), [(0, KILLED), (1, KILLED), (1, STOPPED)])
def test_a_rank_that_dies_ends_its_run_with_an_error_that_names_it(pair, monkeypatch, rank, end):
    monkeypatch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
    events, handles, (number, how) = list[object](), shared_memory(), end
    with specscope.open(replace(pair, drafter_path=None), device="cpu", tp=2) as cluster:
        pids = [member.pid for member in _members(cluster)]
        pid = pids[rank]
        kill = at_span(12, lambda: os.kill(pid, number))

        def listen(event):
            events.append(event)
            kill(event)

        start = time.perf_counter()
        with pytest.raises(WorkerDied, match=rf"rank {rank} of 2: .*CPU core \d+ \(process {pid}\) {how}"):
            cluster.run("autoregressive", PROMPT, limits=Limits(2000), listener=listen)
        assert time.perf_counter() - start < 10
        assert isinstance(events[-1], Footer)
        assert f"rank {rank} of 2" in events[-1].error
        assert cluster.run("autoregressive", PROMPT, limits=Limits(4)).status == "done", "new ranks"
        pids += [member.pid for member in _members(cluster)]
    assert all(map(gone, pids)), "closing ends all processes, and with them their sockets"
    assert shared_memory() <= handles


def test_ranks_listen_on_the_loopback_address_only(opened):
    sockets = [c for m in _members(opened["three"]) for c in psutil.Process(m.pid).net_connections("inet")]
    assert {c.laddr.ip for c in sockets} == {"127.0.0.1"}


CHAINS = chains("drafter", (), ())


def _submitted(answer, job=CHAINS):
    """Return the reply of a group of two ranks whose jobs `answer` answers."""
    members = [AnsweredWorker("cpu:0"), AnsweredWorker("cpu:1")]
    group = ranks_of("group", members)
    links = [(link.rank, link.ways, link.backend) for m in members for link in m.prepared]
    assert links == [(0, 2, "gloo"), (1, 2, "gloo")]

    async def submit():
        ticket = group.submit(job)
        answer(*(m.replies[0] for m in members))
        return await ticket.reply

    return asyncio.run(submit())


def test_a_rank_that_waits_for_a_failed_one_is_ended(monkeypatch):
    monkeypatch.setattr(ensemble, "FOLLOW_S", 0)
    with pytest.raises(WorkerDied, match="rank 0 of 2: cpu:0 did not answer for 0 s after another rank fail"):
        _submitted(lambda _, other: other.set_exception(SpecScopeError("out of memory")))


def _grown(token):
    return Reply(((Grown(token, -1, 0, -1, 0.5, (), 0),),), ())


def _judged(token):
    """Two judgements; the second one's token is this."""
    same = Judgement((), 4, "plain", (Judged(-1, -1, 9, 4, 0.5, nan, nan, "draw", "plain", ()),), ())
    return Reply((same, replace(same, judged=(same.judged[0]._replace(token=token),))), ())


@pytest.mark.parametrize(("reply", "job"), [(_grown, CHAINS), (_judged, JudgeAll(()))])
def test_ranks_that_decide_differently_are_an_error(reply, job):
    def answer(one, other, token=4):
        one.set_result(reply(4))
        other.set_result(reply(token))

    assert _submitted(answer, job).value == reply(4).value
    with pytest.raises(SpecScopeError, match="the 2 ranks of cpu:0 decided differently"):
        _submitted(partial(answer, token=5), job)


ALONE = replace(Pair.find("bundled"), drafter_path=None)
WRONG = {
    "tp is 0; it must be at least 1 and at most 6": {"tp": 0},
    "tp is 7; it must be at least 1 and at most 6": {"tp": 7},
    "drafter_tp is -1; it must be at least 1": {"drafter_tp": -1},
    "use the runtime local-process or ray instead of local-thread": {"tp": 2, "runtime": "local-thread"},
    "use the runtime local-process or ray instead of virtual": {"tp": 2, "runtime": "virtual", "profile": "pearl-3xA100",  },
    "drafter_tp is 2, but there is no drafter": {"drafter_tp": 2, "pair": ALONE},
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_wrong_numbers_and_runtimes_are_refused_before_a_process_starts(message, monkeypatch):
    monkeypatch.setattr("specscope.engine.cluster.open.devices_of", six_cores)
    monkeypatch.setattr("specscope.engine.cluster.open.Placement", None)
    with pytest.raises(UsageError, match=message):
        specscope.open(**{"pair": "bundled", "device": "cpu", **WRONG[message]})
