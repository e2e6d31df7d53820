"""Adds share groups: the state of their partitions, delayed records, and configs of groups."""

from alembic import op

from spark_log.metadata import tables as t

revision = "v7"
down_revision = "v6"


def upgrade() -> None:
    """Groups and their offsets stay as they are."""
    for table in (t.group_config, t.share_partition, t.share_delayed):
        table.create(op.get_bind())
    with op.batch_alter_table("consumer_group") as batch:
        batch.alter_column("type", comment=t.consumer_group.c.type.comment)
    with op.batch_alter_table("group_member") as batch:
        batch.alter_column("protocol", comment=t.group_member.c.protocol.comment)
