"""Several stores: a cluster may spread its topics over data stores, and transactions have parts there."""

import sqlalchemy as sa
from alembic import op

from spark_log.metadata import tables as t

revision = "v9"
down_revision = "v8"


def upgrade() -> None:
    """All earlier topics are in the home store. A Spark batch gets a row for each topic that existed at its time."""
    _split_spark_batches()
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


def _split_spark_batches() -> None:
    connection = op.get_bind()
    batches = connection.execute(sa.text("SELECT * FROM spark_batch")).mappings().all()
    topics = connection.execute(sa.text("SELECT topic_id, name FROM topic")).all()
    op.drop_table("spark_batch")
    t.spark_batch.create(connection)
    kept = [name for name in batches[0] if name != "newest_topic_id"] if batches else []
    rows = [
        {**{name: batch[name] for name in kept}, "topic_id": topic_id}
        for batch in batches
        for topic_id, name in [(0, ""), *topics]
        if topic_id <= batch["newest_topic_id"] and batch["target"] in ("", name)
    ]
    if rows:
        connection.execute(t.spark_batch.insert(), rows)
