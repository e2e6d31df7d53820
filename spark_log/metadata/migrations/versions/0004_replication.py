"""Served brokers, failed log dirs, and what elections and reassignments leave behind."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column(
        "broker",
        sa.Column("holder", sa.Text(), nullable=True, comment="host and process of a served broker, for people"),
    )
    op.add_column("log_dir", sa.Column("failure", sa.Text(), nullable=True, comment="why it is not online, for people"))
    op.add_column(
        "log_dir",
        sa.Column(
            "suspect_bytes",
            sa.BigInteger(),
            nullable=True,
            comment="somebody could not write a file of so many bytes here: the controller is to look; NULL: nobody complained",
        ),
    )
    op.create_table(
        "retired_replica",
        sa.Column("log_dir_id", sa.BigInteger(), nullable=False, comment="log_dir.log_dir_id"),
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("folder", sa.Text(), nullable=False, comment="the topic's folder in the log dir"),
        sa.Column(
            "retired_ms",
            sa.BigInteger(),
            nullable=False,
            comment="store clock; its files are deleted retired.file.retention.ms later",
        ),
        sa.Column(
            "deleting",
            sa.Boolean(),
            nullable=False,
            comment="its files are being deleted: no replica may be placed here meanwhile",
        ),
        sa.PrimaryKeyConstraint("log_dir_id", "topic_id", "partition", name=op.f("pk_retired_replica")),
        comment="What a reassignment left behind in a log dir: readers may still be on its files.",
    )
    op.create_table(
        "truncation",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column("leader_epoch", sa.BigInteger(), nullable=False, comment="that the election began"),
        sa.Column(
            "start_offset",
            sa.BigInteger(),
            nullable=False,
            comment="the new leader's LEO: what was at or above it is gone",
        ),
        sa.Column("end_offset", sa.BigInteger(), nullable=False, comment="LEO before"),
        sa.Column(
            "high_watermark",
            sa.BigInteger(),
            nullable=False,
            comment="before; above start_offset, readers had seen what is gone",
        ),
        sa.Column("record_count", sa.BigInteger(), nullable=False, comment="records lost"),
        sa.Column("unclean", sa.Boolean(), nullable=False, comment="the new leader was not in the ISR"),
        sa.Column("at_ms", sa.BigInteger(), nullable=False, comment="store clock"),
        sa.PrimaryKeyConstraint("topic_id", "partition", "leader_epoch", name=op.f("pk_truncation")),
        comment="What elections have cut off.",
    )
    op.add_column(
        "publication_cursor",
        sa.Column(
            "seen_offset",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="every record below it has been in the table as a file's: when it comes again, that is no data change",
        ),
    )
