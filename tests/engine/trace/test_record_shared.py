"""Recordings that several processes, forks or recorders share, and disks that are full."""

import errno
import fcntl
import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.trace import appended
from specscope.engine.trace.events import MEMBER
from specscope.engine.trace.jsonl import from_json
from specscope.traces.imports.reading import read_traces
from tests.engine.trace.recordings import followed, ids, read, run

FORKS = """
import os, shutil, sys, specscope
from specscope.engine.errors import UsageError
def child(*calls):
    if os.fork() == 0:
        for call in calls: call()
        os._exit(0)
    assert os.wait()[1] == 0
def refused(call, why=""):
    def attempt():
        try: call()
        except UsageError as error: assert "\\n" not in str(error) and why in str(error)
        else: os._exit(3)
    return attempt
early = specscope.record(sys.argv[1] + "l")
calls = (early.start, lambda: early.span("verify"), lambda: early.round(emitted=[1]))
child(*(refused(call, "call start() before the fork") for call in calls))
early.round(emitted=[1])
early.close()
rec = specscope.record(sys.argv[1], devices={"d": "drafter", "t": "target"})
rec.start()
def draft():
    with rec.span("draft"): pass
with rec.span("verify") as work: child(refused(lambda: rec.end(work)), draft)
child(rec.close)
child(lambda: child(draft), draft, rec.close, refused(draft))
child(draft, refused(lambda: rec.round(emitted=[1])), refused(lambda: rec.discard([1])))
try: specscope.record(sys.argv[1])
except UsageError as error: assert "another recording writes to" in str(error)
else: sys.exit("a recording was emptied while it ran")
with rec.span("verify"): pass
rec.round(emitted=[1])
if os.fork() == 0:
    os.read(int(sys.argv[2]), 1)
    for call in (draft, rec.close): refused(draft)() if call is draft else call()
    os._exit(0)
rec.close()
shutil.copy(sys.argv[1], sys.argv[1].replace(".jsonl", ".first"))
with specscope.record(sys.argv[1], method="second") as second:
    second.round(emitted=[2])
    os.write(int(sys.argv[3]), b"x")
    assert os.wait()[1] == 0
    second.round(emitted=[3])
"""


def test_forked_children_record_spans_only_and_end_nothing_of_their_parents(path):
    """A child's close neither ends nor unlocks it; one of a closed recording records nothing."""
    reading, writing = os.pipe()
    try:
        run(FORKS, path, reading, writing, fds=(reading, writing))
    finally:
        os.close(reading)
        os.close(writing)
    ids(path)
    trace, first, early = (read(p) for p in (path, path.with_suffix(".first"), Path(f"{path}l")))
    assert (trace.header.title, trace.status, trace.spans) == ("second", "done", [])
    assert (first.header.title, first.status, early.status) == ("own loop", "done", "done")
    parents = [span.id for span in first.spans if span.kind == "verify"]
    children = [span.id for span in first.spans if span.kind == "draft"]
    assert (parents, len(children)) == ([0, 1], 4)
    assert all(2**24 <= number < 2**53 for number in children)


JOINED = """
import os, sys, specscope
from specscope.engine.trace import load
load.EVERY_NS, load._ancestors = 0, lambda _: []
rec = specscope.record(sys.argv[1], devices={"d": "drafter", "t": "target"})
rec.start()
joined = specscope.record(sys.argv[1], join=True)
if os.fork() == 0:
    for _ in range(2): joined.end(joined.span("draft"))
    os._exit(0)
assert os.wait()[1] == 0
joined.close()
rec.close()
"""


def test_a_forked_child_of_a_process_that_joined_tells_no_load(path):
    """It has used less than its parent had before: its share since then would be negative."""
    run(JOINED, path)
    rows = [row for row in read(path).occupancy if row.device == MEMBER]
    assert len(rows) == 1


def test_only_a_running_recording_can_be_joined(path, tmp_path):
    with pytest.raises(UsageError, match=r"cannot join the recording .*absent.*call start"):
        specscope.record(tmp_path / "absent", join=True)
    with specscope.record(path) as rec:
        rec.start()
        joined = specscope.record(path, join=True)
    with pytest.raises(UsageError, match="another recording writes to"):
        specscope.record(path)  # the one that joined would write to it
    joined.close()
    with pytest.raises(UsageError, match="no program records to it now; join before close"):
        specscope.record(path, join=True)
    assert read(path).status == "done"
    path.write_text('{"event":"piece","token":1,"text":""}\n')
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(UsageError, match="it is no recording"):
            specscope.record(path, join=True)


def test_a_recording_that_is_forgotten_frees_its_file(path):
    rec = specscope.record(path)
    rec.round(emitted=[1])
    del rec
    gc.collect()
    specscope.record(path).close()
    assert read(path).status == "done"


@pytest.mark.parametrize("kind", ["/dev/full", "/dev/zero", "/dev/null", "fifo"])
def test_a_recording_is_a_regular_file(tmp_path, kind):
    if kind == "fifo":
        kind = tmp_path / "fifo"
        os.mkfifo(kind)
    with pytest.raises(UsageError, match="is not a regular file; give a file"):
        specscope.record(kind)


class Disk:
    """`os.write` of a disk with room for some bytes: it takes a part, then nothing."""

    def __init__(self, monkeypatch):
        self.room, self._write = 10**9, os.write
        monkeypatch.setattr(appended.os, "write", self)

    def __call__(self, file, content):
        if not self.room and content:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(file, content[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 40, 500])
