import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from specscope.engine.errors import StoreError
from specscope.engine.trace.events import Span
from specscope.traces import database, recorder
from specscope.traces.store import Store
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


def fill(monkeypatch, pages):
    """Let a database have so many pages: then its disk is full."""
    real = database._open

    def small(file, how):
        connection = real(file, how)
        connection.execute(f"PRAGMA max_page_count={pages}")
        return connection

    monkeypatch.setattr(database, "_open", small)


def test_adding_never_waits_for_the_database(path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_MS", 20_000)
    header, *events = sample_events()
    with Store(path) as store:
        with store.record(header) as recording:
            other = sqlite3.connect(path)
            other.execute("BEGIN IMMEDIATE")
            start = time.perf_counter()
            for event in events:
                recording.add(event)
            assert time.perf_counter() - start < 10, "the database would wait 20 s"
            other.rollback()
            other.close()
        assert store.load(header.run_id) == sample_trace()


def test_rows_are_stored_while_the_run_is_in_progress(path):
    with (
        Store(path) as store,
        Store(path, readonly=True) as reader,
        store.record(sample_events()[0]) as recording,
    ):
        for i in range(30):
            recording.add(span(i))
        wait_until(lambda: len(reader.load(recording.run_id).spans) == 30)
        assert reader.load(recording.run_id).status == "running"


def test_closing_the_store_writes_the_last_rows_of_a_run_in_progress(path):
    header = sample_events()[0]
    with Store(path) as store:
        store.record(header).add(span(0))
    with Store(path, readonly=True) as reader:
        assert reader.load(header.run_id).spans == [span(0)]


def test_a_locked_database_fails_the_run_and_not_the_app(path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_MS", 50)
    header, *events = sample_events()
    with Store(path) as store:
        recording = store.record(header)
        recording.add(events[0])
        wait_until(lambda: len(store.load(header.run_id).spans) == 1)
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        recording.add(events[1])
        wait_until(lambda: recording.error is not None)
        with pytest.raises(StoreError, match="is locked by another program; close that program"):
            recording.add(events[2])
        with pytest.raises(StoreError, match="is locked"):
            store.insert(sample_trace("shared"))
        other.rollback()
        other.close()
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


def test_an_event_that_cannot_be_stored_fails_only_its_own_run(path):
    with Store(path) as store:
        bad, good = store.record(sample_events("speculative")[0]), store.record(sample_events("pearl")[0])
        bad.add(Span(0, "gpu0", "thinking", 0, 1, "drafter", 1, 0, 1, 0, "done"))
        good.add(span(0))
        with pytest.raises(StoreError, match="'thinking' is none of prefill, draft"):
            bad.close()
        good.close()
        assert store.load("sample-pearl").spans == [span(0)]


def test_nothing_can_be_added_after_the_end(path):
    with Store(path) as store:
        recording = store.record(sample_events()[0])
        recording.close()
        recording.close()
        with pytest.raises(StoreError, match="is closed; nothing can be added"):
            recording.add(span(0))


def test_an_error_of_the_store_does_not_hide_the_error_of_the_run(path):
    with Store(path) as store:

        def run():
            with store.record(sample_events()[0]) as recording:
                recording.add(Span(0, "gpu0", "thinking", 0, 1, "drafter", 1, 0, 1, 0, "done"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            run()


CRASH = """
import sys
from tests.traces.samples import sample_events
from tests.traces.test_recorder import span
from specscope.traces.store import Store

store = Store(sys.argv[1])
recording = store.record(sample_events("pearl")[0])
number = 0
while True:
    recording.add(span(number))
    number += 1
    if number % 1000 == 0:
        print(number, flush=True)
"""


@pytest.fixture
def recording_process(path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CRASH, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        process.kill()


def test_a_killed_process_leaves_a_readable_file(path, recording_process):
    assert recording_process.stdout.readline() == "1000\n"
    with Store(path, readonly=True) as reader:
        wait_until(lambda: len(reader.load("sample-pearl").spans) > 1000)
        assert reader.load("sample-pearl").status == "running"
        assert reader.runs(status="running")[1] == 1
    recording_process.send_signal(signal.SIGKILL)
    recording_process.wait()
    with Store(path) as store:
        trace = store.load("sample-pearl")
        assert trace.status == "incomplete"
        assert len(trace.spans) > 1000
        assert trace.spans == [span(i) for i in range(len(trace.spans))]
        assert [s.status for s in store.runs(status="incomplete")[0]] == ["incomplete"]
        assert store.delete(["sample-pearl"]) == 1
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_reused_process_id_does_not_revive_a_run(monkeypatch):
    start = recorder.psutil.Process(os.getppid()).create_time()
    assert recorder.is_recording("r", os.getppid(), start)
    assert not recorder.is_recording("r", os.getppid(), start - 3600)
    assert not recorder.is_recording("r", None, None)
    assert not recorder.is_recording("not ours", os.getpid(), start)


def test_readers_see_one_state_while_the_writer_writes(path):
    header, *events = sample_events("pearl", tokens=80)
    wrong, counts = [], []

    def reading(store):
        try:
            while not done.is_set():
                trace = store.load(header.run_id)
                known = {s.id for s in trace.spans}
                wrong.extend(d for d in trace.decisions if d.verify_span >= 0 and d.verify_span not in known)
                counts.append(len(trace.spans))
                store.runs("cat")
        except StoreError as error:
            wrong.append(error)

    done = threading.Event()
    with Store(path) as store, Store(path, readonly=True) as reader, store.record(header) as recording:
        threads = [threading.Thread(target=reading, args=(s,)) for s in (store, store, reader)]
        for thread in threads:
            thread.start()
        for i, event in enumerate(events):
            recording.add(event)
            time.sleep(0 if i % 50 else 0.005)
        wait_until(lambda: store.load(header.run_id).status == "done")
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(set(counts)) > 2, "the readers saw the trace grow"
