"""Retired files that wait to be deleted in log dirs that were away when they were deleted everywhere else."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "retired_copy",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("log_dir_id", sa.BigInteger(), nullable=False, comment="log_dir.log_dir_id"),
        sa.Column("path", sa.Text(), nullable=False, comment="retired_file.path: was deleted everywhere else"),
        sa.PrimaryKeyConstraint("topic_id", "log_dir_id", "path", name=op.f("pk_retired_copy")),
        comment="Retired files in log dirs that were away when they were deleted: to be deleted there.",
    )
