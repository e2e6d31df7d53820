"""Transactions: the group offsets of one come with its commit, so nothing keeps them before it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.drop_table("transaction_offset")
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        op.alter_column(
            "transaction",
            "state",
            existing_type=sa.String(16),
            existing_nullable=False,
            comment="Empty, Ongoing, CompleteCommit or CompleteAbort",
        )
