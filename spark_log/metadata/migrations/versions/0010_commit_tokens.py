"""Rows by which a PostgreSQL transaction shows that it was committed, when its answer was lost."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "commit_token",
        sa.Column("token", sa.String(32), nullable=False, comment="UUID in hex, used by one transaction"),
        sa.Column(
            "committed",
            sa.Boolean(),
            nullable=False,
            comment="true: the transaction's own row; false: it was asked about, and can not be committed any more",
        ),
        sa.Column("at_ms", sa.BigInteger(), nullable=False, comment="store clock"),
        sa.PrimaryKeyConstraint("token", name="pk_commit_token"),
        comment="The last transactions of each connection to PostgreSQL, and those whose answer was lost.",
    )
