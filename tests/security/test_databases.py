"""Attacks on the trace database: damaged values and bytes, other files, a file that vanishes."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specscope.app.render.history import runs_table
from specscope.engine.errors import StoreError
from specscope.engine.trace.jsonl import write_jsonl
from specscope.traces.database import recorder, schema
from specscope.traces.database.store import Store
from specscope.traces.export.perfetto import write_perfetto
from specscope.traces.export.report import render_report
from specscope.traces.export.tables import write_csv
from tests.security.commands import Models, command, use_models
from tests.security.odd import refusal
from tests.traces.samples import sample_events, sample_trace

KINDS = ("speculative", "llma", "pearl")
SOUND = "sample-pearl"
HURT = "sample-speculative"


def make(path):
    with Store(path) as store:
        for kind in KINDS:
            store.insert(sample_trace(kind))
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make(tmp_path_factory.mktemp("original") / "traces.db")


@pytest.fixture
def path(original, tmp_path):
    return Path(shutil.copy(original, tmp_path / "traces.db"))


def hurt(path, *places, run_id=HURT):
    """Write invalid values into columns of a run's rows; a place is a table, a column and SQL."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        for table, column, value in places:
            key = "run_id = ?" if table == "run" else "run = (SELECT id FROM run WHERE run_id = ?)"
            connection.execute(f'UPDATE "{table}" SET "{column}" = {value} WHERE {key}', (run_id,))


def columns():
    """Return table, name and nullability of the columns that may be damaged."""
    for table in (schema.RUN, *schema.ROWS.values()):
        kept = ("id", "group", "owner_pid", "owner_start", "run_id") if table is schema.RUN else ()
        for column in table.c:
            if column.name not in ("run", "number", *kept):
                yield table.name, column.name, column.nullable


VALUES = ("x'ff'", "CAST(x'ff' AS TEXT)", "'['", "'{}'", "'\\ud800'", "9e999", "-7", "NULL")


def use(store, run_id):
    """Read a stored run as the commands and the page do."""
    trace = store.load(run_id)
    write_csv(trace, "decisions", io.StringIO())
    write_perfetto(trace, io.StringIO())
    assert render_report([trace])
    return store.group(run_id)


def test_a_damaged_value_in_any_column_leaves_the_list_and_the_other_runs_readable(path):
    places, trace, errors = list(columns()), sample_trace(), set()
    with Store(path) as store:
        headers = [replace(trace.header, run_id=f"hurt-{number}") for number in range(len(places))]
        store.insert(*(replace(trace, header=header) for header in headers))
    for number, (table, column, nullable) in enumerate(places):
        value = VALUES[number % (len(VALUES) - 1 + nullable)]
        hurt(path, (table, column, value), run_id=f"hurt-{number}")
    with Store(path, readonly=True) as store:
        rows, total = store.runs(limit=len(places) + 3)
        assert len(rows) == total == len(places) + 3
        page, states = runs_table(rows, total, 0, total), {row.header.run_id: row.status for row in rows}
        assert states[SOUND] == states[HURT] == "done"
        assert store.load(SOUND) == sample_trace("pearl")
        assert page.count("damaged") >= list(states.values()).count("damaged") > 0
        for number, (table, *_) in enumerate(places):
            assert f"hurt-{number}" in page
            if why := refusal(lambda number=number: store.load(f"hurt-{number}")):
                assert why.startswith(f"run hurt-{number} is damaged (")
                errors.add((table, why))
    assert len(errors) > 30
    assert {table for table, _ in errors} >= {"run", "span", "decision", "token", "round", "piece"}


BAD_TEXT = "CAST(x'ff' AS TEXT)"


@pytest.mark.parametrize(
    "place", [("run", "config", "'{'"), ("run", "title", BAD_TEXT), ("token", "text", BAD_TEXT)]
)
def test_a_damaged_run_is_one_line_for_a_command_and_can_be_deleted(path, place):
    hurt(path, place)
    db = ("--db", str(path))
    assert command("export", HURT, *db).failed(1, f"run {HURT} is damaged")
    assert command("report", HURT, SOUND, "-o", str(path.with_name("r.html")), *db).failed(1, "is damaged")
    assert not path.with_name("r.html").exists()
    assert command("export", SOUND, *db).code == 0
    with Store(path) as store:
        assert store.delete([HURT]) == 1
        assert [row.status for row in store.runs()[0]] == ["done", "done"]


@pytest.mark.parametrize("value", ["x'ff'", "CAST(x'ff' AS TEXT)", "''", "7"])
def test_a_damaged_id_or_owner_hides_nothing(path, value):
    owner = [("run", column, value) for column in ("owner_pid", "owner_start")]
    hurt(path, *owner, ("run", "status", "NULL"), ("run", "run_id", value))
    with Store(path) as store:
        rows, total = store.runs()
        assert (len(rows), total) == (3, 3)
        assert runs_table(rows, total, 0, 20)
        assert store.load(SOUND) == sample_trace("pearl")
        assert store.delete([SOUND]) == 1


