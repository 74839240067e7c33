"""The power of a device beside its load and memory."""

from alembic import op
from sqlalchemy import Column, Float

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("occupancy", Column("power", Float))


def downgrade() -> None:
    op.drop_column("occupancy", "power")
