"""Whether a run keeps the target's distribution; and the rule `typical`, which does not."""

from alembic import op
from sqlalchemy import Boolean, Column

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.add_column("run", Column("lossless", Boolean, nullable=False, server_default="1"))


def downgrade() -> None:
    op.drop_column("run", "lossless")
