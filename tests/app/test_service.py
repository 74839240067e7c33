"""The service: queue, states, cancellation, failures, clusters, stored runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from specscope.app.runs import LiveRun, RunRequest
from specscope.app.service import Service
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
    trace = run.trace()
    assert trace is not None
    assert trace.text == "".join(WORDS)
    assert service.store is not None
    stored = service.store.load(run.run_id)
    assert (stored.commits, stored.spans, stored.footer) == (trace.commits, trace.spans, trace.footer)
    assert trace.header.group == "g"
    run = finished(service.start(ask("speculative")))
    first, cursor = run.since(0)
    assert first[0].tag == "header"
    assert first[-1].tag == "footer"
    assert run.since(cursor) == ([], cursor)
    run = finished(service.start(ask()))
    assert service.find(run.ticket) is run
    assert service.find(run.run_id) is run
    assert service.find("nobody") is None
    assert service.trace(run.ticket) == service.trace(run.run_id) == run.trace()
    with pytest.raises(UsageError, match="nobody"):
        service.trace("nobody")


def test_runs_execute_one_at_a_time_in_order(service: Service, opener: FakeOpen) -> None:
    steps = threading.Semaphore(0)
    opener.waiting = [FakeCluster(step=steps)]
    runs = [service.start(ask(m)) for m in ("autoregressive", "speculative", "pearl")]
    until(lambda: runs[0].state == "running")
    assert [r.state for r in runs] == ["running", "queued", "queued"]
    assert [r.position for r in runs] == [0, 1, 2]
    for _ in range(3 * len(WORDS)):
        steps.release()
    for run in runs:
        assert finished(run).state == "done"
    assert [ran[0] for ran in opener.opened[0].ran] == ["autoregressive", "speculative", "pearl"]


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


def test_a_cancelled_run_leaves_the_queue(service: Service, opener: FakeOpen) -> None:
    steps = threading.Semaphore(0)
    opener.waiting = [FakeCluster(step=steps)]
    first, second, third = (service.start(ask(m)) for m in ("autoregressive", "speculative", "pearl"))
    until(lambda: first.state == "running")
    second.cancel()
    assert (second.state, second.ended, third.position) == ("cancelled", True, 1)
    first.cancel()
    third.cancel()
    assert finished(first).state == finished(third).state == "cancelled"
    assert [ran[0] for ran in opener.opened[0].ran] == ["autoregressive"]


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


def test_a_dead_worker_ends_its_run_and_the_next_one_works(service: Service, opener: FakeOpen) -> None:
    died = WorkerDied("the worker of cpu:1 (target)\nended with exit code -9; run again")
    opener.waiting = [FakeCluster(error=died, error_after=3)]
    run = finished(service.start(ask("pearl")))
    assert run.state == "failed"
    assert run.error == "the worker of cpu:1 (target) ended with exit code -9; run again"
    assert run.trace().text == "".join(WORDS[:3])
    assert service.store.load(run.run_id).status == "failed"
    assert opener.opened[0].closed
    assert finished(service.start(ask("pearl"))).state == "done"
    assert len(opener.opened) == 2


def test_the_error_of_a_bug_has_its_type(service: Service, opener: FakeOpen) -> None:
    opener.waiting = [FakeCluster(error=ZeroDivisionError("division by zero"))]
    assert finished(service.start(ask())).error == "ZeroDivisionError: division by zero"
    assert finished(service.start(ask())).state == "done"


def test_bad_input_fails_the_run_and_the_cluster_stays(service: Service, opener: FakeOpen) -> None:
    opener.waiting = [FakeCluster(error=UsageError("the prompt has 9000 tokens; at most 2304"))]
    run = finished(service.start(ask()))
    assert (run.state, run.error) == ("failed", "the prompt has 9000 tokens; at most 2304")
    assert isinstance(run.cause, UsageError)
    assert not opener.opened[0].closed


def test_a_cluster_that_cannot_open_fails_only_its_run(service: Service, opener: FakeOpen) -> None:
    opener.waiting = [ModelError("no model at /nowhere; give a directory with config.json")]
    bad = service.start(ask(target="/nowhere"))
    good = service.start(ask())
    assert finished(bad).error == "no model at /nowhere; give a directory with config.json"
    assert bad.trace() is None
    assert finished(good).state == "done"


def test_a_run_that_cannot_be_stored_is_not_done(service: Service, opener: FakeOpen, monkeypatch) -> None:
    def full(_header):
        raise StoreError("the disk is full; free some space")

    monkeypatch.setattr(service.store, "record", full)
    run = finished(service.start(ask()))
    assert (run.state, run.error) == ("failed", "the disk is full; free some space")
    assert run.trace().status == "failed"
    monkeypatch.undo()
    assert finished(service.start(ask())).state == "done"
    real = service.store.record

    def record(header):
        recorder = real(header)
        monkeypatch.setattr(recorder, "close", lambda: (_ for _ in ()).throw(StoreError("the disk is full")))
        return recorder

    monkeypatch.setattr(service.store, "record", record)
    run = finished(service.start(ask()))
    assert (run.state, run.error) == ("failed", "the disk is full")
    trace = run.trace()
    assert (trace.status, trace.footer.error) == ("failed", "the disk is full")
    assert trace.text == "".join(WORDS)


def test_old_runs_are_read_from_the_database_and_without_one_kept_in_memory(
    service: Service, monkeypatch, opener: FakeOpen
) -> None:
    monkeypatch.setattr("specscope.app.service.KEPT_RUNS", 1)
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


def test_the_first_run_shows_loading_not_queued(service, opener) -> None:
    opener.gate.clear()
    warm = service.start(RunRequest(method="", prompt=""))
    until(lambda: warm.state == "loading")
    first, second = service.start(ask()), service.start(ask())
    assert (first.state, first.position) == ("loading", 0)
    assert (second.state, second.position) == ("queued", 2)
    opener.gate.set()
    assert [finished(r).state for r in (first, second)] == ["done", "done"]


def test_without_a_method_only_the_models_are_loaded(service: Service, opener: FakeOpen) -> None:
    assert finished(service.start(RunRequest(method="", prompt=""))).state == "done"
    assert finished(service.start(ask())).state == "done"
    assert len(opener.opened) == 1
    assert len(opener.opened[0].ran) == 1
