"""The intent of a publication is noted before its Delta commit."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "publication_intent",
        *_keys(),
        sa.Column("delta_version", sa.BigInteger(), nullable=False, comment="Delta version that the commit will have"),
        sa.Column(
            "recorded_delta_version",
            sa.BigInteger(),
            nullable=True,
            comment="publication.delta_version when this was noted",
        ),
        sa.Column(
            "has_replicas", sa.Boolean(), nullable=False, comment="whether the log dir had a replica of the topic"
        ),
        sa.PrimaryKeyConstraint("topic_id", "log_dir_id", "transaction_version", name=op.f("pk_publication_intent")),
        comment="Commits of a Delta table that are about to be made, or were made and have not been recorded.",
    )
    op.create_table(
        "publication_intent_cursor",
        *_keys("publication_intent.transaction_version"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column(
            "change",
            sa.BigInteger(),
            nullable=False,
            comment="publication_cursor.change once the commit is recorded",
        ),
        sa.Column("high_watermark", sa.BigInteger(), nullable=False, comment="publication_cursor.high_watermark then"),
        sa.Column("seen_offset", sa.BigInteger(), nullable=False, comment="publication_cursor.seen_offset then"),
        sa.PrimaryKeyConstraint(
            "topic_id", "log_dir_id", "transaction_version", "partition", name=op.f("pk_publication_intent_cursor")
        ),
        comment="Per partition, how far the Delta table will have followed after such a commit.",
    )


def _keys(version: str = "the table has this version of our app transaction: done") -> list[sa.Column[int]]:
    return [
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("log_dir_id", sa.BigInteger(), nullable=False, comment="log_dir.log_dir_id"),
        sa.Column("transaction_version", sa.BigInteger(), nullable=False, comment=version),
    ]
