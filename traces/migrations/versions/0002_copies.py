"""Copied drafts, and the documents they are copied from."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Column, Integer

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    _rows("document", *_integers("document"), Column("tokens", sa.JSON, nullable=False))
    _rows("copied", *_integers("step", "sequence", "document", "start", "match", "length"))


def downgrade() -> None:
    op.drop_table("copied")
    op.drop_table("document")


def _integers(*names: str) -> list[Column]:
    return [Column(name, Integer, nullable=False) for name in names]


def _rows(table: str, *columns: Column) -> None:
    """Create one table of rows that belong to a run and go with it."""
    op.create_table(
        table,
        Column("run", Integer, nullable=False),
        Column("number", Integer, nullable=False),
        *columns,
        sa.PrimaryKeyConstraint("run", "number", name=op.f(f"pk_{table}")),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f(f"fk_{table}_run_run"), ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )
