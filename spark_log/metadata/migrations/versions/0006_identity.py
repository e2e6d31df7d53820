"""Which database server the metadata is on, so that one restored from a backup is noticed."""

import sqlalchemy as sa
from alembic import op

from spark_log.metadata.identity import of_server, values

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    for name, type_, comment in (
        ("system_identifier", sa.String(32), "PostgreSQL's, of the server that the metadata is on; NULL: not known"),
        ("timeline", sa.BigInteger(), "of that server's write-ahead log; a promotion or a restore raises it"),
        ("accepted_ms", sa.BigInteger(), "store clock; when an operator accepted another server or timeline"),
    ):
        op.add_column("cluster", sa.Column(name, type_, nullable=True, comment=comment))
    connection = op.get_bind()
    facts = values(of_server(connection))
    update = "UPDATE cluster SET system_identifier = :system_identifier, timeline = :timeline"
    connection.execute(sa.text(update), facts)
