"""Alembic's entry point: it runs the revisions on the connection that `upgrade` passes."""

from alembic import context

from traces.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
    transactional_ddl=True,
)
context.run_migrations()
