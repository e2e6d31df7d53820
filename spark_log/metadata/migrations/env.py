"""The script that Alembic runs for a migration. The caller provides the connection and its transaction."""

from alembic import context

from spark_log.metadata.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
