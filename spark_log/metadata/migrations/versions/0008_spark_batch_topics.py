"""Spark batches are remembered for the topics that there were, not for later ones of the same name."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


UPDATE = """
    UPDATE spark_batch SET newest_topic_id = coalesce(
        (SELECT max(topic_id) FROM topic WHERE topic.created_ms <= spark_batch.committed_ms), 0)
"""


def upgrade() -> None:
    op.add_column(
        "spark_batch",
        sa.Column(
            "newest_topic_id",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="highest topic.topic_id at that time: a topic with a higher one was created later and has no row of the batch",
        ),
    )
    op.execute(sa.text(UPDATE))
