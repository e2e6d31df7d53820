"""The store knows the OID of its table `cluster`, so that a dump that was restored over it is detected."""

import sqlalchemy as sa
from alembic import op

from spark_log.metadata import tables as t

revision = "v11"
down_revision = "v10"
additive = True


def upgrade() -> None:
    comment = t.cluster.c.table_oid.comment
    op.add_column("cluster", sa.Column("table_oid", sa.BigInteger(), nullable=True, comment=comment))
    if op.get_bind().dialect.name == "postgresql":
        known = sa.text("UPDATE cluster SET table_oid = 'cluster'::regclass::oid WHERE system_identifier IS NOT NULL")
        op.get_bind().execute(known)
