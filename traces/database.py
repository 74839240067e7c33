"""Opening the trace database's file: what it must be, its pragmas, its migration, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from engine.errors import StoreError
from traces.schema import APPLICATION_ID, REVISION, dump

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection, Engine

BUSY_MS = 5000
"""How long a statement waits for another program's lock."""


def default_path() -> Path:
    """Return the database used unless another is given: SPECSCOPE_DB, else traces.db in the user's data folder."""
    if chosen := os.environ.get("SPECSCOPE_DB"):
        return Path(chosen).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "specscope" / "traces.db"


def open_engine(path: Path, *, readonly: bool) -> Engine:
    """Return an engine on the file; unless `readonly`, make or migrate the file when it must be.

    Raises:
        StoreError: It is missing, locked, read-only, not a SpecScope database, or of a newer version.
    """
    if readonly and not path.exists():
        raise StoreError(f"there is no trace database at {path}; run a method first, or set SPECSCOPE_DB")
    engine = create_engine(
        "sqlite://", creator=lambda: _connect(path, readonly), poolclass=QueuePool, json_serializer=dump
    )
    try:
        with explained(path):
            if readonly:
                with engine.connect() as connection:
                    if not _current(connection, path):
                        raise StoreError(f"{path} is of an older version; open it once without readonly")
            else:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _prepare(engine, path)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def explained(path: Path) -> Generator[None]:
    """Turn what the database or the file system says inside into a StoreError."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise explain(error, path) from error


def explain(error: BaseException, path: Path) -> StoreError:
    """Return the error to show for what the database said: one line, with what to do."""
    cause = getattr(error, "orig", None) or error
    name: str = getattr(cause, "sqlite_errorname", "")
    elsewhere = "or set SPECSCOPE_DB to another file"
    locked = f"{path} is locked by another program; close that program, {elsewhere}"
    texts = {
        "SQLITE_BUSY": locked,
        "SQLITE_LOCKED": locked,
        "SQLITE_READONLY": f"{path} is read-only; make the file and its folder writable, {elsewhere}",
        "SQLITE_CANTOPEN": f"{path} cannot be opened; check that its folder exists and may be used, {elsewhere}",
        "SQLITE_FULL": f"the disk that holds {path} is full; free some space, {elsewhere}",
        "SQLITE_NOTADB": f"{path} is not a SpecScope database; move it away, {elsewhere}",
        "SQLITE_CORRUPT": f"{path} is damaged; move it away or restore a copy, {elsewhere}",
        "SQLITE_IOERR": f"{path} cannot be read or written ({name}); check the disk and its free space, {elsewhere}",
        "SQLITE_CONSTRAINT_UNIQUE": "a run with this id is already stored; delete it first",
        "SQLITE_CONSTRAINT_FOREIGNKEY": "the run was deleted while it was recorded; run it again",
    }
    for code in (name, "_".join(name.split("_")[:2])):
        if code in texts:
            return StoreError(texts[code])
    if isinstance(cause, OSError):
        return StoreError(f"{path} cannot be used ({cause.strerror}); check its folder, {elsewhere}")
    return StoreError(f"the trace database failed: {' '.join(str(cause).split())}")


def _connect(path: Path, readonly: bool) -> sqlite3.Connection:
    if not readonly:
        return _open(path, "mode=rwc")
    try:
        return _open(path, "mode=ro")
    except sqlite3.OperationalError as error:
        barred = error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
        if not barred or path.with_name(path.name + "-wal").exists():
            raise
        # In a folder where nothing can be written SQLite cannot put its lock file; but then nobody else writes either.
        return _open(path, "mode=ro&immutable=1")


def _open(path: Path, how: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{how}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_MS / 1000, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _current(connection: Connection, path: Path) -> bool:
    """Return whether the file is of this version; False when it is empty or older.

    Raises:
        StoreError: It belongs to another program, or to a newer version.
    """
    (application,) = connection.exec_driver_sql("PRAGMA application_id").one()
    (tables,) = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").one()
    if not tables and application in (0, APPLICATION_ID):
        return False
    if application != APPLICATION_ID:
        raise StoreError(
            f"{path} is a database of another program; move it away, or set SPECSCOPE_DB to another file"
        )
    (revision,) = connection.exec_driver_sql("SELECT version_num FROM alembic_version").one()
    if revision == REVISION:
        return True
    from traces import migrations  # Alembic takes 0.2 s to import, and most files are current

    if not migrations.known(revision):
        raise StoreError(
            f"{path} was written by a newer SpecScope (revision {revision}); update SpecScope, "
            "or set SPECSCOPE_DB to another file"
        )
    return False


def _prepare(engine: Engine, path: Path) -> None:
    with engine.connect() as connection:
        # Shows at once whether the file can be written, and lets one process at a time migrate it.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if not _current(connection, path):
            from traces import migrations

            migrations.upgrade(connection)
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
            connection.commit()
    with engine.connect() as connection:
        _write_ahead(connection)


def _write_ahead(connection: Connection) -> None:
    """Set WAL mode, which stays with the file; SQLite does not wait for other openers here, so we do."""
    deadline = time.monotonic() + BUSY_MS / 1000
    while True:
        try:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        except SQLAlchemyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
