"""The query-key cells that a span's attention computed."""

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("span", Column("cells", BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("span", "cells")
