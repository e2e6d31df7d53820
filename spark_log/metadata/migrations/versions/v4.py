"""Every member of a group has a member epoch (KIP-848). Members without one join again."""

import json

import sqlalchemy as sa
from alembic import op

from spark_log import clock

revision = "v4"
down_revision = "v3"

_MEMBER = sa.table("group_member", sa.column("group_id"), sa.column("member_id"), sa.column("subscription"))


def upgrade() -> None:
    """Groups and their offsets stay, and so do the members of Kafka clients with the consumer protocol."""
    old = "SELECT group_id, member_id FROM group_member WHERE epoch_state IS NULL"
    op.execute(f"DELETE FROM group_partition WHERE (group_id, member_id) IN ({old})")
    changed = "group_id IN (SELECT group_id FROM group_member WHERE epoch_state IS NULL)"
    op.execute(f"UPDATE consumer_group SET generation = generation + 1 WHERE {changed}")
    empty = f"{changed} AND group_id NOT IN (SELECT group_id FROM group_member WHERE epoch_state IS NOT NULL)"
    op.execute(
        f"UPDATE consumer_group SET target_generation = generation, empty_since_ms = {clock.wall_ms()} WHERE {empty}"
    )
    op.execute("DELETE FROM group_member WHERE epoch_state IS NULL")
    connection = op.get_bind()
    for name in ("group", "member"):  # their groups are Kafka's classic ones
        op.rename_table(f"opaque_{name}", f"classic_{name}")
        if connection.dialect.name == "postgresql":
            op.execute(f"ALTER INDEX pk_opaque_{name} RENAME TO pk_classic_{name}")
    for group_id, member_id, text in connection.execute(sa.select(_MEMBER)).all():
        subscription = json.loads(text)
        subscription["assignors"] = [name for name, _ in subscription["assignors"]]
        here = (_MEMBER.c.group_id == group_id) & (_MEMBER.c.member_id == member_id)
        connection.execute(_MEMBER.update().where(here).values(subscription=json.dumps(subscription)))
    with op.batch_alter_table("group_member") as batch:
        for name in ("beat", "rebalance_timeout_ms", "rejoin_by_ms"):
            batch.drop_column(name)
        batch.alter_column("epoch_state", existing_type=sa.Text(), nullable=False)
    comment = "of a classic member: as classic_member.protocols"
    op.add_column("group_member", sa.Column("classic_protocols", sa.Text(), nullable=True, comment=comment))
    op.execute("UPDATE consumer_group SET type = 'consumer'")
    op.execute(
        "UPDATE consumer_group SET type = 'classic', topics = '{}' WHERE group_id IN (SELECT group_id FROM classic_group)"
    )