def test_a_disk_that_is_full_for_a_moment_loses_no_row(path, monkeypatch, room):
    """Rows wait in memory; another process may write meanwhile, and a reader sees no half line."""
    disk = Disk(monkeypatch)
    with specscope.record(path, devices=["drafter", "target"]) as rec:
        rec.start()
        with specscope.record(path, join=True) as other:
            with other.span("draft"):
                pass
            disk.room = room
            said = list[str]()
            for token in range(10):
                try:
                    rec.round(emitted=[token], texts=["x"])
                except UsageError as error:
                    said.append(str(error))
                assert read_traces(path).traces[0].header.run_id
            assert len(said) >= 5
            assert all("No space left on device; its last" in line for line in said)
            assert all(line.endswith("rows wait in memory for the next call") for line in said)
            disk.room = 10**9
            for one, kind in ((other, "draft"), (rec, "verify")):
                with one.span(kind):
                    pass
    (trace,) = read_traces(path).traces
    assert trace.token_ids() == list(range(10))
    assert trace.text == trace.footer.texts[0] == "x" * 10
    assert (len(ids(path)), trace.status) == (3, "done")


def test_a_row_that_a_killed_process_did_not_finish_loses_no_other(path):
    """Cut at every byte: at the file's end, before another process's row, before a new line."""
    with specscope.record(path, devices=["drafter", "target"]) as rec:
        for token in range(2):
            with rec.span("draft", rows=1):
                pass
            rec.round(drafted=[token], accepted=1, emitted=[token], texts=["é"])
    *before, row, behind, footer = path.read_bytes().removesuffix(b"\n").split(b"\n")
    rows, last = [from_json(line.decode()) for line in before[1:] if line], from_json(behind.decode())
    for end in range(1, len(row)):
        for rest in (b"", behind + b"\n", b"\n" + behind + b"\n" + footer + b"\n"):
            path.write_bytes(b"\n".join([*before, row[:end] + rest]))
            (trace,) = read_traces(path).traces
            said = "a row that a killed process did not finish" if rest else "the file ends within a line"
            assert (trace.status, said in trace.footer.error) == ("incomplete", True)
            kept, found = [*rows, *([last] if rest else [])], [*trace.rows()]
            assert all(one in found for one in kept)
            assert followed(path)[1 : -1 if footer in rest else None] == kept


def test_a_header_that_waited_is_written_once(path, monkeypatch):
    disk = Disk(monkeypatch)
    disk.room = 60
    with specscope.record(path) as rec:
        with pytest.raises(UsageError, match="its last 1 rows wait"):
            rec.start()
        with pytest.raises(UsageError, match="its last 3 rows wait"):
            rec.round(emitted=[1], texts=["x"])
        disk.room = 10**9
    assert read_traces(path).traces[0].text == "x"


def test_a_disk_that_stays_full_ends_the_recording_and_says_what_is_lost(path, monkeypatch):
    disk, rec = Disk(monkeypatch), specscope.record(path)
    rec.round(emitted=[1], texts=["x"])
    disk.room = 20
    with pytest.raises(UsageError, match="its last 2 rows wait"):
        rec.round(emitted=[2], texts=["y"])
    with pytest.raises(UsageError, match=r"No space left on device; its last \d+ rows are lost"):
        rec.close()
    (trace,) = read_traces(path).traces
    assert (trace.status, trace.text) == ("incomplete", "x")


def test_rows_that_wait_are_bounded(path, monkeypatch):
    disk, rec, said = Disk(monkeypatch), specscope.record(path), list[str]()
    monkeypatch.setattr(appended, "MOST_KEPT", 2000)
    rec.round(emitted=[1], texts=["x"])
    disk.room = 0
    for _ in range(100):
        with pytest.raises(UsageError) as error:
            rec.round(emitted=[2])
        said.append(str(error.value))
    assert "rows are lost, and it ends before them" in said[-1]
    disk.room = 10**9
    with pytest.raises(UsageError, match="are lost"):
        rec.close()
    assert read_traces(path).traces[0].status == "incomplete"


LIMITED = """
import resource, sys, specscope
rec = specscope.record(sys.argv[1])
rec.start()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
failed = 0
for token in range(50):
    try: rec.round(emitted=[token], texts=["x"])
    except specscope.UsageError: failed += 1
assert failed > 10
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
rec.close()
"""


def test_a_real_limit_of_the_file_loses_no_row(path):
    run(LIMITED, path, 1777)
    assert read_traces(path).traces[0].text == "x" * 50


def test_a_recording_ends_before_it_is_too_large_to_be_read(path, monkeypatch):
    monkeypatch.setattr(appended, "MOST_TRACE_BYTES", appended._SPARE + 5000)
    monkeypatch.setattr(appended, "MOST_LINE", 600)
    rec = specscope.record(path)
    for size, message in (
        (800, "a row has 899 bytes; at most 600 are read"),
        (1, "the most of a recording; end it, and record"),
    ):
        with pytest.raises(UsageError, match=message):  # noqa: PT012
            for _ in range(100):
                rec.round(emitted=[1], texts=["x" * size])
    assert path.stat().st_size < 5000
    with suppress(UsageError):
        rec.close()
    assert read_traces(path).traces[0].status == "incomplete"
