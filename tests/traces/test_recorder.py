"""Runs in progress: the rows that reach the database, and the live log of a run."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from specscope.engine.errors import StoreError
from specscope.engine.trace.events import Footer, Span
from specscope.traces.database import file, recorder
from specscope.traces.database.live import LiveLog
from specscope.traces.database.store import Store
from tests.traces.samples import sample_events, sample_trace


@pytest.fixture
def path(tmp_path):
    return tmp_path / "traces.db"


def span(number):
    return Span(number, "gpu0", "draft", number * 10, number * 10 + 8, "drafter", 1, 0, 1, 0, "done")


def wait_until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.01)


@contextmanager
def locked(path):
    """Let another program write to the database."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.rollback()


def fill(monkeypatch, pages):
    """Let a database have so many pages: then its disk is full."""
    real = file._open

    def small(file, how):
        connection = real(file, how)
        connection.execute(f"PRAGMA max_page_count={pages}")
        return connection

    monkeypatch.setattr(file, "_open", small)


def test_adding_never_waits_for_the_database(path, monkeypatch):
    monkeypatch.setattr(file, "BUSY_MS", 20_000)
    header, *events = sample_events()
    with Store(path) as store:
        with store.record(header) as recording:
            with locked(path):
                start = time.perf_counter()
                for event in events:
                    recording.add(event)
                assert time.perf_counter() - start < 10, "the database would wait 20 s"
        assert store.load(header.run_id) == sample_trace()


def test_rows_are_stored_while_the_run_is_in_progress_and_the_last_ones_when_the_store_closes(path):
    with Store(path) as store, Store(path, readonly=True) as reader:
        recording = store.record(sample_events()[0])
        for i in range(30):
            recording.add(span(i))
        wait_until(lambda: len(reader.load(recording.run_id).spans) == 30)
        assert reader.load(recording.run_id).status == "running"
        recording.add(span(30))
    with Store(path, readonly=True) as reader:
        assert reader.load(recording.run_id).spans == [span(i) for i in range(31)]


def test_a_locked_database_fails_the_run_and_not_the_app(path, monkeypatch):
    monkeypatch.setattr(file, "BUSY_MS", 50)
    header, *events = sample_events()
    with Store(path) as store:
        recording = store.record(header)
        recording.add(events[0])
        wait_until(lambda: len(store.load(header.run_id).spans) == 1)
        with locked(path):
            recording.add(events[1])
            wait_until(lambda: recording.error is not None)
            with pytest.raises(StoreError, match="is locked by another program; close that program"):
                recording.add(events[2])
            with pytest.raises(StoreError, match="is locked"):
                store.insert(sample_trace("shared"))
        with pytest.raises(StoreError, match="is locked"):
            recording.close()
        assert store.load(header.run_id).spans == events[:1]
        assert store.load(header.run_id).status == "incomplete"
        store.insert(sample_trace("pearl"))
        assert store.load("sample-pearl") == sample_trace("pearl")


def test_a_full_disk_fails_the_run_and_keeps_the_stored_rows(path, monkeypatch):
    with Store(path):
        pass
    fill(monkeypatch, 60)
    header = sample_events()[0]
    with Store(path) as store:
        recording = store.record(header)

        def decode():
            for i in range(200_000):
                recording.add(span(i))
                time.sleep(0 if i % 1000 else 0.02)

        with pytest.raises(StoreError, match=r"the disk that holds .* is full; free some space"):
            decode()
        with pytest.raises(StoreError, match="is full"):
            recording.close()
        stored = store.load(header.run_id)
        assert stored.status == "incomplete"
        assert stored.spans == [span(i) for i in range(len(stored.spans))]
        assert len(stored.spans) >= 1000
    monkeypatch.undo()
    with Store(path) as store:
        store.insert(sample_trace("pearl"))
        assert store.runs()[1] == 2


