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
from specscope.traces.facts.metrics import measure
from specscope.traces.following import follow
from specscope.traces.following.follow import Tail, Tally
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


def test_every_event_of_a_writer_is_read_once_and_in_order(file, tail):
    def slowly():
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
    write(file, LINES[1], "{never read\n")
    assert tail.read() == []


def test_it_says_what_it_waits_for(file, tail):
    for text, waiting in (
        (None, "run.jsonl does not exist yet"),
        ("", "the header of run.jsonl is not written yet"),
        (LINES[0][:-20], "the header of run.jsonl is not complete yet"),
    ):
        if text is not None:
            write(file, text)
        assert (tail.read(), tail.waiting) == ([], waiting)
    write(file, LINES[0][-20:])
    assert (tail.read(), tail.waiting) == (EVENTS[:1], "")


def test_a_line_whose_end_is_missing_is_kept(file, tail):
    write(file, *LINES[:3], LINES[3][:-1])
    assert drained(tail) == EVENTS[:3]
    write(file, "\n", LINES[4][:5])
    assert drained(tail) == EVENTS[3:4]
    assert tail.lines == 4
    write(file, LINES[4][5:])
    assert drained(tail) == EVENTS[4:5]


def test_a_line_is_long_if_it_has_many_reads(file, tail, monkeypatch):
    monkeypatch.setattr(follow, "MOST_READ", 64)
    write(file, *LINES[:4])
    found = []
    while len(found) < 4:
        found += tail.read()
    assert found == EVENTS[:4]


def edited(line, **fields):
    return json.dumps({**json.loads(line), **fields}) + "\n"


@pytest.mark.parametrize(
    ("before", "line", "fault"),
    [
        (3, "{nonsense\n", "line 4: Expecting property name"),
        (3, LINES[1], "line 4: two spans have the same id"),
        (
            3,
            to_json(Part(999, "attention", 0, 1, 2)) + "\n",
            "line 4: span 999 of a part row is not in the trace",
        ),
        (3, "\udcff\n", "line 4: byte 0 is not UTF-8"),
        (0, LINES[1], "line 1: a trace starts with its header"),
        (
            0,
            edited(LINES[0], schema=SCHEMA + 1),
            f"line 1: the trace has schema {SCHEMA + 1}, .* up to {SCHEMA}",
        ),
        (
            0,  # a fault between rows names the lines that were read together
            LINES[0] + LINES[2] + edited(LINES[1], device="elsewhere"),
            "lines 1 to 3: device 'elsewhere' is not among the header's",
        ),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(file, tail, before, line, fault):
    write(file, *LINES[:before])
    assert drained(tail) == EVENTS[:before]
    with file.open("ab") as opened:
        opened.write(line.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=rf"run\.jsonl: {fault}"):
        tail.read()


def test_the_lines_before_a_wrong_one_are_read(file, tail):
    write(file, *LINES[:3], "nonsense\n", LINES[3])
    assert tail.read() == EVENTS[:3]
    for _ in range(2):
        with pytest.raises(UsageError, match="line 4: Expecting value"):
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_at_the_end_are_those_of_the_metrics(kind):
    events, trace, tally = sample_events(kind), sample_trace(kind), Tally()
    assert (tally.acceptance_rate, tally.tokens_per_second) == (None, None)
    tally.add(events[: len(events) // 2])
    tally.add(events[len(events) // 2 :])
    known = measure(trace)
    assert tally.rounds == len(trace.rounds)
    for name in ("tokens", "drafted", "accepted", "acceptance_rate"):
        assert getattr(tally, name) == getattr(known, name)
    assert tally.tokens_per_second == pytest.approx(known.tokens_per_second)


def test_a_file_that_was_cut_is_imported_without_its_last_line(file) -> None:
    write(file, *LINES[:9], LINES[9][:12])
    footer = read_file(file).footer
    assert (footer.status, footer.error) == ("incomplete", "the file ends within a line, without a footer")
    file.write_text("".join(LINES)[:-1], encoding="utf-8")
    assert read_file(file) == sample_trace("pearl")
