"""Bring a database to the newest revision: `upgrade(connection)`, with Alembic.

To change the tables: edit `schema.py`, add `versions/000N_what_changes.py` after the newest
revision, set `schema.REVISION`, and let `database.py` upgrade older files. A released revision is
never edited. A test compares the tables that the revisions make with the schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config

if TYPE_CHECKING:
    from sqlalchemy import Connection


def config(connection: Connection | None = None) -> Config:
    """Return Alembic's configuration; `env.py` works on the connection."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings


def upgrade(connection: Connection) -> None:
    """Bring the database to the newest revision, inside the connection's own transaction."""
    command.upgrade(config(connection), "head")
