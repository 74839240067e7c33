"""Which of several devices a span is of, and the parts of fuzzy forwards."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import BigInteger, Column, Integer, SmallInteger

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("span", Column("rank", Integer, nullable=False, server_default="0"))
    op.create_table(
        "part",
        *(Column(name, Integer, nullable=False) for name in ("run", "number", "span")),
        Column("kind", SmallInteger, nullable=False),
        Column("layer", Integer, nullable=False),
        *(Column(name, BigInteger, nullable=False) for name in ("start", "end")),
        sa.PrimaryKeyConstraint("run", "number", name=op.f("pk_part")),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name=op.f("fk_part_run_run"), ondelete="CASCADE"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("part")
    op.drop_column("span", "rank")
