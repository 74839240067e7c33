"""The service: queue, states, cancellation, failures, clusters, stored runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from specscope.app.jobs.runs import LiveRun, RunRequest
from specscope.app.jobs.service import Service
from specscope.engine.errors import ModelError, StoreError, UsageError, WorkerDied
from tests.app.fakes import WORDS, FakeCluster, FakeOpen, commits, until


def ask(method: str = "autoregressive", **more) -> RunRequest:
    return RunRequest(method=method, prompt="Tell me a story.", **more)


def finished(run: LiveRun) -> LiveRun:
    assert run.wait(20), f"still {run.state}"
    return run


def test_a_run_is_done_found_by_ticket_and_id_live_and_stored_and_its_events_come_once(
    service: Service,
) -> None:
    run = finished(service.start(ask(config={}, group="g")))
    assert (run.state, run.error, run.position) == ("done", "", 0)
    trace, stored = run.trace(), service.store.load(run.run_id)
    assert (trace.text, trace.header.group) == ("".join(WORDS), "g")
    assert (stored.commits, stored.spans, stored.footer) == (trace.commits, trace.spans, trace.footer)
    events, cursor = run.since(0)
    assert (events[0].tag, events[-1].tag) == ("header", "footer")
    assert run.since(cursor) == ([], cursor)
    assert service.find(run.ticket) is service.find(run.run_id) is run
    assert service.find("nobody") is None
    assert service.trace(run.ticket) == service.trace(run.run_id) == trace
    with pytest.raises(UsageError, match="nobody"):
        service.trace("nobody")


def test_runs_execute_one_at_a_time_in_order_and_a_cancelled_one_leaves_the_queue(
    service: Service, opener: FakeOpen
) -> None:
    steps = threading.Semaphore(0)
    opener.waiting = [FakeCluster(step=steps)]
    runs = [service.start(ask(m)) for m in ("autoregressive", "speculative", "llma", "pearl")]
    until(lambda: runs[0].state == "running")
    assert [(r.state, r.position) for r in runs[:3]] == [("running", 0), ("queued", 1), ("queued", 2)]
    runs[1].cancel()
    assert (runs[1].state, runs[1].ended, runs[2].position) == ("cancelled", True, 1)
    for _ in range(3 * len(WORDS)):
        steps.release()
    assert [finished(run).state for run in runs] == ["done", "cancelled", "done", "done"]
    assert [ran[0] for ran in opener.opened[0].ran] == ["autoregressive", "llma", "pearl"]


def test_a_cluster_is_reused_until_a_run_needs_another_one(service: Service, opener: FakeOpen) -> None:
    virtual = {"runtime": "virtual", "profile": "pearl-3xA100"}
    for request in (ask(), ask("pearl"), ask(**virtual), ask("pearl", **virtual), ask()):
        finished(service.start(request))
    assert [c.place["runtime"] for c in opener.opened] == ["local-process", "virtual", "local-process"]
    assert [c.closed for c in opener.opened] == [True, True, False]
    assert [len(c.ran) for c in opener.opened] == [2, 2, 1]


def test_a_cancelled_run_keeps_its_text(service: Service, opener: FakeOpen) -> None:
    steps = threading.Semaphore(2)
    opener.waiting = [FakeCluster(step=steps)]
    run = service.start(ask())
    until(lambda: commits(run) == 2)
    run.cancel()
    assert finished(run).state == "cancelled"
    assert run.trace().text == "".join(WORDS[:2])
    assert run.trace().status == "cancelled"
    assert not opener.opened[0].closed


def test_a_run_cancelled_while_loading_ends_at_once_and_the_cluster_stays(
    service: Service, opener: FakeOpen
) -> None:
    opener.gate.clear()
    run = service.start(ask())
    until(lambda: run.state == "loading")
    run.cancel()
    assert run.ended
    assert run.state == "cancelled"
    assert run.trace() is None
    opener.gate.set()
    assert finished(service.start(ask())).state == "done"
    assert len(opener.opened) == 1
    assert len(opener.opened[0].ran) == 1


@pytest.mark.parametrize(
    ("error", "after", "closed", "said"),
    [
        (WorkerDied("the worker of cpu:1 (target)\nended; run again"), 3, True, "the worker of cpu:1 (target) ended; run again"),
        (ZeroDivisionError("division by zero"), 0, True, "ZeroDivisionError: division by zero"),
        (UsageError("the prompt has 9000 tokens"), 0, False, "the prompt has 9000 tokens"),
    ],
    ids=["a dead worker", "a bug", "bad input"],
)  # fmt: skip
def test_an_error_ends_its_run_and_the_next_one_works(service, opener, error, after, closed, said) -> None:
    opener.waiting = [FakeCluster(error=error, error_after=after)]
    run = finished(service.start(ask("pearl")))
    assert (run.state, run.error, run.cause) == ("failed", said, error)
    assert run.trace().text == "".join(WORDS[:after])
    assert service.store.load(run.run_id).status == "failed"
    assert opener.opened[0].closed == closed, "bad input needs no other cluster"
    opener.opened[0].error = None
    assert finished(service.start(ask("pearl"))).state == "done"
    assert len(opener.opened) == 1 + closed


def test_a_cluster_that_cannot_open_fails_only_its_run(service: Service, opener: FakeOpen) -> None:
    opener.waiting = [ModelError("no model at /nowhere; give a directory with config.json")]
    bad, good = service.start(ask(target="/nowhere")), service.start(ask())
    assert finished(bad).error == "no model at /nowhere; give a directory with config.json"
    assert (bad.trace(), finished(good).state) == (None, "done")


def test_a_run_that_cannot_be_stored_is_not_done(service: Service, monkeypatch) -> None:
    def full(*_):
        raise StoreError("the disk is full; free some space")

    def full_at_its_end(header):
        recorder = record(header)
        monkeypatch.setattr(recorder, "close", full)
        return recorder

    record = service.store.record
    for broken in (full, full_at_its_end):
        monkeypatch.setattr(service.store, "record", broken)
        run = finished(service.start(ask()))
        trace = run.trace()
        assert (run.state, run.error) == ("failed", "the disk is full; free some space")
        assert trace.status == "failed"
        monkeypatch.undo()
        assert finished(service.start(ask())).state == "done"
    assert (trace.footer.error, trace.text) == (run.error, "".join(WORDS))


def test_old_runs_are_read_from_the_database_and_without_one_kept_in_memory(
    service: Service, monkeypatch, opener: FakeOpen
) -> None:
    monkeypatch.setattr("specscope.app.jobs.service.KEPT_RUNS", 1)
    runs = [finished(service.start(ask())) for _ in range(4)]
    assert service.find(runs[0].run_id) is None
    assert service.trace(runs[0].run_id).text == "".join(WORDS)
    service = Service(None, opener)
    run = finished(service.start(ask()))
    assert service.trace(run.run_id).text == "".join(WORDS)
    assert service.trace("nobody") is None
    service.close()


def test_close_cancels_all_runs_and_refuses_more(tmp_path: Path) -> None:
    opener = FakeOpen(FakeCluster(step=threading.Semaphore(0)))
    service = Service(tmp_path / "traces.db", opener)
    running, waiting = service.start(ask()), service.start(ask())
    until(lambda: running.state == "running")
    service.close()
    assert (running.state, waiting.state) == ("cancelled", "cancelled")
    assert opener.opened[0].closed
    with pytest.raises(UsageError, match="shutting down"):
        service.start(ask())


def test_while_only_the_models_are_loaded_the_first_run_shows_loading_not_queued(service, opener) -> None:
    opener.gate.clear()
    warm = service.start(RunRequest(method="", prompt=""))
    until(lambda: warm.state == "loading")
    first, second = service.start(ask()), service.start(ask())
    assert [(run.state, run.position) for run in (first, second)] == [("loading", 0), ("queued", 2)]
    opener.gate.set()
    assert [finished(r).state for r in (warm, first, second)] == ["done"] * 3
    assert [len(cluster.ran) for cluster in opener.opened] == [2]
