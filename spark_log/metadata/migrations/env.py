"""Alembic's entry point. The connection and its transaction are the caller's."""

from alembic import context

from spark_log.metadata.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
