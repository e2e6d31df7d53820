"""A mirror's position has the id of its source's topic and a leader epoch."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "mirror_position",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column(
            "source_cluster_id",
            sa.String(36),
            nullable=False,
            comment="cluster.cluster_id of the cluster that is mirrored",
        ),
        sa.Column("source_topic_uuid", sa.String(32), nullable=False, comment="topic.uuid there"),
        sa.Column(
            "leader_epoch",
            sa.BigInteger(),
            nullable=False,
            comment="of the partition there when the records were looked up",
        ),
        sa.Column("end_offset", sa.BigInteger(), nullable=False, comment="log end offset here after the last step"),
        sa.Column(
            "target_leader_epoch",
            sa.BigInteger(),
            nullable=False,
            comment="of the partition here before that step",
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", name=op.f("pk_mirror_position")),
        comment="Where a mirror into this cluster has got to, and in which log of its source.",
    )