@st.composite
def damages(draw):
    """Return a function that flips, zeroes or cuts bytes of a database's file."""
    place, length = draw(st.floats(0, 1)), draw(st.sampled_from([1, 1, 8, 100, 4096]))
    way, count = draw(st.sampled_from(["flip", "flip", "zero", "cut"])), draw(st.integers(1, 8))
    mask = draw(st.integers(1, 255))

    def damage(content: bytes) -> bytes:
        data, at = bytearray(content), int(place * (len(content) - 1))
        if way == "cut":
            return bytes(data[:at])
        for n in range(count):
            start = (at + n * 7919) % len(data)
            part = data[start : start + length]
            data[start : start + length] = bytes(0 if way == "zero" else b ^ mask for b in part)
        return bytes(data)

    return damage


@settings(max_examples=25, deadline=None, derandomize=True)
@given(damages())
def test_any_bytes_of_the_file_may_be_wrong(original, damage):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.db"
        path.write_bytes(damage(original.read_bytes()))
        for attempt in (read_all, write_all):
            assert len(refusal(lambda attempt=attempt: attempt(path))) < 500


def read_all(path):
    with Store(path, readonly=True) as store:
        rows, _ = store.runs()
        runs_table(rows, len(rows), 0, 20)
        store.runs("cat", "pearl", "done")
        for row in rows:
            refusal(lambda row=row: use(store, row.header.run_id))


def write_all(path):
    with Store(path) as store:
        store.insert(replace(sample_trace(), header=replace(sample_trace().header, run_id="new")))
        assert store.load("new").status == "done"
        store.delete(["new", SOUND])


OTHERS = {
    "folder": "is a folder",
    **dict.fromkeys(("pipe", "/dev/zero", "/dev/null"), "is no regular file"),
    "text.db": "is not a SpecScope database",
    "other.db": "is a database of another program",
    "lost.db": "but its log",
    "text.db/x.db": "cannot be used",
    "x" * 300: "cannot be used (File name too long)",
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_is_not_a_trace_database_is_one_line(tmp_path, name):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.db").write_text("dear diary, " * 100)
    (tmp_path / "lost.db-wal").write_bytes(b"rows that nobody has")
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE invoices (id)")
    with (tmp_path / "trace.jsonl").open("w", encoding="utf-8") as file:
        write_jsonl(sample_trace(), file)
    assert command("import", file.name, "--db", str(tmp_path / name)).failed(1, OTHERS[name])
    assert (tmp_path / "lost.db-wal").read_bytes() == b"rows that nobody has"


def test_an_empty_file_has_no_runs_and_a_missing_one_is_not_made_by_a_command_that_reads(tmp_path):
    (tmp_path / "empty.db").touch()
    for name, why in (("empty", "the trace database"), ("none", "there is no trace database at")):
        done = command("export", "x", "--db", str(tmp_path / f"{name}.db"))
        assert done.failed(2, f"there is no run 'x': {why}", "is empty" * (name == "empty"))
    assert [file.name for file in tmp_path.iterdir()] == ["empty.db"]


FATES = {
    "deleted": lambda path: path.unlink(),
    "moved": lambda path: path.rename(path.with_name("elsewhere.db")),
    "replaced": lambda path: make(path.with_name("other.db")).replace(path),
}
GONE = "was deleted, moved or replaced while it was open"


@pytest.mark.parametrize("fate", FATES)
def test_a_database_that_goes_away_fails_the_run_and_is_refused_until_the_remedy_is_followed(path, fate):
    header, *events = sample_events("autoregressive")
    header = replace(header, run_id="new")
    with Store(path) as store:
        recording = store.record(replace(header, run_id="begun"))
        recording.add(events[0])
        FATES[fate](path)
        with pytest.raises(StoreError, match=GONE):
            recording.close()
        for _ in range(2):
            with pytest.raises(StoreError, match=f"{GONE}.* move .*-wal away if it exists, and start"):
                store.record(header)
        assert "new" not in recorder._recording
        with pytest.raises(StoreError, match=GONE):
            store.runs()
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    with Store(path) as store:
        before = store.runs()[1]
        with store.record(header):
            assert store.runs()[1] == before + 1
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_run_that_could_not_be_recorded_is_not_running(path, monkeypatch):
    real, header = recorder.insert_run, sample_events("autoregressive")[0]

    def insert(*args, **more):
        monkeypatch.setattr(recorder, "check_stays", fails)
        return real(*args, **more)

    def fails(*_):
        raise StoreError("after the transaction")

    monkeypatch.setattr(recorder, "insert_run", insert)
    with Store(path) as store:
        with pytest.raises(StoreError, match="after the transaction"):
            store.record(replace(header, run_id="new"))
        assert "new" not in recorder._recording


def test_a_database_deleted_in_mid_run_is_exit_code_1(tmp_path, monkeypatch):
    path = tmp_path / "traces.db"

    class Deleting(Models):
        def run(self, method, *prompts, listener, **options):
            trace = super().run(method, *prompts, listener=listener, **options)
            path.unlink()
            return trace

    use_models(monkeypatch, Deleting())
    done = command("run", "--method", "pearl", "--prompt", "x", "--db", str(path), "--json")
    assert done.failed(1, str(path), "was deleted")


def test_an_error_that_quotes_a_damaged_name_is_one_line(path):
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE piece", b"CREATE TABL\xc5 piece"))
    for readonly in (True, False):
        with pytest.raises(StoreError, match=r"is damaged; move it away"):
            Store(path, readonly=readonly)
