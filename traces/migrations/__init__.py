"""Bring a database file to the newest revision: `upgrade(connection)`. Alembic, without a configuration file.

To change the tables: edit `schema.py`, add `versions/000N_what_changes.py` after the newest one (a revision is never
edited once released), and set `schema.REVISION`. A test compares what the revisions make with the schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

if TYPE_CHECKING:
    from sqlalchemy import Connection


def config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration; `env.py` works on the connection given here."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings


def known(revision: str) -> bool:
    """Return whether this version of SpecScope has that revision."""
    return any(
        script.revision == revision for script in ScriptDirectory.from_config(config()).walk_revisions()
    )


def upgrade(connection: Connection) -> None:
    """Bring the database to the newest revision, inside the connection's own transaction."""
    command.upgrade(config(connection), "head")
