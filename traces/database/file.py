"""Opening the file of the trace database: checks, pragmas, tables, and messages for its errors."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool
from sqlalchemy.schema import CreateIndex

from specscope.engine.errors import StoreError, StoreMissing, UsageError, shown
from specscope.traces.database.schema import ADDED_TO, APPLICATION_ID, VERSION, Base, dump

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection, Engine

BUSY_MS = 5000
"""Milliseconds that a statement waits for another program's lock."""


def default_path() -> Path:
    """Return SPECSCOPE_DB, else traces.db in the data folder of the user."""
    chosen = os.environ.get("SPECSCOPE_DB") or ""
    return _expanded(chosen) if chosen else data_folder() / "traces.db"


def data_folder() -> Path:
    return _expanded(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "specscope"


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UsageError(
            f"there is no home folder for {shown(path)}; set SPECSCOPE_DB to an absolute path"
        ) from None


def open_engine(path: Path, *, readonly: bool) -> Engine:
    """Return an engine on the file; unless `readonly`, make the tables of a new or empty file.

    StoreError if it is missing, locked, read-only, damaged, or of another program or version.
    """
    with explained(path):
        _check_file(path, readonly=readonly)
    if readonly and _is_older(path):
        open_engine(path, readonly=False).dispose()
    engine = create_engine(
        "sqlite://", creator=lambda: _connect(path, readonly), poolclass=QueuePool, json_serializer=dump
    )
    try:
        with explained(path):
            if readonly:
                with engine.connect() as connection:
                    if _is_empty(connection, path):
                        raise StoreMissing(
                            f"the trace database {path} is empty; run a method first, or set SPECSCOPE_DB"
                        )
            else:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _prepare(engine, path)
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def explained(path: Path) -> Generator[None]:
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise explain(error, path) from error


def identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_stays(path: Path, opened: tuple[int, int] | None) -> None:
    """Raise StoreError unless a path still names the file that was opened.

    New connections would open the file that has the name now, with the log of the old one.
    """
    if identity(path) != opened:
        raise moved(path)


def moved(path: Path) -> StoreError:
    return StoreError(
        f"{path} was deleted, moved or replaced while it was open, and the rows written since are lost; "
        f"end SpecScope, move {path}-wal away if it exists, and start SpecScope again"
    )


def is_damage(error: BaseException) -> bool:
    """Return whether an error means that the file, or a text in it, is damaged."""
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, UnicodeDecodeError):  # an error message quoted a damaged name
        return True
    name: str = getattr(cause, "sqlite_errorname", "")
    return name.startswith("SQLITE_CORRUPT") or str(cause).startswith("Could not decode to UTF-8")


def explain(error: BaseException, path: Path) -> StoreError:
    """Return a database or file-system error as one line with the remedy."""
    cause = getattr(error, "orig", None) or error
    name: str = getattr(cause, "sqlite_errorname", "")
    elsewhere = "or set SPECSCOPE_DB to another file"
    locked = f"{path} is locked by another program; close that program, {elsewhere}"
    texts = {
        "SQLITE_BUSY": locked,
        "SQLITE_LOCKED": locked,
        "SQLITE_READONLY_DBMOVED": str(moved(path)),
        "SQLITE_READONLY": f"{path} is read-only; make the file and its folder writable, {elsewhere}",
        "SQLITE_CANTOPEN": f"{path} cannot be opened; check that its folder exists and may be used, {elsewhere}",
        "SQLITE_FULL": f"the disk that holds {path} is full; free some space, {elsewhere}",
        "SQLITE_NOTADB": f"{path} is not a SpecScope database; move it away, {elsewhere}",
        "SQLITE_CORRUPT": f"{path} is damaged; move it away or restore a copy, {elsewhere}",
        "SQLITE_IOERR": f"{path} cannot be read or written ({name}); check the disk and its free space, {elsewhere}",
        "SQLITE_CONSTRAINT_UNIQUE": "a run with this id is already stored; delete it in the History first",
        "SQLITE_CONSTRAINT_FOREIGNKEY": "the run was deleted while it was recorded; run it again",
    }
    for code in (name, "_".join(name.split("_")[:2])):
        if code in texts:
            return StoreError(texts[code])
    if is_damage(error):
        return StoreError(texts["SQLITE_CORRUPT"])
    if isinstance(cause, OSError):
        return StoreError(f"{path} cannot be used ({cause.strerror}); check its folder, {elsewhere}")
    return StoreError(f"the trace database failed: {' '.join(str(cause).split())}")


