"""Several stores: a cluster may spread its topics over data stores, and transactions have parts there."""

import sqlalchemy as sa
from alembic import op

from spark_log.metadata import tables as t

revision = "v9"
down_revision = "v8"


def upgrade() -> None:
    """All earlier topics are in the home store."""
    t.store.create(op.get_bind())
    t.transaction_part.create(op.get_bind())
    for table in (t.cluster, t.topic):
        store_id: sa.Column[int] = sa.Column(
            "store_id", sa.Integer(), nullable=False, server_default=sa.text("0"), comment=table.c.store_id.comment
        )
        op.add_column(table.name, store_id)
    state: sa.Column[str] = sa.Column(
        "state", sa.String(16), nullable=False, server_default="live", comment=t.topic.c.state.comment
    )
    op.add_column("topic", state)
    part_number: sa.Column[int] = sa.Column(
        "part_number",
        sa.BigInteger(),
        nullable=False,
        server_default=sa.text("0"),
        comment=t.transaction.c.part_number.comment,
    )
    op.add_column("transaction", part_number)
    part_stores: sa.Column[str] = sa.Column(
        "part_stores", sa.Text(), nullable=False, server_default="", comment=t.transaction.c.part_stores.comment
    )
    op.add_column("transaction", part_stores)
    if op.get_bind().dialect.name == "postgresql":
        op.create_table_comment("topic", t.topic.comment)
        op.create_table_comment("transaction_segment", t.transaction_segment.comment)
        op.alter_column("transaction_segment", "producer_id", comment=t.transaction_segment.c.producer_id.comment)
