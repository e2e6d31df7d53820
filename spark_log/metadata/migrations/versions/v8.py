"""The store names the oldest revision whose code may use it."""

import sqlalchemy as sa
from alembic import op

revision = "v8"
down_revision = "v7"
additive = True


def upgrade() -> None:
    """The value is set by each upgrade (`metadata/store_schema.py`)."""
    comment = "number of the oldest schema revision whose code may use this store; every version reads it, so it stays"
    column: sa.Column[int] = sa.Column(
        "oldest_revision", sa.Integer(), nullable=False, server_default=sa.text("0"), comment=comment
    )
    op.add_column("cluster", column)
