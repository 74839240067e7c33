"""All tables, as `traces.schema` has them. Older files are refused, see `traces.database`.

The next revision must first replace `create_all` by the tables as they are then, so that this one
never changes again.
"""

from alembic import op

from traces.schema import Base

revision = "0007"
down_revision = None


def upgrade() -> None:
    Base.metadata.create_all(op.get_bind())
