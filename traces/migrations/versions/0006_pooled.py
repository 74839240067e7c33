"""Pools of n-grams, and the look-ahead windows that feed them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Column, Integer, SmallInteger

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "pooled",
        *(Column(name, Integer, nullable=False) for name in ("run", "number", "step", "sequence")),
        Column("model", SmallInteger, nullable=False),
        *(Column(name, sa.JSON, nullable=False) for name in ("window", "tried", "gained")),
        Column("size", Integer, nullable=False),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("pk_pooled")),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("fk_pooled_run_run"), ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("pooled")
