"""The first tables."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Column, Float, Integer, String

revision = "0001"
down_revision = None

CODE, TIME, JSON = sa.SmallInteger, sa.BigInteger, sa.JSON


def upgrade() -> None:
    op.create_table(
        "run",
        Column("id", Integer, nullable=False),
        Column("run_id", String, nullable=False),
        Column("created", String, nullable=False),
        Column("method", String, nullable=False),
        Column("title", String, nullable=False),
        Column("config", JSON, nullable=False),
        Column("prompts", JSON, nullable=False),
        Column("prompt_ids", JSON, nullable=False),
        Column("sampling", JSON, nullable=False),
        Column("limits", JSON, nullable=False),
        Column("runtime", String, nullable=False),
        Column("profile", String, nullable=False),
        Column("devices", JSON, nullable=False),
        Column("target_path", String, nullable=False),
        Column("drafter_path", String, nullable=False),
        Column("environment", JSON, nullable=False),
        Column("group", String, nullable=False),
        Column("version", Integer, nullable=False),
        Column("status", CODE),
        Column("reasons", JSON),
        Column("texts", JSON),
        Column("time", TIME),
        Column("error", String),
        Column("owner_pid", Integer),
        Column("owner_start", Float),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("run_id", name=op.f("uq_run_run_id")),
        sqlite_autoincrement=True,
    )
    op.create_index(op.f("ix_run_created"), "run", ["created"])
    op.create_index(op.f("ix_run_group"), "run", ["group"])
    _rows("piece", Column("token", Integer, nullable=False), Column("text", String, nullable=False))
    _rows(
        "span",
        Column("id", Integer, nullable=False),
        Column("device", String, nullable=False),
        Column("kind", CODE, nullable=False),
        Column("start", TIME, nullable=False),
        Column("end", TIME, nullable=False),
        Column("model", CODE, nullable=False),
        *_integers("step", "sequence", "rows", "context"),
        Column("outcome", CODE, nullable=False),
    )
    op.create_index(op.f("ix_span_run_start"), "span", ["run", "start"])
    _rows(
        "round",
        *_integers("step", "sequence"),
        Column("mode", CODE, nullable=False),
        *_integers("drafted", "accepted", "emitted"),
        Column("time", TIME, nullable=False),
        Column("span", Integer, nullable=False),
    )
    _rows(
        "decision",
        *_integers("step", "sequence", "node", "parent", "position", "token"),
        Column("p", Float),
        Column("q", Float),
        Column("u", Float),
        Column("rule", CODE, nullable=False),
        Column("outcome", CODE, nullable=False),
        *_integers("draft_span", "verify_span"),
        Column("top_p", JSON, nullable=False),
        Column("top_q", JSON, nullable=False),
    )
    _rows(
        "token",
        *_integers("step", "sequence", "position", "token"),
        Column("origin", CODE, nullable=False),
        Column("text", String, nullable=False),
        Column("time", TIME, nullable=False),
    )
    _rows(
        "occupancy",
        Column("device", String, nullable=False),
        Column("time", TIME, nullable=False),
        Column("busy", Float, nullable=False),
        Column("memory", TIME, nullable=False),
    )


def downgrade() -> None:
    for table in ("occupancy", "token", "decision", "round", "span", "piece", "run"):
        op.drop_table(table)


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
