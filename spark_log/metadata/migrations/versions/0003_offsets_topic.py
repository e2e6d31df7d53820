"""Committed offsets have a place in the topic __consumer_offsets."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column(
        "group_offset",
        sa.Column(
            "log_partition",
            sa.Integer(),
            server_default=sa.text("-1"),
            nullable=False,
            comment="partition of __consumer_offsets; -1: committed before there was that topic",
        ),
    )
    op.create_index(op.f("ix_group_offset_log_partition_position"), "group_offset", ["log_partition", "position"])
    op.drop_column("consumer_group", "commit_count")
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        op.alter_column(
            "group_offset",
            "position",
            existing_type=sa.BigInteger(),
            existing_nullable=False,
            comment="offset of the commit in its partition of __consumer_offsets",
        )
