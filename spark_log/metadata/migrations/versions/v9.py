"""Several stores: a cluster may spread its topics over data stores."""

import sqlalchemy as sa
from alembic import op

from spark_log.metadata import tables as t

revision = "v9"
down_revision = "v8"


def upgrade() -> None:
    """All earlier topics are in the home store."""
    t.store.create(op.get_bind())
    for table in (t.cluster, t.topic):
        store_id: sa.Column[int] = sa.Column(
            "store_id", sa.Integer(), nullable=False, server_default=sa.text("0"), comment=table.c.store_id.comment
        )
        op.add_column(table.name, store_id)
    state: sa.Column[str] = sa.Column(
        "state", sa.String(16), nullable=False, server_default="live", comment=t.topic.c.state.comment
    )
    op.add_column("topic", state)
    op.add_column("topic", sa.Column("move", sa.Text(), nullable=True, comment=t.topic.c.move.comment))
    frozen: sa.Column[bool] = sa.Column(
        "frozen", sa.Boolean(), nullable=False, server_default=sa.false(), comment=t.partition.c.frozen.comment
    )
    op.add_column("partition", frozen)
    op.create_index(
        "ix_partition_frozen",
        "partition",
        ["topic_id"],
        sqlite_where=sa.text("frozen = 1"),
        postgresql_where=sa.text("frozen"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.create_table_comment("topic", t.topic.comment)