def _check_file(path: Path, *, readonly: bool) -> None:
    logged = _log_size(path)  # before the file itself: a log is younger than its database
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        if readonly:
            raise StoreMissing(
                f"there is no trace database at {path}; run a method first, or set SPECSCOPE_DB"
            ) from None
        if logged:
            raise StoreError(
                f"{path} is missing, but its log {path}-wal exists; bring the database back, or move the log away"
            ) from None
    except ValueError as error:  # a NUL in the name
        raise StoreError(f"{shown(str(path))} cannot be a trace database ({error}); name a file") from None
    else:
        if not stat.S_ISREG(kind):
            other = "a folder" if stat.S_ISDIR(kind) else "no regular file"
            raise StoreError(f"{path} is {other}; name the file of a trace database")


def _log_size(path: Path) -> int:
    try:
        return Path(f"{path}-wal").stat().st_size
    except (OSError, ValueError):
        return 0


def _connect(path: Path, readonly: bool) -> sqlite3.Connection:
    if not readonly:
        return _open(path, "mode=rwc")
    try:
        return _open(path, "mode=ro")
    except sqlite3.OperationalError as error:
        barred = error.sqlite_errorname.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
        if not barred or _log_size(path):
            raise
        # A read-only folder cannot hold SQLite's lock file; other processes cannot write there.
        return _open(path, "mode=ro&immutable=1")


def _open(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_MS / 1000, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("SELECT count(*) FROM sqlite_master")
    except (sqlite3.Error, UnicodeDecodeError):
        connection.close()
        raise
    return connection


def _is_empty(connection: Connection, path: Path) -> bool:
    """Return whether the file has no tables yet; StoreError if another program made it."""
    (application,) = connection.exec_driver_sql("PRAGMA application_id").one()
    (tables,) = connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").one()
    if not tables and application in (0, APPLICATION_ID):
        return True
    if application != APPLICATION_ID:
        raise StoreError(
            f"{path} is a database of another program; move it away, or set SPECSCOPE_DB to another file"
        )
    version = _version(connection)
    if not ADDED_TO <= version <= VERSION:
        raise StoreError(
            f"{path} has the tables of version {version}, and this SpecScope reads version {VERSION}; export its runs "
            "with the SpecScope that wrote it and import them here, or set SPECSCOPE_DB to another file"
        )
    return False


def _is_older(path: Path) -> bool:
    """Return whether the file is of the version that is upgraded."""
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(_connect(path, readonly=True)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return ADDED_TO <= version < VERSION
    return False


def _version(connection: Connection) -> int:
    """Return the version of the tables; older files have it in a table, not in the header."""
    (version,) = connection.exec_driver_sql("PRAGMA user_version").one()
    if version:
        return version
    (text,) = connection.exec_driver_sql("SELECT min(version_num) FROM alembic_version").one()
    return int(text) if str(text).isdecimal() else 0


def _prepare(engine: Engine, path: Path) -> None:
    with engine.connect() as connection:
        # Fails at once if the file is read-only, and lets one process at a time make the tables.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if _is_empty(connection, path):
            Base.metadata.create_all(connection, checkfirst=False)
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
        elif _version(connection) < VERSION:
            Base.metadata.create_all(connection)
        connection.exec_driver_sql(f"PRAGMA user_version={VERSION}")
        # an index changes no meaning: a file of this version may have been made without it
        for index in (index for table in Base.metadata.tables.values() for index in table.indexes):
            connection.execute(CreateIndex(index, if_not_exists=True))
        connection.commit()
    with engine.connect() as connection:
        _write_ahead(connection)


def _write_ahead(connection: Connection) -> None:
    """Set WAL mode, which the file keeps; wait for other openers, as SQLite does not."""
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
