"""A trace file that grows: each event once, waiting, faults, a file that is cut or replaced."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from specscope.engine.errors import UsageError
from specscope.engine.trace.events import SCHEMA, Part
from specscope.engine.trace.jsonl import to_json
from specscope.traces import follow
from specscope.traces.follow import Tail, Tally
from specscope.traces.metrics import measure
from tests.traces.samples import KINDS, read_file, sample_events, sample_trace

EVENTS = sample_events("pearl")
LINES = [to_json(event) + "\n" for event in EVENTS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


@pytest.fixture
def tail(file: Path):
    opened = Tail(file)
    yield opened
    opened.close()


def write(file: Path, *texts: str) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write("".join(texts))


def drained(tail: Tail) -> list:
    """Return the events of all reads until there is nothing new."""
    found = []
    while events := tail.read():
        found += events
    return found


def test_every_event_of_a_writer_is_read_once_and_in_order(file, tail) -> None:
    def slowly() -> None:
        content = "".join(LINES).encode()
        with file.open("wb", buffering=0) as opened:
            for start in range(0, len(content), 37):  # a write rarely ends where a line does
                opened.write(content[start : start + 37])
                time.sleep(0.0002)

    writer = threading.Thread(target=slowly)
    writer.start()
    found, deadline = [], time.monotonic() + 60
    while tail.footer is None:
        assert time.monotonic() < deadline
        found += tail.read()
    writer.join()
    assert found == EVENTS
    assert tail.read() == []


def test_it_says_what_it_waits_for(file, tail) -> None:
    assert tail.read() == []
    assert tail.waiting == "run.jsonl does not exist yet"
    write(file)
    assert tail.read() == []
    assert tail.waiting == "the header of run.jsonl is not written yet"
    write(file, LINES[0][:-20])
    assert tail.read() == []
    assert tail.waiting == "the header of run.jsonl is not complete yet"
    write(file, LINES[0][-20:])
    assert tail.read() == EVENTS[:1]
    assert tail.waiting == ""


def test_a_line_whose_end_is_missing_is_kept(file, tail) -> None:
    write(file, *LINES[:3], LINES[3][:-1])
    assert drained(tail) == EVENTS[:3]
    write(file, "\n", LINES[4][:5])
    assert drained(tail) == EVENTS[3:4]
    assert tail.lines == 4
    write(file, LINES[4][5:])
    assert drained(tail) == EVENTS[4:5]


def test_a_line_is_long_if_it_has_many_reads(file, tail, monkeypatch) -> None:
    monkeypatch.setattr(follow, "MOST_READ", 64)
    write(file, *LINES[:4])
    found = []
    while len(found) < 4:
        found += tail.read()
    assert found == EVENTS[:4]


def test_nothing_is_read_after_the_footer(file, tail) -> None:
    write(file, *LINES, LINES[1], "{")
    assert tail.read() == EVENTS
    write(file, "never read\n")
    assert tail.read() == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{nonsense\n", "line 4: Expecting property name"),
        ('{"event":"nothing"}\n', "line 4: not a trace event"),
        (LINES[0], "line 4: a trace has one header"),
        (LINES[1], "line 4: two spans have the same id"),
        (to_json(Part(999, "attention", 0, 1, 2)) + "\n", "line 4: span 999 of a part is not in the trace"),
        ("\udcff\n", "line 4: byte 0 is not UTF-8"),
        ("[" * 9000 + "\n", "line 4: the JSON nests too deeply"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(file, tail, line, fault) -> None:
    write(file, *LINES[:3])
    assert len(drained(tail)) == 3
    with file.open("ab") as opened:
        opened.write(line.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=rf"run\.jsonl: {fault}"):
        tail.read()


def test_the_lines_before_a_wrong_one_are_read(file, tail) -> None:
    write(file, *LINES[:3], "nonsense\n", LINES[3])
    assert tail.read() == EVENTS[:3]
    for _ in range(2):
        with pytest.raises(UsageError, match="line 4: Expecting value"):
            tail.read()


def test_a_file_of_another_form_is_refused_at_its_first_line(file, tail) -> None:
    write(file, LINES[1])
    with pytest.raises(UsageError, match="line 1: a trace starts with its header"):
        tail.read()


def test_a_fault_between_rows_names_the_lines_that_were_read_together(file, tail) -> None:
    foreign = json.dumps({**json.loads(LINES[1]), "device": "elsewhere"})
    write(file, LINES[0], LINES[2], foreign + "\n")
    with pytest.raises(UsageError, match="lines 1 to 3: device 'elsewhere' is not among the header's"):
        tail.read()


def test_a_newer_schema_is_refused_as_in_an_import(file, tail) -> None:
    write(file, json.dumps({**json.loads(LINES[0]), "schema": SCHEMA + 1}) + "\n")
    with pytest.raises(
        UsageError, match=f"line 1: the trace has schema {SCHEMA + 1}, .* reads up to {SCHEMA}"
    ):
        tail.read()


def test_a_shortened_file_is_noticed(file, tail) -> None:
    write(file, *LINES[:5])
    drained(tail)
    os.truncate(file, 10)
    with pytest.raises(UsageError, match="shortened to 10 bytes"):
        tail.read()


def test_a_replaced_or_removed_file_is_noticed_once_its_old_rows_are_read(file, tail, tmp_path) -> None:
    write(file, *LINES[:5])
    drained(tail)
    write(file, *LINES[5:7])
    other = tmp_path / "other.jsonl"
    write(other, *LINES)
    other.replace(file)
    assert tail.read() == EVENTS[5:7]
    with pytest.raises(UsageError, match="replaced before its footer"):
        tail.read()
    file.unlink()
    with pytest.raises(UsageError, match="removed before its footer"):
        tail.read()


def test_an_endless_line_and_a_huge_file_are_refused(file, tail, monkeypatch) -> None:
    monkeypatch.setattr(follow, "MOST_LINE", 100)
    write(file, "x" * 101)
    with pytest.raises(UsageError, match="line 1 has no end within 100 bytes"):
        tail.read()
    monkeypatch.setattr(follow, "MOST_LINE", 2**20)
    monkeypatch.setattr(follow, "MOST_TRACE_BYTES", 1000)
    write(file, "x" * 1000)
    with pytest.raises(UsageError, match="more than 1000 bytes"):
        tail.read()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_only_regular_files_are_read(tmp_path, kind) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(UsageError, match="is not a regular file"):
        Tail(path).read()


@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_at_the_end_are_those_of_the_metrics(kind) -> None:
    events = sample_events(kind)
    tally, half = Tally(), len(events) // 2
    tally.add(events[:half])
    tally.add(events[half:])
    trace = sample_trace(kind)
    known = measure(trace)
    assert tally.rounds == len(trace.rounds)
    assert (tally.tokens, tally.drafted, tally.accepted) == (known.tokens, known.drafted, known.accepted)
    assert tally.acceptance_rate == known.acceptance_rate
    assert tally.tokens_per_second == pytest.approx(known.tokens_per_second)


def test_a_run_without_rows_has_no_figures() -> None:
    assert (Tally().acceptance_rate, Tally().tokens_per_second) == (None, None)


def test_a_file_that_was_cut_is_imported_without_its_last_line(file) -> None:
    write(file, *LINES[:9], LINES[9][:12])
    footer = read_file(file).footer
    assert (footer.status, footer.error) == ("incomplete", "the file ends within a line, without a footer")
    file.write_text("".join(LINES)[:-1], encoding="utf-8")
    assert read_file(file) == sample_trace("pearl")
