import os
import shutil
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specscope.engine.errors import StoreError
from specscope.traces.database import schema
from specscope.traces.database.store import Store, default_path
from tests.traces.samples import sample_trace


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "traces.db"


@contextmanager
def nobody():
    """Run the block without root's rights: permissions do not stop root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def structure(path):
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    ours = [row for row in rows if row[1] not in ("alembic_version", "sqlite_sequence") and row[2]]
    return {(kind, name): "".join(sql.split()) for kind, name, sql in ours}


def old_database(path):
    """Make a file as it was when a table had the version of the tables."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((Path(__file__).parent / "database_0007.sql").read_text(encoding="utf-8"))


def test_a_new_or_empty_file_becomes_a_database_with_our_application_id_and_wal_mode(path):
    path.parent.mkdir()
    path.touch()
    with Store(path) as store:
        assert store.runs() == ([], 0)
    with closing(sqlite3.connect(path)) as connection:
        found = [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "journal_mode")
        ]
    assert found == [schema.APPLICATION_ID, "wal"]


def test_several_openers_of_a_new_file_make_its_tables_once(path):
    def opening(_):
        with Store(path) as store:
            return store.runs()

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(opening, range(6))) == [([], 0)] * 6


def test_an_interrupted_beginning_leaves_an_empty_file(path, monkeypatch):
    def make(connection, **_):
        connection.exec_driver_sql("CREATE TABLE half (x)")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(schema.Base.metadata, "create_all", make)
    with pytest.raises(StoreError, match="No space left"):
        Store(path)
    monkeypatch.undo()
    with Store(path) as store:
        assert store.runs() == ([], 0)


def test_the_default_path(monkeypatch):
    for variables, found in (
        ({"SPECSCOPE_DB": "~/x.db", "XDG_DATA_HOME": "/data"}, Path.home() / "x.db"),
        ({"XDG_DATA_HOME": "/data"}, Path("/data/specscope/traces.db")),
        ({}, Path.home() / ".local/share/specscope/traces.db"),
    ):
        for name in ("SPECSCOPE_DB", "XDG_DATA_HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert default_path() == found


def foreign(path):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE invoices (id)")


def check_refused(path, message, readonly):
    """Check that a file is refused in one line, and kept."""
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message) as caught:
        Store(path, readonly=readonly)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("dear diary, " * 100), "is not a SpecScope database; move it away"),
        (foreign, "is a database of another program"),
    ],
)
def test_a_file_of_another_program_is_refused_and_kept(path, make, message, readonly):
    path.parent.mkdir()
    make(path)
    check_refused(path, message, readonly)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("version", [6, 7, 9999])
@pytest.mark.parametrize(
    "statement", ["PRAGMA user_version={}", "UPDATE alembic_version SET version_num = '{:04}'"]
)
def test_a_database_of_another_version_is_refused_and_kept(path, statement, version, readonly):
    old_database(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement.format(version))
    check_refused(path, rf"version {version}.*reads version {schema.VERSION}; export its runs with", readonly)


def test_a_database_whose_columns_were_added_one_by_one_keeps_its_runs(path):
    """Earlier revisions added columns at the end of a table, with a default."""
    added = {
        "run": ["lossless BOOLEAN DEFAULT 1 NOT NULL"],
        "span": ["cells BIGINT DEFAULT 0 NOT NULL", "rank INTEGER DEFAULT 0 NOT NULL"],
        "occupancy": ["power FLOAT"],
    }
    trace = sample_trace()
    with Store(path) as store:
        store.insert(trace)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table, columns in added.items():
            for column in columns:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column.split()[0]}")
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    trace.occupancy = [replace(sample, power=None) for sample in trace.occupancy]
    other = sample_trace("pearl")
    with Store(path) as store:
        assert store.load(trace.header.run_id) == trace
        store.insert(other)
        assert store.load(other.header.run_id) == other


def test_a_damaged_database(path):
    with Store(path) as store:
        store.insert(sample_trace(tokens=200))
    content = bytearray(path.read_bytes())
    content[4096 : len(content)] = b"\xff" * (len(content) - 4096)
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="is damaged; move it away"):
        Store(path)


def test_a_read_only_database_is_read_and_not_written():
    # Apart from pytest's folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp())
    try:
        path = folder / "traces.db"
        with Store(path) as store:
            store.insert(sample_trace())
        path.chmod(0o444)
        folder.chmod(0o555)
        with nobody():
            with pytest.raises(StoreError, match="is read-only; make the file and its folder writable"):
                Store(path)
            with Store(path, readonly=True) as store:
                assert store.load("sample-speculative") == sample_trace()
                with pytest.raises(StoreError, match="open for reading only"):
                    store.insert(sample_trace("pearl"))
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_file_without_the_newest_indexes_gets_them_when_it_is_opened(path):
    with Store(path) as store:
        store.insert(sample_trace("pearl"))
    wanted = structure(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP INDEX ix_decision_run_step")
    assert structure(path) != wanted
    with Store(path, readonly=True) as store:
        assert store.load("sample-pearl").status == "done"
    assert structure(path) != wanted, "a file that is only read is not changed"
    with Store(path):
        pass
    assert structure(path) == wanted