def test_a_full_disk_shows_when_recording_begins(path, monkeypatch):
    with Store(path) as store:
        store.insert(sample_trace())
    fill(monkeypatch, path.stat().st_size // 4096)
    with Store(path) as store, pytest.raises(StoreError, match="is full"):
        store.insert(sample_trace("pearl", tokens=2000))


BAD = Span(0, "gpu0", "thinking", 0, 1, "drafter", 1, 0, 1, 0, "done")


def test_an_event_that_cannot_be_stored_fails_only_its_own_run(path):
    with Store(path) as store:
        bad, good = store.record(sample_events("speculative")[0]), store.record(sample_events("pearl")[0])
        bad.add(BAD)
        good.add(span(0))
        with pytest.raises(StoreError, match="'thinking' is none of prefill, draft"):
            bad.close()
        good.close()
        assert store.load("sample-pearl").spans == [span(0)]
        good.close()
        with pytest.raises(StoreError, match="is closed; nothing can be added"):
            good.add(span(0))


def test_an_error_of_the_store_does_not_hide_the_error_of_the_run(path):
    def run():
        with Store(path) as store, store.record(sample_events()[0]) as recording:
            recording.add(BAD)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()


CRASH = """
import sys
from tests.traces.samples import sample_events
from tests.traces.test_recorder import span
from specscope.traces.database.store import Store

store = Store(sys.argv[1])
recording = store.record(sample_events("pearl")[0])
number = 0
while True:
    recording.add(span(number))
    number += 1
    if number % 1000 == 0:
        print(number, flush=True)
"""


def test_a_killed_process_leaves_a_readable_file(path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CRASH, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout.readline() == "1000\n"
            with Store(path, readonly=True) as reader:
                wait_until(lambda: len(reader.load("sample-pearl").spans) > 1000)
                assert reader.load("sample-pearl").status == "running"
                assert reader.runs(status="running")[1] == 1
        finally:
            process.send_signal(signal.SIGKILL)
    with Store(path) as store:
        trace = store.load("sample-pearl")
        assert trace.status == "incomplete"
        assert len(trace.spans) > 1000
        assert trace.spans == [span(i) for i in range(len(trace.spans))]
        assert [s.status for s in store.runs(status="incomplete")[0]] == ["incomplete"]
        assert store.delete(["sample-pearl"]) == 1
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_reused_process_id_does_not_revive_a_run(monkeypatch):
    start = recorder.psutil.Process(os.getppid()).create_time()
    assert recorder.is_recording("r", os.getppid(), start)
    assert not recorder.is_recording("r", os.getppid(), start - 3600)
    assert not recorder.is_recording("r", None, None)
    assert not recorder.is_recording("not ours", os.getpid(), start)


def test_readers_see_one_state_while_the_writer_writes(path):
    header, *events = sample_events("pearl", tokens=80)
    done = threading.Event()

    def lengths(store):
        """Return how many spans each look saw, whose decisions had all their spans."""
        counts = []
        while not done.is_set():
            trace = store.load(header.run_id)
            known = {-1, *(s.id for s in trace.spans)}
            assert {d.verify_span for d in trace.decisions} <= known
            counts.append(len(trace.spans))
            store.runs("cat")
        return counts

    with (
        ThreadPoolExecutor(3) as threads,
        Store(path) as store,
        Store(path, readonly=True) as reader,
        store.record(header) as recording,
    ):
        looks = [threads.submit(lengths, s) for s in (store, store, reader)]
        try:
            for i, event in enumerate(events):
                recording.add(event)
                time.sleep(0 if i % 50 else 0.005)
            wait_until(lambda: store.load(header.run_id).status == "done")
        finally:
            done.set()
        counts = {n for look in looks for n in look.result()}
    assert len(counts) > 2, "the readers saw the trace grow"


# The live log of a run.


def log_of(*events, **options):
    log = LiveLog(**options)
    for event in events:
        log.append(event)
    return log


def test_a_reader_gets_every_event_once_in_order_until_the_footer_closes_the_log():
    log, events = LiveLog(), sample_events()
    assert log.since(0) == ([], 0)
    seen, cursor = [], 0
    for i, event in enumerate(events):
        assert not log.closed
        log.append(event)
        if i % 7 == 0:
            fresh, cursor = log.since(cursor)
            seen += fresh
    fresh, cursor = log.since(cursor)
    assert seen + fresh == events
    assert log.closed
    log.append(span(1))
    assert log.since(0)[0] == events
    assert log.since(cursor) == ([], cursor)
    unended = log_of(events[0])
    unended.close()
    assert (unended.closed, unended.since(0)[0]) == (True, events[:1])


def test_memory_is_bounded_and_a_reader_left_behind_goes_on_with_the_oldest_kept():
    header = sample_events()[0]
    log = log_of(header, *map(span, range(10)), capacity=100)
    _, behind = log.since(0)
    for i in range(10, 1000):
        log.append(span(i))
    fresh, cursor = log.since(0)
    assert fresh[0] is header
    assert [s.id for s in fresh[1:]] == list(range(log.dropped, 1000))
    assert 100 <= len(fresh) - 1 <= 125
    assert behind <= log.dropped
    assert log.since(behind)[0][0] == span(log.dropped)
    log.append(span(1000))
    assert log.since(cursor) == ([span(1000)], 1002)


def test_one_thread_appends_and_others_read():
    log, total = log_of(sample_events()[0]), 5_000

    def reading(_):
        seen, cursor, closed = [], 0, False
        while not closed:
            closed = log.closed
            fresh, cursor = log.since(cursor)
            seen += fresh
        return [e.id for e in seen if isinstance(e, Span)]

    with ThreadPoolExecutor(3) as threads:
        results = threads.map(reading, range(3))
        for i in range(total):
            log.append(span(i))
        log.append(Footer("done", (), (), 0))
        assert list(results) == [list(range(total))] * 3
